"""One server over the lab's two hosts, with the stand-in's ranks: the flows, the supervisors and their meetings are the real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import argument_value, is_scheduler
from orchestrator.agent.journal import read_journal
from orchestrator.agent.processes import Server, find_servers
from orchestrator.lab import control
from orchestrator.lab.layout import Layout
from tests.lab.conftest import free_port

HEAD, OTHER = "lab-rtx6000", "lab-b200"
SERVICE = "wide"
PATIENCE = 120.0


@dataclass(frozen=True)
class Pair:
    """The service over both hosts."""

    layout: Layout
    runs: Path
    ports: tuple[int, int]

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words, "--service", SERVICE]

    @property
    def environment(self) -> dict[str, str]:
        found = {"ORCHESTRATOR_INVENTORY": str(self.layout.inventory), "ORCHESTRATOR_RUNS": str(self.runs), "NO_COLOR": "1"}
        return {**os.environ, **found, "LAB_API_KEY": "canary-7Qx$%v/hunter2"}

    def ask(self, *words: str, code: int = 0) -> Any:
        done = subprocess.run(
            self.argv(*words, "--json"), env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == code, f"{done.returncode}\n{done.stderr[-6000:]}"
        return json.loads(done.stdout)

    def servers(self) -> list[Server]:
        """The parts that run, by rank."""
        found = [server for server in find_servers() if server.port in self.ports]
        return sorted(found, key=lambda server: self.ports.index(server.port))

    def backends(self) -> list[str | None]:
        return [argument_value(server.main.arguments, "--moe-runner-backend") for server in self.servers()]

    def answers(self) -> bool:
        body = json.dumps({"text": "hello", "sampling_params": {"max_new_tokens": 2}}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[0]}/generate", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20.0) as answer:
            return bool(answer.status == 200)

    def last_orders(self) -> list[list[str]]:
        """The states of the newest order on each host."""
        folders = [sorted((self.layout.state_root(host) / SERVICE / "orders").iterdir())[-1] for host in (HEAD, OTHER)]
        assert folders[0].name == folders[1].name, "one order has one id"
        return [[entry.state for entry in read_journal(folder / "journal.jsonl")] for folder in folders]

    def states(self, host: str) -> list[str]:
        """The states of the newest order on a host."""
        folder = sorted((self.layout.state_root(host) / SERVICE / "orders").iterdir())[-1]
        return [entry.state for entry in read_journal(folder / "journal.jsonl")]

    def supervisor(self, host: str) -> int:
        """The process that carries out the newest order on a host."""
        folder = sorted((self.layout.state_root(host) / SERVICE / "orders").iterdir())[-1]
        ending = f"\0{folder / 'supervise.py'}\0{folder}\0".encode()
        return next(int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path).endswith(ending))

    def begin_relaunch(self, *more: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Begin to change the backend; what it will be, and the operator's process."""
        backend = "auto" if self.backends()[0] == "flashinfer_cutlass" else "flashinfer_cutlass"
        argv = self.argv("relaunch", "--backend", backend, "--yes", *more)
        folder = self.layout.state_root(HEAD) / SERVICE / "orders"
        orders = len(list(folder.iterdir()))
        running = subprocess.Popen(argv, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert wait_until(lambda: len(list(folder.iterdir())) > orders, Deadline(PATIENCE), 0.05), "the order was not submitted"
        return backend, running

    def wait_for(self, host: str, *states: str) -> None:
        """Until the newest order on a host has been in one of these states."""
        assert wait_until(lambda: bool(set(states) & set(self.states(host))), Deadline(PATIENCE), 0.02), self.states(host)

    def serving(self) -> None:
        if len(self.servers()) != 2:
            self.ask("teardown", "--yes")
            self.ask("launch", "--backend", "auto", "--yes")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("nodes")
    try:
        control.up(folder / "lab")
        layout = Layout.of(folder / "lab")
        ports, meeting = (free_port(), free_port()), free_port()
        services = layout.inventory / "services"
        described = yaml.safe_load(next(path for path in services.iterdir() if HEAD in path.read_text(encoding="utf-8")).read_text())
        described |= {"name": SERVICE, "port": ports[0], "dist_init_addr": f"127.0.0.1:{meeting}"}
        described["nodes"] = [{"host": OTHER, "place": described.get("place", "container"), "port": ports[1]}]
        described["policy"] = {
            **described.get("policy", {}),
            "generations": 1,
            "grace": 3.0,
            "load_stall": 120.0,
            "load_total": 240.0,
        }
        described.pop("secrets", None)
        described.pop("boot", None)
        (services / f"{SERVICE}.yml").write_text(yaml.safe_dump(described), encoding="utf-8")
        yield Pair(layout, folder / "runs", ports)
    finally:
        control.down(folder / "lab")


def test_a_launch_starts_both_ranks(pair: Pair) -> None:
    answer = pair.ask("launch", "--backend", "auto", "--yes")
    ranks = [argument_value(server.main.arguments, "--node-rank") for server in pair.servers()]
    assert ranks == ["0", "1"]
    head, other = (server.launch_id for server in pair.servers())
    assert other == f"{head}-rank1"
    assert pair.answers()
    assert "rank 1" in [verdict["check"] for verdict in answer["result"]["verdicts"]]
    status = pair.ask("status")
    assert [rank["survey"]["health"] for rank in status["other_ranks"]] == ["serving"]


def test_a_relaunch_changes_both_ranks(pair: Pair) -> None:
    pair.serving()
    pair.ask("relaunch", "--backend", "flashinfer_cutlass", "--yes", "--no-measure")
    assert pair.backends() == ["flashinfer_cutlass", "flashinfer_cutlass"]
    assert pair.answers()
    assert [states[-1] for states in pair.last_orders()] == ["DONE", "DONE"]


def test_a_rank_that_dies_while_it_loads_turns_all_back_with_nobody_watching(pair: Pair) -> None:
    pair.serving()
    before, old = pair.backends(), {server.main.pid for server in pair.servers()}
    other = "auto" if before[0] == "flashinfer_cutlass" else "flashinfer_cutlass"
    running = subprocess.Popen(
        pair.argv("relaunch", "--backend", other, "--yes", "--no-measure"),
        env=pair.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def newcomer() -> Server | None:
        return next((server for server in pair.servers() if server.port == pair.ports[1] and server.main.pid not in old), None)

    assert wait_until(lambda: newcomer() is not None, Deadline(PATIENCE), 0.02)
    running.kill()
    running.wait()
    found = newcomer()
    assert found is not None
    os.kill(found.main.pid, signal.SIGKILL)
    assert wait_until(lambda: {states[-1] for states in pair.last_orders()} <= wire.State.FINAL, Deadline(PATIENCE), 0.1)
    assert [states[-1] for states in pair.last_orders()] == ["RESTORED", "RESTORED"]
    assert pair.backends() == before
    assert pair.answers()


def test_a_rank_that_dies_after_it_was_ready_turns_all_back(pair: Pair) -> None:
    pair.serving()
    before = pair.backends()
    _, running = pair.begin_relaunch()
    pair.wait_for(HEAD, "VERIFIED")
    assert pair.states(HEAD)[-1] == "VERIFIED", "it was not timed for long enough"
    os.kill(pair.servers()[1].main.pid, signal.SIGKILL)
    assert running.wait(PATIENCE) == 6
    assert [states[-1] for states in pair.last_orders()] == ["RESTORED", "RESTORED"]
    assert pair.backends() == before
    assert pair.answers()


@pytest.mark.parametrize("killed", [(OTHER,), (HEAD,), (HEAD, OTHER)], ids=["rank 1", "rank 0", "both"])
def test_an_order_whose_supervisors_are_killed_is_taken_up_again_by_one_command(pair: Pair, killed: tuple[str, ...]) -> None:
    pair.serving()
    backend, running = pair.begin_relaunch("--no-measure")
    pair.wait_for(OTHER, "LOADING")
    for host in killed:
        os.kill(pair.supervisor(host), signal.SIGKILL)
    running.kill()
    running.wait()
    answer = pair.ask("resume")
    assert [states[-1] for states in pair.last_orders()] == ["DONE", "DONE"]
    assert {verdict["check"]: verdict["outcome"] for verdict in answer["result"]["verdicts"]}["rank 1"] == "pass"
    assert pair.backends() == [backend, backend]
    assert pair.answers()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_rank_whose_supervisor_is_killed_and_never_comes_back_leaves_nothing_half_started(pair: Pair) -> None:
    """Rank 0 waits for it for a minute; nobody can put that node's part back then, so nothing serves, and the order says so."""
    pair.serving()
    _, running = pair.begin_relaunch("--no-measure")
    pair.wait_for(OTHER, "LOADING")
    os.kill(pair.supervisor(OTHER), signal.SIGKILL)
    assert running.wait(2 * PATIENCE) == 7
    assert pair.states(HEAD)[-1] == "DOWN"
    pair.ask("resume", code=7)
    assert [states[-1] for states in pair.last_orders()] == ["DOWN", "DOWN"]
    assert pair.servers() == []
    pair.ask("launch", "--backend", "auto", "--yes")
    assert pair.answers()


def test_a_scheduler_that_dies_on_one_host_ends_both(pair: Pair) -> None:
    """Not ours to do, with no order at work, but SGLang's; what is ours is to say so, and to launch again."""
    pair.serving()
    scheduler = next(member for member in pair.servers()[1].members if is_scheduler(member))
    os.kill(scheduler.pid, signal.SIGKILL)
    assert wait_until(lambda: pair.servers() == [], Deadline(PATIENCE), 0.1)
    status = pair.ask("status")
    assert (status["report"]["health"], status["other_ranks"][0]["survey"]["health"]) == ("down", "down")


def test_a_teardown_ends_both(pair: Pair) -> None:
    pair.serving()
    pair.ask("teardown", "--yes")
    assert pair.servers() == []
    assert [states[-1] for states in pair.last_orders()] == ["DONE", "DONE"]
