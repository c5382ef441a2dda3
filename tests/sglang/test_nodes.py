"""One server over two containers, on SGLang's own distributed runtime (gloo): started, seen, changed, brought back and ended as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from tests.rig.bare_host import BareHost
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.inventory import login, write_backend, write_inventory
from tests.rig.network import Bridge
from tests.rig.operator import Operator
from tests.rig.sglang import ENVIRONMENT, SglangService, generate, healthy, listening_ports, sglang_processes
from tests.rig.tiny_model import write_model
from tests.rig.workspace import Workspace
from tests.sglang.stage import POLICY, describe_service, write_tiny_service

PORT, MEETING = 31021, 31555
HEAD, OTHER = "node0", "node1"


@dataclass(frozen=True)
class Pair:
    """The service `tiny` over two containers."""

    head: SglangService
    other: SglangService
    operator: Operator

    @property
    def url(self) -> str:
        """Where it takes requests."""
        return f"http://{self.head.container.address}:{PORT}"

    def both(self) -> tuple[SglangService, SglangService]:
        return self.head, self.other

    def mains(self) -> list[str]:
        """The command line of each node's main process; there is one on each."""
        found = [[each.title for each in sglang_processes(part) if f"--port {PORT}" in each.title] for part in self.both()]
        assert [len(titles) for titles in found] == [1, 1], found
        return [titles[0] for titles in found]

    def policies(self) -> list[str]:
        """What each node's part was started with, of what the backends set."""
        return [title.split("--schedule-policy")[1].split()[0] for title in self.mains()]

    def assert_gone(self) -> None:
        """Nothing of it is left on either node: no process, no listener."""
        for part in self.both():
            assert sglang_processes(part) == []
            assert not {PORT, MEETING, MEETING - 1} & listening_ports(part.container)

    def last_states(self) -> list[list[str]]:
        """The states of the newest order on each node; both have one id."""
        journals = [sorted(part.container.path("/var/lib/orchestrator/tiny/orders").glob("*/journal.jsonl"))[-1] for part in self.both()]
        assert journals[0].parent.name == journals[1].parent.name
        return [[entry["state"] for entry in _entries(journal)] for journal in journals]

    def clear(self) -> None:
        """End everything without the program under test."""
        for part in self.both():
            for process in sglang_processes(part):
                part.container.run("kill", "-KILL", str(process.pid), check=False)
        wait_for("both are gone", lambda: not any(sglang_processes(part) for part in self.both()), 30.0, 0.2)

    def serving(self, backend: str = "lpm") -> None:
        """Have it serve, by the program under test where it doesn't yet."""
        if healthy(self.url):
            return
        self.clear()
        self.operator.ask("launch", "--yes", "--backend", backend, timeout=500).expect(0)


def _entries(journal: Path) -> list[dict[str, Any]]:
    lines = journal.read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.fixture(scope="module")
def pair(
    workspace: Workspace,
    bridge: Bridge,
    bare_host: BareHost,
    sglang_service: SglangService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """Two containers of their own, as all that they run is ended here, and an inventory in which each of them is a host's."""
    environment, model = sglang_service.environment, sglang_service.model
    first, second = (Container.start(workspace, bridge, read_only=environment.folders) for _ in range(2))
    for each in (first, second):
        write_model(each.path(model))
    hosts = {
        name: {**login(bare_host.ssh), "container": {"reached_by": "ssh", "id": int(each.name), **login(each.ssh)}}
        for name, each in ((HEAD, first), (OTHER, second))
    }
    known_hosts = bare_host.ssh.known_hosts_line + first.ssh.known_hosts_line + second.ssh.known_hosts_line
    inventory = write_inventory(tmp_path_factory.mktemp("inventory"), hosts, known_hosts)
    described = describe_service(sglang_service, HEAD)
    described["port"] = PORT
    described["policy"] = {**POLICY, "load_total": 480}
    described["arguments"] |= {"--tp-size": 2}
    described["environment"] = {**ENVIRONMENT, "SGLANG_CPU_OMP_THREADS_BIND": "0|1", "GLOO_SOCKET_IFNAME": "eth0"}
    described |= {"nodes": [{"host": OTHER}], "dist_init_addr": f"{first.address}:{MEETING}"}
    write_tiny_service(inventory, described)
    for policy in ("lpm", "lof"):
        write_backend(inventory, policy, {"--schedule-policy": policy})
    services = [SglangService(each, environment, model) for each in (first, second)]
    yield Pair(services[0], services[1], Operator(inventory, tmp_path_factory.mktemp("home"), ("--host", HEAD)))
    for each in (first, second):
        each.stop()


def test_a_launch_starts_both_ranks_and_proves_the_whole(pair: Pair) -> None:
    pair.clear()
    answer = pair.operator.ask("launch", "--yes", "--backend", "lpm", timeout=500)
    answer.expect(0)
    head, other = pair.mains()
    assert "--nnodes 2 --node-rank 0" in head
    assert "--nnodes 2 --node-rank 1" in other
    assert generate(pair.url, 4) == 4
    assert all(states[-1] == "DONE" for states in pair.last_states())
    assert {verdict["check"]: verdict["outcome"] for verdict in answer.document["result"]["verdicts"]}["rank 1"] == "pass"

    status = pair.operator.ask("status").expect(0).document
    assert [rank["survey"]["health"] for rank in status["other_ranks"]] == ["serving"]
    assert status["other_ranks"][0]["survey"]["server"]["launch_id"] == status["report"]["server"]["launch_id"] + "-rank1"


def test_a_relaunch_changes_both_ranks(pair: Pair) -> None:
    pair.serving()
    pair.operator.ask("relaunch", "--yes", "--backend", "lof", "--no-measure", timeout=500).expect(0)
    assert pair.policies() == ["lof", "lof"]
    assert generate(pair.url, 4) == 4


@pytest.mark.exhaustive
def test_a_rank_that_dies_while_it_loads_turns_all_back_with_nobody_watching(pair: Pair) -> None:
    pair.serving()
    before = pair.policies()
    backend = "lof" if before[0] == "lpm" else "lpm"
    with pair.operator.watching("relaunch", "--yes", "--backend", backend, "--no-measure") as running:
        wait_for("rank 1 loads", lambda: _loads(pair.other, backend), 300.0, 0.2)
        running.kill()
    for process in sglang_processes(pair.other):
        pair.other.container.run("kill", "-KILL", str(process.pid), check=False)
    wait_for("both orders end", lambda: {states[-1] for states in pair.last_states()} <= wire.State.FINAL, 450.0, 0.5)
    assert [states[-1] for states in pair.last_states()] == ["RESTORED", "RESTORED"]
    assert pair.policies() == before
    assert generate(pair.url, 4) == 4


def test_a_teardown_leaves_nothing_on_either_node(pair: Pair) -> None:
    pair.serving()
    pair.operator.ask("teardown", "--yes").expect(0)
    pair.assert_gone()


@pytest.mark.exhaustive
def test_a_scheduler_that_dies_on_one_node_ends_both_and_is_told(pair: Pair) -> None:
    """With no order at work that is SGLang's to do (gloo: each node's scheduler hears of it); what is ours is to say so."""
    pair.serving()
    scheduler = next(process for process in sglang_processes(pair.other) if process.title.startswith("sglang::scheduler"))
    pair.other.container.run("kill", "-KILL", str(scheduler.pid))
    wait_for("both have ended", lambda: not any(sglang_processes(part) for part in pair.both()), 60.0, 0.5)
    status = pair.operator.ask("status").expect(0).document
    assert (status["report"]["health"], status["other_ranks"][0]["survey"]["health"]) == ("down", "down")


def _loads(part: SglangService, policy: str) -> bool:
    return any(f"--schedule-policy {policy}" in process.title for process in sglang_processes(part))
