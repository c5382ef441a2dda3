"""Stopping stand-in servers: real processes, real signals."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.processes import find_server, launch_members
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.stopping import Phase, Rest, StopReport, stop_members, stop_server
from orchestrator.agent.wire import ManagerKind
from tests.agent.box import Box, is_running, wait_for
from tests.rig.network import free_port

POLICY = wire.Policy(drain=1.0, grace=10.0, clean=10.0)
RETURN_SECONDS = 0.3
"""From the last process's end to the return of a stop."""


def ignore(_phase: str, _detail: str) -> None:
    pass


def phases(report: StopReport) -> list[str]:
    return [stage.name for stage in report.stages]


@pytest.mark.slow
def test_idle_server_goes_by_itself_and_the_stop_returns_at_once(box: Box) -> None:
    server = box.serve(free_port(), exit_after=0.5)
    report = stop_server(server, POLICY, ignore, load=lambda: 0)
    assert report.last_end is not None
    assert time.monotonic() - report.last_end <= RETURN_SECONDS
    assert not any(is_running(member.pid) for member in server.members)
    assert report.killed == report.abandoned == []
    assert Phase.KILLING not in phases(report)
    assert 0.5 <= report.seconds < 5


def test_what_lingers_after_its_schedulers_is_not_waited_for_where_seconds_count(box: Box) -> None:
    server = box.serve(free_port(), lingers=30)
    report = stop_server(server, dataclasses.replace(POLICY, grace=60), ignore, load=lambda: 0, rest=Rest(0.1))
    assert phases(report) == [Phase.DRAINING, Phase.GRACE, Phase.REST]
    assert report.seconds < 10
    assert report.killed == []
    assert [name for name in report.not_awaited if "launch_server" in name]
    assert "were not waited for" in report.summary
    assert report.requests_lost == 0
    assert not any(is_running(member.pid) for member in server.members)


def test_a_server_that_says_it_is_done_is_not_waited_for_where_nothing_is_to_be_released(box: Box) -> None:
    server = box.serve(free_port(), exit_after=30)
    rest = Rest(0.0, releases=False, done=lambda: True)
    report = stop_server(server, dataclasses.replace(POLICY, grace=60), ignore, load=lambda: 2, rest=rest)
    assert report.seconds < 10
    assert len(report.not_awaited) >= 3
    assert not any(is_running(member.pid) for member in server.members)


@pytest.mark.slow
def test_schedulers_that_release_gpu_memory_are_waited_for_though_the_server_says_that_it_is_done(box: Box) -> None:
    server = box.serve(free_port(), exit_after=1.5, lingers=30)
    report = stop_server(server, dataclasses.replace(POLICY, grace=60), ignore, load=lambda: 0, rest=Rest(0.0, done=lambda: True))
    assert 1.5 <= report.seconds < 10
    assert report.requests_lost == 0


@pytest.mark.slow
def test_what_lingers_after_its_schedulers_has_the_whole_grace_otherwise(box: Box) -> None:
    server = box.serve(free_port(), lingers=1.5)
    report = stop_server(server, POLICY, ignore, load=lambda: 0)
    assert phases(report) == [Phase.DRAINING, Phase.GRACE]
    assert report.seconds >= 1.5
    assert report.killed == report.not_awaited == []


def test_stop_touches_no_other_server(box: Box) -> None:
    neighbour = box.serve(free_port())
    server = box.serve(free_port())
    stop_server(server, POLICY, ignore)
    assert all(is_running(member.pid) for member in neighbour.members)
    assert find_server(neighbour.port) is not None


def test_stop_while_loading_leaves_no_orphan(box: Box) -> None:
    server = box.serve(free_port(), loading=True, escape=True)
    report = stop_server(server, POLICY, ignore)
    assert Phase.ORPHANS in phases(report)
    assert not any(is_running(member.pid) for member in server.members)
    assert report.seconds < 8


@pytest.mark.slow
def test_server_that_ignores_sigterm_is_killed_after_the_grace(box: Box) -> None:
    server = box.serve(free_port(), ignore_term=True)
    report = stop_server(server, dataclasses.replace(POLICY, grace=0.5), ignore)
    assert phases(report)[-1] == Phase.KILLING
    assert any("launch_server" in name for name in report.killed)
    assert not any(is_running(member.pid) for member in server.members)
    assert report.abandoned == []


def test_stopped_server_is_woken(box: Box) -> None:
    server = box.serve(free_port())
    os.kill(server.main.pid, signal.SIGSTOP)
    report = stop_server(server, wire.Policy(grace=60), ignore)
    assert report.killed == []
    assert report.seconds < 60


@pytest.mark.slow
def test_drain_waits_for_requests_then_aborts_them(box: Box) -> None:
    server = box.serve(free_port(), exit_after=2.5)
    aborted: list[float] = []
    seen: list[str] = []
    report = stop_server(
        server, POLICY, lambda phase, _: seen.append(phase), load=lambda: 2, abort=lambda: aborted.append(time.monotonic())
    )
    assert phases(report)[:3] == [Phase.DRAINING, Phase.ABORTING, Phase.GRACE]
    assert report.requests_left == report.requests_lost == 2
    assert len(aborted) >= 2, "new requests are accepted while it drains, so one abort is not enough"
    assert seen[-1] == Phase.ENDED


@pytest.mark.slow
def test_drain_ends_when_the_requests_have(box: Box) -> None:
    server = box.serve(free_port(), exit_after=1.0)
    answers = iter([1, None, 0])
    report = stop_server(server, dataclasses.replace(POLICY, drain=30), ignore, load=lambda: next(answers))
    assert report.requests_left == report.requests_lost == 0
    assert next(answers, "asked to the end") == "asked to the end"


@pytest.mark.slow
def test_requests_that_are_not_to_be_aborted_go_on_through_the_grace_and_are_counted_when_they_are_cut(box: Box) -> None:
    server = box.serve(free_port(), ignore_term=True)
    policy = dataclasses.replace(POLICY, drain=0.3, grace=0.6, drain_end=wire.DrainEnd.STOP)
    aborted: list[int] = []
    report = stop_server(server, policy, ignore, load=lambda: 3, abort=lambda: aborted.append(1))
    assert phases(report) == [Phase.DRAINING, Phase.GRACE, Phase.KILLING]
    assert aborted == []
    assert report.requests_lost == 3


def test_what_a_server_does_not_say_is_unknown(box: Box) -> None:
    assert stop_server(box.serve(free_port()), POLICY, ignore).requests_lost is None


def test_stop_is_carried_to_its_end_though_the_server_answers_nonsense(box: Box) -> None:
    def broken() -> int:
        raise ConnectionResetError

    server = box.serve(free_port())
    stop_server(server, POLICY, ignore, load=broken, abort=broken)
    assert not any(is_running(member.pid) for member in server.members)


def test_unsupported_manager_is_refused_before_anything_is_touched(box: Box) -> None:
    server = box.serve(free_port())
    managed = dataclasses.replace(server, manager=wire.Manager(ManagerKind.UNSUPPORTED, "docker"))
    with pytest.raises(AgentRefusal, match="docker"):
        stop_server(managed, POLICY, ignore)
    assert all(is_running(member.pid) for member in server.members)


def test_leftovers_of_a_launch_are_ended_without_their_main_process(box: Box) -> None:
    server = box.serve(free_port(), loading=True, escape=True, marker="20260101T000000-stop")
    os.kill(server.main.pid, signal.SIGKILL)
    wait_for("main's end", lambda: not is_running(server.main.pid))
    report = stop_members(lambda: launch_members("20260101T000000-stop"), POLICY, ignore)
    assert not any(is_running(member.pid) for member in server.members)
    assert report.abandoned == []


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(FREEZER, os.W_OK), reason="needs root and the v1 freezer, which makes a process that SIGKILL can't end")
@pytest.mark.slow
def test_process_that_cannot_be_killed_is_abandoned_and_named(box: Box) -> None:
    server = box.serve(free_port())
    child = next(member for member in server.members if "spawn_main" in member.title)
    group = FREEZER / f"orchestrator-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(child.pid))
        (group / "freezer.state").write_text("FROZEN")
        began = time.monotonic()
        report = stop_server(server, dataclasses.replace(POLICY, grace=0.5, clean=1.0), ignore)
        assert time.monotonic() - began < 5
        assert len(report.abandoned) == 1
        assert report.abandoned[0].startswith(f"{child.pid} ")
        assert "(state D)" in report.abandoned[0]
        assert "can't be ended" in report.summary
    finally:
        (group / "freezer.state").write_text("THAWED")
        wait_for("its end", lambda: not is_running(child.pid))
        wait_for("an empty group", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
