"""`fab roll` over real servers behind SGLang's real router, under four requests a second, streaming and not, that are judged one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.agent.wire import State
from orchestrator.results.roll_records import By
from tests.rig.bare_host import BareHost
from tests.rig.container import Container
from tests.rig.inventory import rig_hosts, write_backend, write_inventory
from tests.rig.network import Bridge
from tests.rig.operator import Operator
from tests.rig.sglang import SglangService
from tests.sglang.replicas import PATIENCE, Replicas, fewest_serving

pytestmark = pytest.mark.timeout(1800)
exhaustive = pytest.mark.exhaustive

FIRST = "fcfs"
TAKEN_PORT = 31019
ONLY_ONE = "one-of-them-only"
"""A backend that works for one replica of a machine: its port is taken when the second one wants it."""


@pytest.fixture(scope="module")
def replicas(
    bare_host: BareHost, container: Container, bridge: Bridge, sglang_service: SglangService, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replicas]:
    """Both serving."""
    known_hosts = bare_host.ssh.known_hosts_line + container.ssh.known_hosts_line
    inventory = write_inventory(tmp_path_factory.mktemp("replicas"), rig_hosts(bare_host, container), known_hosts)
    for policy in (FIRST, "lpm", "lof", "dfs-weight"):
        write_backend(inventory, policy, {"--schedule-policy": policy})
    write_backend(inventory, ONLY_ONE, {"--schedule-policy": "dfs-weight", "--nccl-port": TAKEN_PORT})
    operator = Operator(inventory, tmp_path_factory.mktemp("home"))
    made = Replicas(sglang_service, operator, bridge, tmp_path_factory.mktemp("routers"))
    made.write()
    try:
        made.launch("r1", "r2", backend=FIRST)
        yield made
    finally:
        made.clear()


def test_two_real_servers_are_rolled_by_their_supervisors_and_no_client_misses_one(replicas: Replicas) -> None:
    _whole_roll(replicas, "sglang-router", By.SUPERVISOR, "lof")


@exhaustive
def test_two_real_servers_behind_smg_are_rolled_from_here_and_no_client_misses_one(replicas: Replicas) -> None:
    _whole_roll(replicas, "smg", By.OPERATOR, "lpm")


def _whole_roll(replicas: Replicas, kind: str, by: str, backend: str) -> None:
    with replicas.behind(kind, by) as router:
        planned = replicas.roll("--backend", backend, "--plan").expect(0).document["plan"]
        assert [item["by"] for item in planned["replicas"]] == [by, by]
        with replicas.load() as load, fewest_serving(router) as fewest:
            document = replicas.roll("--backend", backend, "--yes").expect(0).document
        assert load.failed == []
        assert len(load.sent) > 40
        assert {item.kind for item in load.sent if item.kind.endswith("stream")}, "streams are judged by their [DONE]"
        assert fewest.count == 1
        assert [(item["state"], item["by"]) for item in document["replicas"]] == [(State.DONE, by)] * 2
        assert all(item["requests_since"] > 0 for item in document["replicas"])
        assert document["clean"] is True
        assert document["clients"]["requests"] > 40
        assert replicas.policies() == dict.fromkeys(replicas.workers, backend)
        assert router.serving() == set(replicas.workers.values())


@exhaustive
def test_a_real_launch_that_fails_is_put_back_and_had_in_from_here_and_the_one_before_keeps_the_new_backend(replicas: Replicas) -> None:
    before = replicas.policies()
    with replicas.behind("sglang-router", By.OPERATOR) as router:
        with replicas.load() as load, fewest_serving(router) as fewest:
            answer = replicas.roll("--backend", ONLY_ONE, "--yes", "--sequential").expect(6)
        assert load.failed == []
        assert fewest.count == 1
        assert [(item["state"], item["by"]) for item in answer.document["replicas"]] == [
            (State.DONE, By.OPERATOR),
            (State.RESTORED, By.OPERATOR),
        ]
        assert answer.document["stopped_at"] == "r2"
        assert answer.document["clean"] is True
        assert replicas.policies() == {"r1": "dfs-weight", "r2": before["r2"]}
        assert router.serving() == set(replicas.workers.values())


@exhaustive
@pytest.mark.parametrize(
    ("by", "state", "backend"),
    [
        pytest.param(By.OPERATOR, State.LOADING, "lof", id="out of the router and loading, from here"),
        pytest.param(By.SUPERVISOR, State.LEAVING, "lpm", id="leaving the router, by the supervisor"),
        pytest.param(By.SUPERVISOR, State.ACTIVATING, "lof", id="nothing serves there, by the supervisor"),
    ],
)
def test_an_operator_who_is_killed_leaves_a_real_server_that_resume_has_in_again(
    replicas: Replicas, by: str, state: str, backend: str
) -> None:
    flags = ("--backend", backend, "--service", "r1", *(["--sequential"] if state == State.LOADING else []))
    with replicas.behind("sglang-router", by) as router:
        with replicas.load() as load, fewest_serving(router) as fewest:
            with replicas.rolling(lambda states: state in states, *flags) as running:
                running.kill()
            document = replicas.roll("--resume", "--yes").expect(0).document
        assert load.failed == []
        assert fewest.count == 1
        assert [item["state"] for item in document["replicas"]] == [State.DONE]
        assert document["clean"] is True
        assert replicas.changed() == [("r1", State.DONE)]
        assert replicas.argument("r1", "schedule_policy") == backend
        assert router.serving() == set(replicas.workers.values())


def is_staging(states: list[str]) -> bool:
    return State.STAGING in states


@exhaustive
def test_the_real_server_that_is_being_rolled_is_killed_and_only_what_ran_on_it_is_cut(replicas: Replicas) -> None:
    with replicas.behind("sglang-router", By.SUPERVISOR) as router:
        with replicas.load() as load, replicas.rolling(is_staging, "--backend", "dfs-weight", "--service", "r2") as running:
            replicas.kill("r2")
            assert running.process.wait(PATIENCE) == 0
        assert {item.outcome for item in load.failed} <= {"cut"}, "what ran on it; all else was tried again elsewhere"
        assert replicas.changed() == [("r2", State.DONE)]
        assert replicas.argument("r2", "schedule_policy") == "dfs-weight"
        assert router.serving() == set(replicas.workers.values())


@exhaustive
def test_the_other_real_server_is_killed_and_none_is_taken_out(replicas: Replicas) -> None:
    """The last one here: it leaves one replica."""
    before = replicas.argument("r1", "schedule_policy")
    with replicas.behind("sglang-router", By.SUPERVISOR) as router:
        with replicas.load() as load, replicas.rolling(is_staging, "--backend", FIRST, "--service", "r1") as running:
            replicas.kill("r2")
            assert running.process.wait(PATIENCE) == 3
        assert {item.outcome for item in load.failed} <= {"cut"}, "what ran on it; all else was tried again elsewhere"
        assert replicas.changed() == [("r1", State.REFUSED)]
        assert "so this one is not taken out" in replicas.said()
        assert replicas.argument("r1", "schedule_policy") == before
        assert router.serving() == {replicas.workers["r1"]}
