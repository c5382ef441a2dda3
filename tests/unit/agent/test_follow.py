"""Following an order: every state once, progress in its place, and an end when nobody holds the order any more."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.follow import collect, follow, logs
from orchestrator.agent.journal import Journal
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder

LAUNCH = wire.Launch("l1", "svc", "auto", "/py", [], "127.0.0.1", 1, secrets={"api-key": "hunter2222"})


def open_order(tmp_path: Path) -> tuple[StateFolder, Path]:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    path = folder.order_folder("o1")
    path.mkdir()
    order = wire.Order("o1", wire.OrderKind.LAUNCH, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop", new=LAUNCH)
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    return folder, path


def reference(tmp_path: Path, after: int = 0) -> wire.OrderReference:
    return wire.OrderReference("svc", str(tmp_path), "o1", after)


def followed(tmp_path: Path, after: int = 0) -> tuple[wire.OrderResult, list[str]]:
    seen: list[str] = []

    def emit(kind: str, data: Any) -> None:
        if kind == wire.EventKind.COLLECTED:
            assert "journal.jsonl" in data.files
        else:
            seen.append(data["state"] if kind == wire.EventKind.STATE else data["phase"])

    return follow(reference(tmp_path, after), emit), seen


def write_story(path: Path) -> None:
    with Journal(path) as journal:
        journal.state(wire.State.STOPPING, "")
        journal.progress("grace")
        journal.progress("killing")
        journal.state(wire.State.LOADING, "")
        journal.progress("imports")
        journal.state(wire.State.DONE, "")


def test_progress_stands_between_its_state_and_the_next(tmp_path: Path) -> None:
    _, path = open_order(tmp_path)
    write_story(path)
    _, seen = followed(tmp_path)
    assert seen == ["STOPPING", "grace", "killing", "LOADING", "imports", "DONE"]


def test_who_comes_back_is_told_only_what_is_new(tmp_path: Path) -> None:
    _, path = open_order(tmp_path)
    write_story(path)
    _, seen = followed(tmp_path, after=2)
    assert seen == ["DONE"]


def test_the_result_on_the_box_is_the_answer(tmp_path: Path) -> None:
    _, path = open_order(tmp_path)
    write_story(path)
    result = wire.OrderResult("o1", wire.State.DONE, 0, "auto serves", "serving")
    write_private(path / "result.json", json.dumps(wire.to_json(result)))
    assert followed(tmp_path)[0] == result


def test_an_order_that_nobody_holds_and_that_has_no_result_is_told_as_interrupted(tmp_path: Path) -> None:
    _, path = open_order(tmp_path)
    with Journal(path) as journal:
        journal.state(wire.State.STOPPING, "")
    result, _ = followed(tmp_path)
    assert (result.state, result.exit_code) == ("INTERRUPTED(STOPPING)", 7)
    assert "the old server was being stopped" in result.service


@pytest.mark.parametrize(
    ("state", "exit_code", "service"),
    [
        (wire.State.CHECKED, 3, "unchanged"),
        (wire.State.BASELINE, 3, "unchanged"),
        (wire.State.WARMING, 3, "unchanged"),
        (wire.State.STAGING, 5, "unchanged"),
        (wire.State.ACTIVATING, 7, "unknown; when it was cut off, a server had been started and may come up unwatched"),
        (wire.State.STARTING, 7, "unknown; when it was cut off, nothing served"),
        (wire.State.LOADING, 7, "unknown; when it was cut off, a server had been started and may come up unwatched"),
        (wire.State.VERIFIED, 7, "unknown; when it was cut off, the new server served"),
    ],
)
def test_what_an_interrupted_order_has_done_to_the_service_is_told(tmp_path: Path, state: str, exit_code: int, service: str) -> None:
    _, path = open_order(tmp_path)
    with Journal(path) as journal:
        journal.state(state, "")
    result, _ = followed(tmp_path)
    assert (result.state, result.exit_code, result.service) == (f"INTERRUPTED({state})", exit_code, service)


def test_a_way_back_cut_off_while_it_was_staged_is_not_taken_for_an_old_server_left_alone(tmp_path: Path) -> None:
    _, path = open_order(tmp_path)
    with Journal(path) as journal:
        for state in (wire.State.CHECKED, wire.State.STAGING, wire.State.DRAINING, wire.State.ROLLING_BACK, wire.State.STAGING):
            journal.state(state, "")
    result, _ = followed(tmp_path)
    assert (result.exit_code, result.service) == (7, "unknown; when it was cut off, nothing served")


@pytest.mark.parametrize(("state", "exit_code"), [("DONE", 0), ("REFUSED", 3), ("RESTORED", 6), ("DOWN", 7)])
def test_an_order_whose_result_found_no_room_is_told_by_its_last_state(tmp_path: Path, state: str, exit_code: int) -> None:
    _, path = open_order(tmp_path)
    with Journal(path) as journal:
        journal.state(state, "how it went", {"service": "what serves"})
    result, _ = followed(tmp_path)
    assert (result.state, result.exit_code, result.summary, result.service) == (state, exit_code, "how it went", "what serves")


def test_an_unknown_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal):
        followed(tmp_path)


def test_the_last_lines_of_a_log_come_without_secrets(tmp_path: Path) -> None:
    folder, _ = open_order(tmp_path)
    launch_folder = folder.write_launch(LAUNCH)
    (launch_folder / "server.log").write_text("one\ntwo\nkey is hunter2222\n")
    seen: list[str] = []
    end = logs(wire.LogRequest("svc", str(tmp_path), lines=2), lambda _, data: seen.append(data["text"]))
    assert seen == ["two", "key is ***"]
    assert end.launch_id == "l1"


def test_a_launch_or_an_order_that_is_not_there_says_where_those_are_listed(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal, match="no log of launch L9") as refused:
        logs(wire.LogRequest("glm5", str(tmp_path), "L9", 10, False), lambda *_: None)
    assert str(refused.value.failure.next_step).startswith("fab rollback --list")
    with pytest.raises(AgentRefusal, match="there is no order O9") as refused:
        follow(wire.OrderReference("glm5", str(tmp_path), "O9"), lambda *_: None)
    assert refused.value.failure.next_step == "fab status"


def test_logs_of_nothing_are_refused(tmp_path: Path) -> None:
    open_order(tmp_path)
    with pytest.raises(AgentRefusal, match="nothing was launched"):
        logs(wire.LogRequest("svc", str(tmp_path)), lambda *_: None)


def test_what_is_collected_holds_no_secret_and_says_what_was_cut(tmp_path: Path) -> None:
    folder, path = open_order(tmp_path)
    write_story(path)
    log = folder.write_launch(LAUNCH) / "server.log"
    log.write_text("first hunter2222\n" + "x" * 2_000_000 + "\nlast\n")
    collected = collect(folder, "o1")
    assert set(collected.files) == {"journal.jsonl", "progress.jsonl", "server.log"}
    assert collected.truncated == ["server.log"]
    text = collected.files["server.log"]
    assert text.startswith("first ***\n")
    assert text.endswith("\nlast\n")
    assert "bytes left out" in text


class Listener:
    """Hears a log in a thread's stead: acts on what it hears, and goes away after the last of it."""

    def __init__(self, until: str, **actions: Callable[[], Any]) -> None:
        self.heard: list[str] = []
        self._until = until
        self._actions = actions

    def __call__(self, kind: str, data: Any) -> None:
        text = data["text"] if kind == wire.EventKind.LOG else f"({data.detail})"
        self.heard.append(text)
        self._actions.get(text.split()[0].strip("("), lambda: None)()
        if text == self._until:
            raise EOFError


def began(folder: StateFolder, launch_id: str, text: str) -> Path:
    path = folder.write_launch(replace(LAUNCH, launch_id=launch_id))
    (path / "server.log").write_text(text)
    return path


def test_following_a_service_says_that_its_launch_has_ended_and_goes_on_with_the_next(tmp_path: Path) -> None:
    folder, _ = open_order(tmp_path)
    first = began(folder, "l2", "up\n")
    listener = Listener(
        "second",
        up=lambda: (first / "exit").write_text("success exited 0"),
        launch=lambda: began(folder, "l1-by-another-clock", "second\n"),
    )
    with pytest.raises(EOFError):
        logs(wire.LogRequest("svc", str(tmp_path), follow=True), listener)
    assert listener.heard == ["up", "(launch l2 has ended: exited 0)", "(launch l1-by-another-clock has begun)", "second"]


def test_following_a_launch_that_was_never_started_ends_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.agent.follow._BEGUN_SECONDS", 0.05)
    monkeypatch.setattr("orchestrator.agent.follow._ENDED_EVERY", 0.02)
    looks, sleep = iter(range(500)), time.sleep

    def counted(seconds: float) -> None:
        next(looks)
        sleep(seconds / 10)

    monkeypatch.setattr("orchestrator.agent.follow.time.sleep", counted)
    folder, _ = open_order(tmp_path)
    path = began(folder, "l1", "")
    os.utime(path, (time.time() + 10_800, time.time() + 10_800))
    heard: list[str] = []
    logs(wire.LogRequest("svc", str(tmp_path), launch_id="l1", follow=True), lambda _, data: heard.append(data.detail))
    assert heard == ["launch l1 has ended"]


def test_following_a_launch_ends_with_it_and_takes_no_other(tmp_path: Path) -> None:
    folder, _ = open_order(tmp_path)
    first = began(folder, "l1", "up\n")
    (first / "exit").write_text("signal killed KILL")
    began(folder, "l2", "second\n")
    listener = Listener("")
    end = logs(wire.LogRequest("svc", str(tmp_path), launch_id="l1", follow=True), listener)
    assert (end.launch_id, listener.heard) == ("l1", ["up", "(launch l1 has ended: killed KILL)"])


def test_a_secret_is_not_shown_in_two_halves(tmp_path: Path) -> None:
    folder, _ = open_order(tmp_path)
    path = began(folder, "l1", "up\nkey hunter")

    def add(text: str) -> None:
        with (path / "server.log").open("a") as log:
            log.write(text)

    def end() -> None:
        add("2222\nlast")
        (path / "exit").write_text("success exited 0")

    listener = Listener("", up=lambda: add("2222\nmore\nkey hunter"), more=end)
    logs(wire.LogRequest("svc", str(tmp_path), launch_id="l1", follow=True), listener)
    assert listener.heard[:5] == ["up", "key ***", "more", "key ***", "last"]
