"""A launch that waits at its gate, beside an old server on the same port: real processes, real sockets."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import gate_firewall, gate_proof, http, procfs, wire
from orchestrator.agent.box_staging import BoxStaging
from orchestrator.agent.box_steps import BoxSteps
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import gate_port
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.processes import find_server, find_servers
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import LaunchFailed, Observed
from orchestrator.agent.wire import Outcome
from tests.agent.box import STANDIN, Box, is_running
from tests.rig.network import free_port

NEW, BEFORE = (f"gate-{os.getpid()}-{name}" for name in ("new", "before"))
"""Launches are found on the whole machine, where other tests may run too."""
POLICY = wire.Policy(drain=1.0, grace=5.0, clean=10.0, stage_total=30.0)


def ignore(_phase: str, _detail: str) -> None:
    pass


def go_on() -> None:
    pass


class Place:
    """A service with an old server on its port, and the steps of an order that replaces it."""

    def __init__(self, root: Path, box: Box) -> None:
        self.box = box
        self.root = root
        self.port = free_port()
        self.folder = StateFolder(str(root), "svc")
        self.folder.create()
        self.old = box.serve(self.port)
        self.steps = self.supervisor()
        self.steps.find()
        self._staged: list[wire.Launch] = []

    def supervisor(self, kind: str = wire.OrderKind.RELAUNCH, **policy: Any) -> BoxSteps:
        """The steps of a supervisor that has just been started."""
        given = dataclasses.replace(POLICY, **policy)
        new = None if kind == wire.OrderKind.TEARDOWN else self.launch()
        order = wire.Order("o1", kind, "svc", str(self.root), self.port, given, "ann@laptop", old=self.old.main.id, new=new)
        path = self.folder.order_folder("o1")
        path.mkdir(exist_ok=True)
        return BoxSteps(order, self.folder, path, lambda _: None)

    def launch(self, launch_id: str = NEW, **settings: Any) -> wire.Launch:
        environment = {"PYTHONPATH": str(STANDIN), "STANDIN": json.dumps(settings)}
        arguments = ["--port", str(self.port)]
        return wire.Launch(launch_id, "svc", "b", sys.executable, arguments, "127.0.0.1", self.port, environment=environment)

    def stage(self, launch_id: str = NEW, gate: int | None = None, **settings: Any) -> wire.Launch:
        launch = self.steps.with_gate(self.launch(launch_id, **settings))
        if gate is not None:
            launch = dataclasses.replace(launch, gate_port=gate)
        self._staged.append(launch)
        self.steps.stage(launch)
        return launch

    def staged(self, **settings: Any) -> wire.Launch:
        launch = self.stage(**settings)
        self.steps.wait_gate(launch, ignore, go_on)
        return launch

    def stop_old(self) -> None:
        """Free the port: a server that is let through its gate while another has it dies at once."""
        steps = self.supervisor()
        steps.find()
        steps.remember(Observed(), None)
        steps.stop(ignore, lambda *_: None)

    def fails(self, step: Callable[[], Any]) -> wire.Failure:
        with pytest.raises(LaunchFailed) as caught:
            step()
        return caught.value.failure

    def close(self) -> None:
        for launch in self._staged:
            self.steps.unstage(launch, ignore)


@pytest.fixture
def place(tmp_path: Path, box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(gate_proof, "SETTLE_SECONDS", 0.0)
    made = Place(tmp_path / "state", box)
    yield made
    made.close()


@pytest.fixture
def squatter() -> Iterator[int]:
    """A port on which another process listens."""
    program = "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\ntime.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_it_waits_beside_the_old_server_and_goes_on_when_the_port_is_free(place: Place) -> None:
    launch = place.stage()
    seen: list[tuple[str, str]] = []
    staged = place.steps.wait_gate(launch, lambda *told: seen.append(told), go_on)
    assert staged.launch == launch
    assert 0 < staged.seconds < 30
    assert seen[-1] == ("gate", f"it waits at port {launch.gate_port}")
    found = find_server(place.port)
    assert found is not None
    assert found.main.id == place.old.main.id, "the old server is the server"
    place.steps.still_staged(launch)
    assert place.steps.old_lives()

    place.stop_old()
    assert not place.steps.old_lives()
    assert {verdict.outcome for verdict in place.steps.clean(ignore)} == {Outcome.PASS}
    place.steps.still_staged(launch)
    place.steps.activate(launch, ignore)
    wait_until(lambda: http.listens("127.0.0.1", place.port), Deadline(10))
    now = find_server(place.port)
    assert now is not None
    assert (now.launch_id, now.listening, now.gate_port) == (NEW, True, launch.gate_port)
    place.steps.activate(launch, ignore)  # as a supervisor does that was killed just after it


def test_an_activation_takes_no_time_beyond_the_servers_own(place: Place) -> None:
    launch = place.staged()
    place.stop_old()
    began = time.monotonic()
    place.steps.activate(launch, ignore)
    assert time.monotonic() - began < 0.5


def test_a_supervisor_that_takes_over_finds_it_and_activates_it(place: Place) -> None:
    launch = place.staged()
    place.steps = place.supervisor()
    assert place.steps.old_lives()
    again = place.steps.stage(launch)
    staged = place.steps.wait_gate(launch, ignore, go_on)
    assert staged.seconds > 0
    assert len([server for server in find_servers() if server.launch_id == NEW]) == 1, "it was not started a second time"
    assert again["main"] == find_launch(NEW)
    place.stop_old()
    place.steps = place.supervisor()
    place.steps.activate(launch, ignore)


def test_a_supervisor_that_takes_over_closes_the_gate_again_as_nobody_knows_how_far_the_other_came(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    def close(_host: str, port: int) -> wire.Verdict:
        closed.append(port)
        return wire.Verdict("gate", Outcome.WARN, "open")

    monkeypatch.setattr(gate_firewall, "close", close)
    launch = place.stage()
    place.steps.wait_gate(launch, ignore, go_on)
    assert closed == [launch.gate_port]
    place.supervisor().wait_gate(launch, ignore, go_on)
    assert closed == [launch.gate_port] * 2


def find_launch(launch_id: str) -> wire.ProcessId | None:
    return next((server.main.id for server in find_servers() if server.launch_id == launch_id), None)


def test_a_port_that_somebody_else_has_is_told_at_once_though_the_log_says_that_it_waits(place: Place, squatter: int) -> None:
    launch = place.stage(gate=squatter)
    failure = place.fails(lambda: place.steps.wait_gate(launch, ignore, go_on))
    assert failure.category == Category.PORT_IN_USE
    assert f"port {squatter}, which was to be the new server's gate, is held by another process" in failure.summary
    assert failure.retry


def test_one_that_dies_at_its_gate_is_told_with_how_it_ended(place: Place) -> None:
    launch = place.stage(dies_at_gate=1.0)
    ended = place.folder.launch_folder(NEW) / "exit"

    def look() -> None:
        place.steps.wait_gate(launch, ignore, go_on)
        wait_until(lambda: bool(ended.read_text()), Deadline(10))
        place.steps.still_staged(launch)

    failure = place.fails(look)
    assert failure.exit_status == "exited 3"
    assert is_running(place.old.main.pid)


def test_one_that_somebody_else_activates_is_a_failure_of_its_own(place: Place) -> None:
    launch = place.staged()
    assert http.Client(int(launch.gate_port or 0)).post("/gate/activate", {}).status == 200
    wait_until(lambda: "activated" in (place.folder.launch_folder(NEW) / "server.log").read_text(), Deadline(10))
    assert place.fails(lambda: place.steps.still_staged(launch)).category == Category.GATE_OPENED


def test_one_that_somebody_else_activated_is_so_too_when_it_has_ended_since_at_the_old_servers_port(place: Place) -> None:
    launch = place.staged()
    ended = place.folder.launch_folder(NEW) / "exit"
    assert http.Client(int(launch.gate_port or 0)).post("/gate/activate", {}).status == 200
    assert wait_until(lambda: ended.exists() and bool(ended.read_text()), Deadline(30))
    failure = place.fails(lambda: place.steps.still_staged(launch))
    assert failure.category == Category.GATE_OPENED
    assert failure.evidence[-1].startswith("since then: ")


def test_one_that_does_not_wait_is_noticed_before_the_old_server_is_touched(place: Place) -> None:
    launch = place.stage(opens_itself=0.0)
    log = place.folder.launch_folder(NEW) / "server.log"
    wait_until(lambda: "activated" in log.read_text(), Deadline(10))
    assert place.fails(lambda: place.steps.wait_gate(launch, ignore, go_on)).category == Category.GATE_OPENED


def test_one_that_somebody_else_activated_at_once_goes_on_only_when_it_looks_and_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang looks once a second."""
    monkeypatch.setattr(gate_proof, "SETTLE_SECONDS", 10.0)
    launch = place.stage(opens_itself=1.0)
    assert place.fails(lambda: place.steps.wait_gate(launch, ignore, go_on)).category == Category.GATE_OPENED
    assert is_running(place.old.main.pid)


def test_where_the_old_server_has_died_nobody_waits_at_an_open_gate(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_proof, "SETTLE_SECONDS", 300.0)
    launch = place.stage()
    os.kill(place.old.main.pid, 9)
    assert wait_until(lambda: not place.steps.old_lives(), Deadline(5))
    place.steps.wait_gate(launch, ignore, go_on)


@pytest.mark.slow
def test_one_that_does_not_take_its_activation_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.gate_proof.ACTIVATE_SECONDS", 2.0)
    launch = place.staged(deaf=True)
    assert place.fails(lambda: place.steps.activate(launch, ignore)).category == Category.NOT_ACTIVATED


def test_without_a_log_that_tells_the_gates_own_answer_counts(place: Place) -> None:
    launch = place.staged(silent=True)
    place.steps.still_staged(launch)
    place.stop_old()
    place.steps.activate(launch, ignore)
    assert wait_until(lambda: "ready" in (place.folder.launch_folder(NEW) / "server.log").read_text(), Deadline(10))


def test_the_way_to_the_gate_has_a_limit_of_its_own(place: Place, squatter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place.steps = place.supervisor(stage_total=1.0)
    monkeypatch.setattr("orchestrator.agent.gate_proof.procfs.listeners", lambda *_: [])
    launch = place.stage(gate=squatter)
    failure = place.fails(lambda: place.steps.wait_gate(launch, ignore, go_on))
    assert failure.category == Category.TIMED_OUT
    assert "policy: stage_total" in failure.summary


def test_what_the_pulse_raises_ends_the_wait(place: Place) -> None:
    class StopHere(Exception):  # noqa: N818
        pass

    def stop() -> None:
        raise StopHere

    launch = place.stage()
    with pytest.raises(StopHere):
        place.steps.wait_gate(launch, ignore, stop)


def test_unstaging_leaves_the_old_server_alone_and_nothing_of_the_other(place: Place) -> None:
    launch = place.staged()
    members = next(server.members for server in find_servers() if server.launch_id == NEW)
    (verdict,) = place.steps.unstage(launch, ignore)
    assert verdict.outcome == Outcome.PASS
    assert not any(is_running(member.pid) for member in members)
    assert all(is_running(member.pid) for member in place.old.members)
    assert place.steps.unstage(launch, ignore) == [wire.Verdict("staged", Outcome.PASS, "nothing of the staged server is left")], "again"


def test_a_stop_of_the_old_server_touches_nothing_of_the_staged_one(place: Place) -> None:
    launch = place.staged()
    members = next(server.members for server in find_servers() if server.launch_id == NEW)
    place.steps.remember(Observed(), None)
    place.steps.stop(ignore, lambda *_: None)
    assert all(is_running(member.pid) for member in members)
    place.steps.still_staged(launch)


def test_an_old_server_that_has_died_by_itself_is_seen_and_its_stop_goes_through(place: Place) -> None:
    launch = place.staged()
    place.steps.remember(Observed(), None)
    os.kill(place.old.main.pid, 9)
    assert wait_until(lambda: not place.steps.old_lives(), Deadline(5))
    place.steps.stop(ignore, lambda *_: None)
    assert {verdict.outcome for verdict in place.steps.clean(ignore)} == {Outcome.PASS}
    place.steps.activate(launch, ignore)


@pytest.mark.slow
def test_what_is_staged_alone_is_found_and_a_teardown_ends_it(place: Place) -> None:
    place.staged()
    os.kill(place.old.main.pid, 9)
    wait_until(lambda: not any(is_running(member.pid) for member in place.old.members), Deadline(5))
    found = find_server(place.port)
    assert found is not None
    assert (found.launch_id, found.listening) == (NEW, False)
    assert place.steps.find() is not None
    teardown = place.supervisor(wire.OrderKind.TEARDOWN)
    teardown._order = dataclasses.replace(teardown._order, old=found.main.id)
    teardown.find()
    assert teardown.capture().launch.gate_port is None
    teardown.stop(ignore, lambda *_: None)
    assert {verdict.outcome for verdict in teardown.clean(ignore)} == {Outcome.PASS}
    assert find_launch(NEW) is None


@pytest.mark.slow
def test_an_old_server_that_comes_back_beside_a_staged_one_is_the_server_while_it_loads(place: Place, box: Box) -> None:
    place.staged()
    os.kill(place.old.main.pid, 9)
    wait_until(lambda: not any(is_running(member.pid) for member in place.old.members), Deadline(5))
    back = box.serve(place.port, loading=True, log="back.log")
    found = find_server(place.port)
    assert found is not None
    assert (found.main.id, found.launch_id) == (back.main.id, None)


@pytest.mark.slow
def test_a_teardown_of_the_old_server_ends_what_was_left_at_a_gate_too(place: Place) -> None:
    place.staged()
    (place.folder.order_folder("o1") / "staged.json").unlink()  # another order's
    teardown = place.supervisor(wire.OrderKind.TEARDOWN)
    teardown.find()
    teardown.remember(Observed(), None)
    teardown.stop(ignore, lambda *_: None)
    assert {verdict.outcome for verdict in teardown.clean(ignore)} == {Outcome.PASS}
    assert find_servers() == [] or find_launch(NEW) is None


@pytest.mark.slow
def test_what_an_order_that_was_cut_off_has_left_is_ended_before_another_is_staged(place: Place) -> None:
    place.stage(BEFORE)
    (place.folder.order_folder("o1") / "staged.json").unlink()
    place.steps = place.supervisor()
    place.staged()
    assert find_launch(BEFORE) is None
    assert find_launch(NEW) is not None
    assert is_running(place.old.main.pid)


def test_the_record_has_the_gate_and_the_way_back_has_none(place: Place) -> None:
    launch = place.staged()
    record = place.folder.read_launch(NEW)
    assert record == launch
    server = next(server for server in find_servers() if server.launch_id == NEW)
    assert gate_port(server.main.arguments) == launch.gate_port


@pytest.mark.slow
def test_two_servers_of_which_neither_has_a_gate_are_still_refused(place: Place, box: Box) -> None:
    os.kill(place.old.main.pid, 9)
    wait_until(lambda: not http.listens("127.0.0.1", place.port), Deadline(5))
    for log in ("one.log", "two.log"):
        box.serve(place.port, loading=True, log=log)
    with pytest.raises(AgentRefusal, match="2 SGLang servers"):
        find_server(place.port)


HOST = """
import json, sys
from orchestrator.agent import gate_firewall, wire
gate_firewall.sweep()
print(json.dumps([wire.to_json(gate_firewall.close("0.0.0.0", int(sys.argv[1]))), wire.to_json(gate_firewall.who_can_reach("0.0.0.0"))]))
"""


@pytest.fixture
def apart() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a command in a network namespace that a second one reaches under 10.77.0.1; without nftables, or root, nothing."""
    if os.geteuid() != 0 or gate_firewall._program() is None:
        pytest.skip("needs root and nftables")
    names = [f"gate-test-{os.getpid()}-{side}" for side in ("in", "out")]
    inside, outside = names

    def run(*words: str, where: str = inside, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ip", "netns", "exec", where, *words], check=check, capture_output=True, text=True, **more)

    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "link", "add", "g0", "netns", inside, "type", "veth", "peer", "name", "g1", "netns", outside], check=True)
        for name, link, address in ((inside, "g0", "10.77.0.1/24"), (outside, "g1", "10.77.0.2/24")):
            run("ip", "address", "add", address, "dev", link, where=name)
            run("ip", "link", "set", link, "up", where=name)
            run("ip", "link", "set", "lo", "up", where=name)
        yield lambda *words, out=False, **more: run(*words, where=outside if out else inside, **more)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def test_nftables_closes_a_gate_to_other_machines_and_what_is_left_of_dead_ones_goes(
    apart: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    port = 15555
    listener = "import socket, sys, time\ns = socket.create_server(('0.0.0.0', 15555))\nprint(1, flush=True)\ntime.sleep(300)"
    connect = "import socket, sys\nsocket.create_connection((sys.argv[1], 15555), 1.0)"

    def reaches(address: str, *, out: bool) -> bool:
        return apart(sys.executable, "-c", connect, address, out=out, check=False).returncode == 0

    with subprocess.Popen(["ip", "netns", "exec", namespace_of(apart), sys.executable, "-c", listener], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert reaches("10.77.0.1", out=True)
            apart("nft", "add", "table", "inet", "orchestrator_gate_15554")
            apart("nft", "add", "table", "inet", "somebodys")
            closed, will_be = json.loads(apart(sys.executable, "-c", HOST, str(port)).stdout)
            assert (closed["outcome"], will_be["outcome"]) == (Outcome.PASS, Outcome.PASS)
            assert not reaches("10.77.0.1", out=True)
            assert reaches("10.77.0.1", out=False)
            assert reaches("127.0.0.1", out=False)
            assert apart("nft", "list", "tables").stdout.split("\n")[:2] == ["table inet somebodys", f"table inet orchestrator_gate_{port}"]
            apart(sys.executable, "-c", "from orchestrator.agent import gate_firewall\ngate_firewall.sweep()")
            assert reaches("10.77.0.1", out=True)
        finally:
            process.kill()


def namespace_of(apart: Callable[..., subprocess.CompletedProcess[str]]) -> str:
    return apart("ip", "netns", "identify").stdout.strip()


def test_a_gate_on_loopback_needs_no_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is run")

    monkeypatch.setattr(gate_firewall, "run_bounded", never)
    for host in ("127.0.0.1", "localhost", "::1"):
        assert gate_firewall.close(host, 1).outcome == gate_firewall.who_can_reach(host).outcome == Outcome.PASS


def test_where_nftables_is_missing_it_is_said_who_reaches_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_firewall, "_program", lambda: None)
    for verdict, where in ((gate_firewall.close("0.0.0.0", 4711), "gate 4711"), (gate_firewall.who_can_reach("10.1.2.3"), "10.1.2.3")):
        assert verdict.outcome == Outcome.WARN
        assert where in verdict.detail


def test_a_gate_has_a_port_that_nobody_has(tmp_path: Path) -> None:
    launch = wire.Launch("l1", "svc", "b", "/py", ["--port", "30000"], "127.0.0.1", 30000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        order = wire.Order("o1", wire.OrderKind.RELAUNCH, "svc", str(tmp_path), 30000, POLICY, "ann")
        staging = BoxStaging(order, StateFolder(str(tmp_path), "svc"), tmp_path, lambda _: None, lambda _: [])
        chosen = {staging.with_gate(launch).gate_port for _ in range(5)}
        assert len(chosen) > 1
        assert not chosen & {taken.getsockname()[1], 30000, None}
        assert not procfs.listeners(next(iter(chosen)) or 0)
