"""`fab relaunch` with the next server started beside the old one, over the lab's real SSH server and real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from orchestrator.agent import procfs
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import without_gate
from orchestrator.agent.estimate import read_past
from orchestrator.agent.journal import order_status, read_journal
from orchestrator.agent.private_files import write_private
from orchestrator.agent.wire import State
from orchestrator.lab.layout import Layout
from tests.lab.test_orders_go_on import kill_supervisor, wait_for_state
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, Operator, layout, operator, serve, serving, state
from tests.rig.documents import checked
from tests.rig.steady_client import ANSWERED, SteadyClient, steady_client

__all__ = ["layout", "operator"]

RELAUNCH = ("relaunch", "--no-measure", "--yes", "--accept-drift", "--force", "--json", "--backend")
UNHURRIED = {"SGLANG_STANDIN_TIME_SCALE": "0.2"}
"""Two seconds to the gate: time to do something meanwhile."""
RANKS = 2
"""Of each server; two are here at a time."""


@pytest.fixture(scope="module")
def staging(layout: Layout) -> Layout:
    """The lab with backends that come to grief at their gate, each by settings of the stand-in."""
    for name, environment in {
        "unhurried": UNHURRIED,
        "dies_before_gate": {"SGLANG_STANDIN_FAIL_AT": "gate"},
        "dies_at_gate": {"SGLANG_STANDIN_DIE_AT_GATE": "0.01"},
        "hangs_before_gate": {"SGLANG_STANDIN_HANG_AT": "gate"},
        "activated_early": {"SGLANG_STANDIN_ACTIVATED_EARLY": "1"},
        "activation_lost": {"SGLANG_STANDIN_ACTIVATION_LOST": "1"},
        "fails_late": {"SGLANG_STANDIN_FAIL_AT": "kv_cache"},
    }.items():
        write_backend(layout, name, {"environment": environment})
    write_backend(layout, "unknown_flag", {"arguments": {"--no-such-flag": "1"}})
    path = layout.inventory / "services" / "glm5-rtx6000.yml"
    service = yaml.safe_load(path.read_text(encoding="utf-8"))
    service["arguments"]["--tp-size"] = RANKS
    service["policy"]["load_stall"] = 5.0
    path.write_text(yaml.safe_dump(service), encoding="utf-8")
    return layout


def write_backend(layout: Layout, name: str, variant: dict[str, Any]) -> None:
    profile = {"name": name, "kind": "backend", "summary": "for a test", "variants": [{"sglang": ">=0.5.6", **variant}]}
    (layout.inventory / "backends" / f"{name}.yml").write_text(yaml.safe_dump(profile), encoding="utf-8")


@dataclass
class Box:
    """The lab's host with a server of ours, and somebody who relaunches it."""

    operator: Operator

    @property
    def layout(self) -> Layout:
        return self.operator.layout

    @property
    def port(self) -> int:
        (server,) = [server for server in serving(self.layout) if server.listening]
        return server.port

    @property
    def client_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def main(self) -> Any:
        """The main process of the one server that there is."""
        (server,) = serving(self.layout)
        return server.main.id

    def relaunch(self, backend: str, *flags: str) -> tuple[int, dict[str, Any]]:
        done = self.operator.run(*RELAUNCH, backend, *flags)
        assert done.stdout, done.stderr
        return done.returncode, checked(done.stdout)

    @contextmanager
    def relaunching(self, backend: str) -> Iterator[Relaunching]:
        """A relaunch beside the test that has come to STAGING; the operator's process is ended with the block."""
        folder = state(self.layout)
        before = folder.order_ids()
        command = self.operator.command(*RELAUNCH, backend)
        process = subprocess.Popen(
            command,
            env=self.operator.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert wait_until(lambda: len(folder.order_ids()) > len(before), Deadline(PATIENCE))
            order_id = folder.order_ids()[-1]
            wait_for_state(folder, order_id, State.STAGING)
            yield Relaunching(self.layout, process, order_id)
        finally:
            process.kill()
            process.communicate()

    def states(self, order_id: str | None = None) -> list[str]:
        return [entry.state for entry in self.journal(order_id)]

    def journal(self, order_id: str | None = None) -> list[Any]:
        folder = state(self.layout)
        return read_journal(folder.order_folder(order_id or folder.order_ids()[-1]) / "journal.jsonl")

    def moment(self, wanted: str) -> float:
        """When the newest order first came into a state, on the monotonic clock."""
        return float(next(entry.monotonic for entry in self.journal() if entry.state == wanted))


@dataclass
class Relaunching:
    """A relaunch whose new server is on the way to its gate."""

    layout: Layout
    process: subprocess.Popen[str]
    order_id: str

    @property
    def gate(self) -> int:
        journal = read_journal(state(self.layout).order_folder(self.order_id) / "journal.jsonl")
        return next(int(entry.data["gate_port"]) for entry in journal if entry.data.get("gate_port"))

    def wait_staged(self) -> None:
        assert wait_until(lambda: len(serving(self.layout)) == 2, Deadline(PATIENCE), 0.02)

    def result(self) -> tuple[int, dict[str, Any]]:
        output, errors = self.process.communicate(timeout=PATIENCE)
        assert output, errors
        return self.process.returncode, checked(output)


@pytest.fixture
def box(staging: Layout, operator: Operator) -> Box:
    """What a staged one of the stand-in takes is known: what real ones take, this machine may not have."""
    serve(operator, QUICK)
    folder = state(staging)
    for launch_id in folder.launch_ids()[-1:]:
        record = json.dumps({"ranks": RANKS, "resident": 256 << 20, "seconds": 1.0, "gpus": {}})
        write_private(folder.launch_folder(launch_id) / "footprint.json", record)
    return Box(operator)


def gate_is_closed(box: Box, order_id: str | None = None) -> bool:
    gates = [int(entry.data["gate_port"]) for entry in box.journal(order_id) if entry.data.get("gate_port")]
    return bool(gates) and not any(procfs.listening_pids(gate) for gate in gates)


def in_order(client: SteadyClient) -> bool:
    return all(request.outcome == ANSWERED for request in client.requests) and len(client.requests) > 1


def test_the_old_server_answers_until_it_is_stopped(box: Box) -> None:
    before = box.main()
    with steady_client(box.client_url, pause=0.02) as client:
        code, document = box.relaunch("flashinfer_cutlass")
    result = document["result"]
    assert (code, result["state"], result["staged"]) == (0, State.DONE, True)
    assert State.STAGING in box.states()
    assert State.ACTIVATING in box.states()
    assert State.STARTING not in box.states()
    assert client.answered_until(box.moment(State.DRAINING))
    assert client.gap().seconds < box.moment(State.VERIFIED) - box.moment(State.DRAINING)
    assert result["dark_seconds"] == pytest.approx(client.gap().seconds, abs=1.0)
    assert box.main() != before
    (server,) = serving(box.layout)
    assert server.launch_id == state(box.layout).verified_launch_id()
    remembered = read_past(state(box.layout)).switches[-1]
    assert (remembered.backend, remembered.staged, remembered.dark) == ("flashinfer_cutlass", True, result["dark_seconds"])
    assert remembered.load is not None
    assert 0 < remembered.load <= remembered.dark


def test_sequential_is_done_when_it_is_asked_for(box: Box) -> None:
    code, document = box.relaunch("marlin", "--sequential")
    result = document["result"]
    assert (code, result["staged"]) == (0, False)
    assert State.STAGING not in box.states()
    assert State.STARTING in box.states()
    remembered = read_past(state(box.layout)).switches[-1]
    assert (remembered.backend, remembered.staged, remembered.dark) == ("marlin", False, result["dark_seconds"])
    assert remembered.load is not None
    assert 0 < remembered.load <= remembered.dark


@pytest.mark.parametrize(
    ("backend", "category"),
    [
        ("unknown_flag", "argument_refused"),
        ("dies_before_gate", "out_of_memory"),
        ("dies_at_gate", None),
        ("hangs_before_gate", "stalled"),
        ("activated_early", "gate_opened"),
    ],
)
def test_what_goes_wrong_before_the_stop_costs_no_service(box: Box, backend: str, category: str | None) -> None:
    before = box.main()
    with steady_client(box.client_url, pause=0.02) as client:
        code, document = box.relaunch(backend)
    result = document["result"]
    assert (code, result["state"], result["service"]) == (3, State.REFUSED, "unchanged"), result
    assert category is None or result["failure"]["category"] == category
    assert box.main() == before
    assert in_order(client), client.counts()
    assert State.DRAINING not in box.states()
    assert gate_is_closed(box)


def test_a_stolen_gate_costs_no_service(box: Box) -> None:
    before = box.main()
    with box.relaunching("unhurried") as running, socket.socket() as thief:
        thief.bind(("127.0.0.1", running.gate))
        thief.listen()
        code, document = running.result()
        assert procfs.listening_pids(running.gate) == {os.getpid()}
    assert (code, document["result"]["state"], document["result"]["failure"]["category"]) == (3, State.REFUSED, "port_in_use")
    assert box.main() == before


def test_when_the_operator_is_killed_while_it_is_staged_it_goes_on(box: Box) -> None:
    before = box.main()
    with box.relaunching("unhurried") as running:
        os.killpg(running.process.pid, signal.SIGKILL)
        order_id = running.order_id

    def is_done() -> bool:
        status = order_status(state(box.layout), order_id)
        return status is not None and not status.live and status.state == State.DONE

    assert wait_until(is_done, Deadline(PATIENCE)), box.states(order_id)
    assert State.ACTIVATING in box.states(order_id)
    assert box.main() != before


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "category"), [("activation_lost", "not_activated"), ("fails_late", "out_of_memory_weights")])
def test_a_switch_that_fails_after_the_stop_goes_back_staged(box: Box, backend: str, category: str) -> None:
    (before,) = serving(box.layout)
    code, document = box.relaunch(backend)
    result = document["result"]
    assert (code, result["state"], result["failure"]["category"]) == (6, State.RESTORED, category)
    assert result["staged"]
    assert result["dark_seconds"] > 0
    (after,) = serving(box.layout)
    assert without_gate(after.main.arguments) == without_gate(before.main.arguments)
    assert after.main.id != before.main.id
    assert State.STARTING not in box.states()


@pytest.mark.slow
def test_an_order_whose_supervisor_was_killed_while_it_was_staged_is_resumed(box: Box) -> None:
    before = box.main()
    with box.relaunching("unhurried") as running:
        running.wait_staged()
        kill_supervisor(state(box.layout), running.order_id)
        order_id = running.order_id
    status = box.operator.ask("status")
    assert status["report"]["server"]["main"]["pid"] == before.pid
    done = box.operator.run("resume", "--json")
    result = checked(done.stdout)["result"]
    assert (done.returncode, result["order_id"], result["state"], result["staged"]) == (0, order_id, State.DONE, True), done.stderr
    assert box.main() != before


@pytest.mark.slow
def test_a_teardown_after_a_staging_that_was_cut_off_leaves_neither(box: Box) -> None:
    with box.relaunching("unhurried") as running:
        running.wait_staged()
        kill_supervisor(state(box.layout), running.order_id)
        order_id = running.order_id
    done = box.operator.run("teardown", "--yes")
    assert done.returncode == 0, done.stderr + done.stdout
    assert serving(box.layout) == []
    assert gate_is_closed(box, order_id)
