"""Tracing a server: the folder for it, how much load, and what is sent. The real one is traced in tests/sglang."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import profile as verb
from orchestrator.agent import wire
from orchestrator.agent.http import Client, Response
from orchestrator.agent.processes import Server, Ties
from orchestrator.agent.procfs import Process
from orchestrator.agent.profile import TraceFolder, load_tokens, profile, trace_folder
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_budget import FilePiece, ProfileRequest

WHOLE = gzip.compress(b'{"traceEvents": []}' * 1000)
NAME = "1-TP-0.trace.json.gz"


@pytest.fixture
def server() -> Server:
    """This very process, as a server of one rank."""
    identity = wire.ProcessId(os.getpid(), 1)
    main = Process(identity, 1, 1, 1, os.geteuid(), "S", "python", ("python",), "/")
    scheduler = dataclasses.replace(main, title="sglang::scheduler_TP0")
    manager = wire.Manager(wire.ManagerKind.SESSION, "shell")
    return Server(main, [main, scheduler], manager, 1, listening=True, launch_id=None, ties=Ties(identity, 1, 1))


def request(**more: Any) -> ProfileRequest:
    return ProfileRequest("tiny", "/nowhere", 1, **more)


def test_the_folder_is_the_servers_alone_and_goes_with_all_that_is_in_it(server: Server) -> None:
    with trace_folder(server, 1) as folder:
        path = Path(folder.path)
        assert path.stat().st_mode & 0o777 == 0o700
        (path / NAME).write_bytes(WHOLE)
        (path / "other.txt").write_text("x", encoding="utf-8")
        assert folder.names() == [NAME]
    assert not path.exists()


def test_without_room_nothing_is_begun(server: Server) -> None:
    with pytest.raises(AgentRefusal, match="MiB are free in the server's /tmp"), trace_folder(server, 1 << 60):
        pass


def test_a_file_counts_when_it_is_written_to_its_end(server: Server) -> None:
    with trace_folder(server, 1) as folder:
        path = Path(folder.path) / NAME
        assert not folder.is_whole(NAME)
        path.write_bytes(WHOLE[:-1])
        assert not folder.is_whole(NAME)
        path.write_bytes(WHOLE)
        assert folder.is_whole(NAME)


def test_a_link_that_somebody_put_there_is_not_followed(server: Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(WHOLE)
    with trace_folder(server, 1) as folder:
        (Path(folder.path) / NAME).symlink_to(secret)
        assert not folder.is_whole(NAME)
        with pytest.raises(OSError, match=NAME):
            folder.open(NAME)


@pytest.mark.parametrize(
    ("per_token", "capacity", "tokens"),
    [(0.1, None, 64), (0.02, None, 300), (0.0001, None, 1024), (0.01, 2000, 600), (0.01, 1200, 600), (0.0001, 700, 380), (0.01, 100, 16)],
)
def test_the_load_lasts_some_seconds_and_fits_into_the_cache(per_token: float, capacity: int | None, tokens: int) -> None:
    assert load_tokens(per_token, request(), capacity) == tokens


class ScriptedProfile(verb._Profile):
    """Without the load and the questions."""

    def _stream(self, tokens: int) -> float:
        return 0.1

    def _wait_decoding(self, per_token: float) -> None:
        return


class ScriptedClient(Client):
    """Answers as a server would, and writes what it would write."""

    def __init__(self, folder: Path, status: int = 200, ranks: int = 1) -> None:
        super().__init__(1)
        self.folder = folder
        self.status = status
        self.ranks = ranks
        self.asked: list[tuple[str, Any]] = []

    def get_json(self, path: str, timeout: float = 5.0) -> Any:
        if path == "/v1/loads":
            return {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}
        return {"version": "0.5.23", "max_total_num_tokens": 8192}

    def post(self, path: str, body: Any, timeout: float = 30.0) -> Response:
        self.asked.append((path, body))
        if path == "/start_profile" and self.status == 200:
            for rank in range(self.ranks):
                (self.folder / f"1-TP-{rank}.trace.json.gz").write_bytes(WHOLE)
        return Response(self.status, b"said")


def traced(server: Server, *, status: int = 200, written: int = 1, **more: Any) -> tuple[Any, ScriptedClient, list[tuple[str, Any]]]:
    events: list[tuple[str, Any]] = []
    with trace_folder(server, 1) as folder:
        client = ScriptedClient(Path(folder.path), status, written)
        report = ScriptedProfile(request(**more), lambda kind, data: events.append((kind, data)), client, server, folder).report()
    return report, client, events


def test_the_files_are_sent_before_the_answer_and_the_profiler_has_stopped_by_itself(server: Server) -> None:
    report, client, events = traced(server, steps=5)

    (asked,) = client.asked
    assert asked[0] == "/start_profile"
    assert (asked[1]["num_steps"], asked[1]["activities"]) == (5, ["CPU", "GPU"])
    assert "profile_by_stage" not in asked[1]
    pieces = [data for kind, data in events if isinstance(data, FilePiece)]
    assert b"".join(base64.b64decode(piece.data) for piece in pieces) == WHOLE
    assert [piece.last for piece in pieces][-1]
    assert (report.files, report.sglang, report.ranks) == ([NAME], "0.5.23", 1)


def test_a_profiler_that_has_not_ended_is_stopped(server: Server) -> None:
    two = dataclasses.replace(server, members=[*server.members, dataclasses.replace(server.members[1], title="sglang::scheduler_TP1")])

    report, client, _ = traced(two, seconds=0.3)

    assert [path for path, _ in client.asked] == ["/start_profile", "/stop_profile"]
    assert report.remarks == ["1 of 2 ranks have written a trace in time"]


def test_no_trace_in_time_is_a_refusal_that_leaves_no_profiler_behind(server: Server) -> None:
    with pytest.raises(AgentRefusal, match="no trace was written within"):
        traced(server, written=0, seconds=0.3)


def test_a_server_that_will_not_start_it_says_why(server: Server) -> None:
    with pytest.raises(AgentRefusal, match=r"HTTP 401 said; with an admin key only that key"):
        traced(server, status=401)


def test_a_trace_that_is_too_large_is_left_out_and_told(server: Server) -> None:
    report, _, events = traced(server, most_bytes=10)

    assert report.files == []
    assert "left out; fewer steps make it smaller" in report.remarks[0]
    assert not [data for _, data in events if isinstance(data, FilePiece)]


def test_without_a_server_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal, match="no server listens"):
        profile(dataclasses.replace(request(), state_root=str(tmp_path)), lambda kind, data: None)


def test_a_trace_folder_reads_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert not TraceFolder(str(tmp_path), descriptor).is_whole(NAME)
    finally:
        os.close(descriptor)
