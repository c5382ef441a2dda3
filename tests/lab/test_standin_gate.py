"""A launch of the stand-in that waits at its gate, against what the real 0.5.23 did there."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import procfs
from tests.lab.conftest import Answer, Standin, free_port

Start = Callable[..., Standin]

CAPTURES = Path(__file__).parents[1] / "data/captures/cpu-0.5.23"
WAITING = "Gated launch waiting for activation. rank=0"


class Gated:
    """A stand-in with a gate."""

    def __init__(self, server: Standin, port: int) -> None:
        self.server = server
        self.port = port

    def ask(self, path: str, *, post: bool = False) -> Answer:
        return Standin(self.server.process, self.port, Path()).ask(path, {} if post else None)

    def activate(self) -> Answer:
        return self.ask("/gate/activate", post=True)

    def wait(self) -> Gated:
        self.server.wait_for(lambda: self.ask("/health").status == 200, "the gate")
        return self


@pytest.fixture
def start_gated(start: Start) -> Callable[..., Gated]:
    def run(*arguments: str, gate: int | None = None, **settings: object) -> Gated:
        port = gate or free_port()
        return Gated(start("--gated-launch-port", str(port), *arguments, **settings), port)

    return run


StartGated = Callable[..., Gated]


def test_it_waits_at_its_gate_until_it_is_activated_and_the_gate_lives_on(start_gated: StartGated) -> None:
    gated = start_gated().wait()
    server = gated.server
    assert gated.ask("/health").body == b"OK"
    assert (gated.ask("/").status, gated.ask("/gate/activate").status, gated.ask("/health", post=True).status) == (404, 405, 405)
    assert server.ask("/health").status == 0
    assert procfs.listening_pids(gated.port) == {server.member("sglang::scheduler").pid}
    server.wait_for_log("Gated launch still waiting for activation. rank=0 elapsed=")
    assert "Load weight begin." not in server.log

    answer = gated.activate()

    assert (answer.status, answer.body) == (200, b"OK")
    server.wait_ready()
    assert server.ask("/generate", {"text": "about", "sampling_params": {"max_new_tokens": 2}}).status == 200
    assert gated.ask("/health").body == b"OK"
    assert gated.activate().body == b"OK"
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert gated.ask("/health").status == 0


def test_an_old_server_keeps_the_port_until_the_activation(start: Start, start_gated: StartGated) -> None:
    old = start().wait_ready()
    port = free_port()
    new = start("--gated-launch-port", str(port), port=old.port)
    gated = Gated(new, port).wait()
    assert old.ask("/health").status == 200
    old.end()
    gated.activate()
    new.wait_ready()
    assert new.ask("/health").status == 200


def test_its_lines_are_the_real_ones(start_gated: StartGated) -> None:
    gated = start_gated().wait()
    gated.server.wait_for_log("still waiting")
    gated.activate()
    gated.server.wait_ready()
    assert gate_lines(gated.server.log) == gate_lines((CAPTURES / "gate.log").read_text(encoding="utf-8"))


def gate_lines(log: str) -> list[str]:
    """The lines of the gate and those around it, without times and numbers; one that is repeated counts once."""
    kept: list[str] = []
    for line in log.splitlines():
        text = re.sub(r"-?[\d.]+", "N", line.partition("] ")[2])
        if re.match(r"Init parallel (begin|ends)|Gated launch|Memory baseline|Load weight begin", text) and text not in kept:
            kept.append(text.partition(" avail mem")[0])
    return kept


def test_every_rank_waits_and_holds_little(start_gated: StartGated, tmp_path: Path) -> None:
    gated = start_gated("--tp-size", "2", compute_capability="10.0", gpu_memory_mib=183359).wait()
    for rank in (0, 1):
        gated.server.wait_for_log(f"Gated launch waiting for activation. rank={rank}")

    def held() -> list[int]:
        records = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "processes").glob("*.json")]
        return [record["memory_mib"] for record in records if record["role"] == "scheduler"]

    assert held() == [600, 600]
    gated.activate()
    gated.server.wait_ready()
    assert gated.server.log.count("Gated launch activated. elapsed=") == 2
    assert min(held()) > 50_000


def test_with_its_port_taken_it_says_that_it_waits_and_waits_for_ever(start_gated: StartGated) -> None:
    port = free_port()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", port))
        thief.listen()
        gated = start_gated(gate=port)
        gated.server.wait_for_log("still waiting")
        assert f"Gated launch control server started on 127.0.0.1:{port}" in gated.server.log
        taken = f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): address already in use\n"
        assert taken in gated.server.log
    time.sleep(0.2)
    assert gated.ask("/health").status == 0
    assert gated.server.process.poll() is None


def test_an_earlier_version_does_not_know_the_flag(start: Start) -> None:
    server = start("--gated-launch-port", "30001", version="0.5.19")
    assert server.exit_code() == 2
    assert "sglang serve: error: unrecognized arguments: --gated-launch-port 30001" in server.log
    assert start(version="0.5.19").wait_ready().ask("/server_info").json()["version"] == "0.5.19"


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ({"hang_at": "gate"}, "Init parallel ends."),
        ({"activation_lost": True}, "still waiting"),
    ],
    ids=["hangs before its gate", "activation is lost"],
)
def test_it_stays_there(start_gated: StartGated, settings: dict[str, object], last: str) -> None:
    gated = start_gated(**settings)
    gated.server.wait_for_log(last)
    if "activation_lost" in settings:
        assert gated.wait().activate().body == b"OK"
    time.sleep(0.5)
    assert (gated.ask("/health").status == 200) is ("activation_lost" in settings)
    assert gated.server.process.poll() is None
    assert "Load weight begin." not in gated.server.log


@pytest.mark.parametrize("settings", [{"fail_at": "gate"}, {"die_at_gate": 0.3}], ids=["raises before it", "dies at it"])
def test_it_dies_there(start_gated: StartGated, settings: dict[str, object]) -> None:
    gated = start_gated(**settings)
    assert gated.server.exit_code() in (1, -9)
    assert ("Gated launch" in gated.server.log) is ("die_at_gate" in settings)
    gated.server.wait_for(lambda: not gated.server.members(), "its children")


def test_somebody_else_may_activate_it(start_gated: StartGated) -> None:
    server = start_gated(activated_early=True).server.wait_ready()
    assert server.log.index("Gated launch waiting") < server.log.index("Gated launch activated") < server.log.index("Load weight begin.")


def test_faults_of_the_gate_do_not_meet_a_launch_without_one(start: Start) -> None:
    start(hang_at="gate", die_at_gate=0.01).wait_ready()


def test_sigterm_at_the_gate_ends_all_of_it_at_once(start_gated: StartGated) -> None:
    """Its children die with their parent by then: no orphans go on, as they would from an earlier SIGTERM."""
    gated = start_gated().wait()
    gated.server.wait_for(lambda: "sglang::detokenizer" in gated.server.titles(), "the last import")
    gated.server.signal(signal.SIGTERM)
    assert gated.server.exit_code() == -15
    gated.server.wait_for(lambda: not gated.server.members(), "its children's end")
    assert "Draining" not in gated.server.log
