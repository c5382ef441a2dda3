"""The stand-in's processes and signals, against what sglang_observed captured from the real 0.5.23."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.lab.processes import kill, start_time
from tests.lab.conftest import Answer, Standin

Start = Callable[..., Standin]

CHILDREN = {"sglang::scheduler_TP0", "sglang::scheduler_TP1", "sglang::detokenizer"}


def test_the_tree_is_one_group_and_session_under_titles(start: Start) -> None:
    server = start("--tp-size", "2").wait_ready()
    assert server.titles() >= CHILDREN
    assert any("resource_tracker" in title for title in server.titles())
    assert {member.group for member in server.members()} == {server.pid}
    assert Path(f"/proc/{server.member('sglang::detokenizer').pid}/comm").read_text() == "sglang::detoken\n"
    assert "sglang.launch_server" in server.member(next(title for title in server.titles() if "launch_server" in title)).title


def test_children_that_import_carry_no_title_and_the_port_is_closed(start: Start) -> None:
    server = start(time_scale=0.2)
    server.wait_for(lambda: any("spawn_main" in title for title in server.titles()), "children")
    spawned = [title for title in server.titles() if "spawn_main" in title]
    assert not any("sglang" in title for title in spawned)
    assert server.ask("/health").status == 0
    server.wait_for(lambda: "sglang::scheduler" in server.titles(), "title")


def test_titles_wipe_the_environment_unless_told_not_to(start: Start) -> None:
    for environment, kept in (({"MARK": "x1"}, False), ({"MARK": "x1", "SPT_NOENV": "1"}, True)):
        server = start(environment=environment)
        server.wait_for_log("Load weight begin.")
        for pid, expected in ((server.member("sglang::scheduler").pid, kept), (server.pid, True)):
            assert (b"MARK=x1" in Path(f"/proc/{pid}/environ").read_bytes()) is expected


def test_sigterm_when_idle_drains_and_exits_0(start: Start) -> None:
    server = start().wait_ready()
    server.signal(signal.SIGTERM)
    server.wait_for_log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    assert server.exit_code() == 0
    assert "Gracefully exiting... Remaining number of requests 0." in server.log
    server.wait_for(lambda: not server.members(), "everything gone")


def test_sigterm_while_streaming_lets_the_stream_finish_and_takes_new_requests(start: Start) -> None:
    server = start(tokens_per_second=100).wait_ready()
    body = {"text": "about", "stream": True, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
    answers: list[Answer] = []
    stream = threading.Thread(target=lambda: answers.append(server.ask("/generate", body)))
    stream.start()
    server.wait_for(lambda: server.ask("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1, "running")
    server.signal(signal.SIGTERM)
    server.wait_for(lambda: server.ask("/health").status == 503, "503 while draining")
    late = server.ask("/generate", {"text": "after", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}})
    assert late.status == 200
    stream.join()
    assert answers[0].body.endswith(b"data: [DONE]\n\n")
    assert server.exit_code() == 0


def test_sigterm_to_the_group_kills_the_scheduler_and_main_exits_minus_9(start: Start) -> None:
    server = start().wait_ready()
    os.killpg(server.pid, signal.SIGTERM)
    assert server.exit_code() == -9
    assert "crashed with exit code -15. Triggering SIGQUIT for cleanup..." in server.log
    assert "Gracefully exiting" not in server.log
    assert "No live scheduler processes found" in server.log


def test_a_killed_scheduler_ends_the_server_with_minus_9(start: Start) -> None:
    server = start().wait_ready()
    scheduler = server.member("sglang::scheduler").pid
    kill(scheduler, start_time(scheduler))
    assert server.exit_code() == -9
    assert "crashed with exit code -9." in server.log


def test_a_killed_main_takes_its_children_with_it(start: Start) -> None:
    server = start().wait_ready()
    server.signal(signal.SIGKILL)
    assert server.exit_code() == -9
    server.wait_for(lambda: not server.members(), "PDEATHSIG")


def test_sigterm_while_children_import_leaves_orphans_that_go_on_loading(start: Start) -> None:
    server = start(time_scale=0.2)
    server.wait_for(lambda: sum("spawn_main" in title for title in server.titles()) == 2, "both children")
    server.signal(signal.SIGTERM)
    assert server.exit_code() == -15
    server.wait_for(lambda: "sglang::scheduler" in server.titles(), "an orphan that loads on")
    assert server.member("sglang::scheduler").parent != server.pid
    server.wait_for_log("BrokenPipeError")
    server.wait_for(lambda: "sglang::scheduler" not in server.titles(), "the scheduler's end")
    time.sleep(0.2)
    assert "sglang::detokenizer" in server.titles()
    os.kill(server.member("sglang::detokenizer").pid, signal.SIGTERM)
    server.wait_for(lambda: not server.members(), "detokenizer and resource tracker")


def test_sigint_is_a_quick_clean_end(start: Start) -> None:
    server = start().wait_ready()
    server.signal(signal.SIGINT)
    assert server.exit_code() == 0


def test_sighup_kills_main_by_default(start: Start) -> None:
    server = start().wait_ready()
    server.signal(signal.SIGHUP)
    assert server.exit_code() == -1
    server.wait_for(lambda: not server.members(), "children")


def test_a_wedged_scheduler_answers_no_health_but_the_rest(start: Start) -> None:
    server = start(time_scale=0.02).wait_ready()
    scheduler = server.member("sglang::scheduler").pid
    os.kill(scheduler, signal.SIGSTOP)
    assert server.ask("/v1/models").status == 200
    assert server.ask("/health").status == 503
    assert "Health check failed. Server couldn't get a response from detokenizer" in server.log


@pytest.mark.parametrize("phase", ["child_imports", "weights", "graph_capture"])
def test_hang_at_stops_in_that_phase(start: Start, phase: str) -> None:
    server = start(hang_at=phase, compute_capability="10.0", gpu_memory_mib=183359)
    marks = {"child_imports": "server_args=", "weights": "Load weight begin.", "graph_capture": "Capture target decode CUDA graph begin."}
    server.wait_for_log(marks[phase])
    time.sleep(0.5)
    assert "max_total_num_tokens" not in server.log
    assert server.ask("/health").status == 0


def test_ignore_sigterm_outlives_it(start: Start) -> None:
    server = start(ignore_sigterm=True).wait_ready()
    os.killpg(server.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert server.ask("/health").status == 200
    assert server.titles() >= {"sglang::scheduler", "sglang::detokenizer"}


def test_an_escapee_leaves_the_session(start: Start, tmp_path: Path) -> None:
    server = start(escapee=True)

    def escapees() -> list[int]:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "processes").glob("*.json")]
        return [record["pid"] for record in records if record["role"] == "escapee"]

    server.wait_for(lambda: bool(escapees()), "an escapee")
    pid = escapees()[0]
    try:
        assert os.getsid(pid) != server.pid
        server.end()
        assert start_time(pid) != 0
    finally:
        kill(pid, start_time(pid))


def test_shared_memory_is_left_by_sigkill_and_not_by_a_clean_end(start: Start) -> None:
    left = set(Path("/dev/shm").glob("psm_*"))

    def mine(server: Standin) -> list[Path]:
        server.wait_ready()
        maps = Path(f"/proc/{server.member('sglang::scheduler').pid}/maps").read_text(encoding="utf-8")
        return [path for path in Path("/dev/shm").glob("psm_*") if str(path) in maps and path not in left]

    clean = start(shared_memory=True)
    files = mine(clean)
    clean.signal(signal.SIGTERM)
    assert clean.exit_code() == 0
    assert files
    assert not files[0].exists()
    killed = start(shared_memory=True)
    files = mine(killed)
    killed.end()
    assert files[0].exists()
    files[0].unlink()
