"""A service over two nodes against agents that answer from scripts: all or none, and one story."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.ranks import Point
from orchestrator.agent.wire_launches import BootAction
from orchestrator.cli.status_text import rank_blocks
from orchestrator.config import compose_launch, load_inventory
from orchestrator.errors import ConfigError, ConnectError, LockedError, RefusedError, UnfinishedOrderError, UsageError
from orchestrator.flows.attach import resume
from orchestrator.flows.boot import boot
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.relaunch import launch, relaunch
from orchestrator.flows.rollback import rollback
from orchestrator.flows.status import status
from orchestrator.flows.target import Target, choose_target
from orchestrator.flows.teardown import teardown
from tests.unit.agent.supervised_world import SEAT
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import CANARY, DRIFT, OLD, done, healthy_agent, preflight, relaunch_script, survey, write_inventory

NODES = "dist_init_addr: 10.0.0.11:20000\nnodes:\n  - host: gpu2\n    place: host\n    port: 30001\n"
HEAD_ONLY = survey(server=None, health="down")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_inventory(tmp_path / "inventory", second_host=True)
    (made / "services" / "tiny.yml").unlink()
    service = made / "services" / "glm5.yml"
    service.write_text(service.read_text(encoding="utf-8") + NODES, encoding="utf-8")
    return made


@pytest.fixture
def whole(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The service, by the host of its rank 0."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    return choose_target(load_inventory(folder), "gpu1", None)


@dataclass
class Cluster:
    """One agent for each host."""

    head: FakeAgent = field(default_factory=healthy_agent)
    other: FakeAgent = field(default_factory=healthy_agent)
    unreachable: set[str] = field(default_factory=set)

    @contextmanager
    def connect(self, target: Target) -> Iterator[FakeAgent]:
        if target.host.name in self.unreachable:
            raise ConnectError(f"{target.host.name} can't be reached")
        yield self.head if target.host.name == "gpu1" else self.other

    def run(self, verb: Callable[..., Outcome], target: Target, options: Options | None = None, heard: Heard | None = None) -> Outcome:
        profiles = target.inventory.backends_named("flashinfer_cutedsl")
        return verb(target, profiles, options or Options(), heard or Heard(), yes, self.connect, FakeBox(self.head).open)


def yes(plan: Plan) -> bool:
    return True


def test_each_node_gets_its_part_of_one_order(whole: Target) -> None:
    cluster, heard = Cluster(), Heard()
    outcome = cluster.run(relaunch, whole, heard=heard)
    (head,), (other,) = cluster.head.requests("submit"), cluster.other.requests("submit")
    assert head.order_id == other.order_id == outcome.plan.order_id
    assert other.new.launch_id == f"{head.new.launch_id}-rank1"
    assert head.new.arguments[-6:] == ["--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "10.0.0.11:20000"]
    assert other.new.arguments[-6:] == ["--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.11:20000"]
    assert (head.port, other.port) == (30000, 30001)
    assert head.group == wire.RankGroup(0, 2, "10.0.0.11", 19999, head.group.token)
    assert other.group == dataclasses.replace(head.group, rank=1)
    assert len(head.group.token) >= 32
    assert (head.boot, other.boot, head.staged, other.staged) == (False, False, False, False)
    assert (head.policy.measure, other.policy.measure) == (True, False)
    assert heard.states == ["CHECKED", "LOCKED", "DONE"], "one story is told"
    assert [verdict.check for verdict in heard.results[0].verdicts] == ["rank 1"]
    assert len(heard.plans) == len(heard.results) == 1


def test_the_token_is_in_nothing_that_is_shown(whole: Target) -> None:
    cluster, heard = Cluster(), Heard()
    outcome = cluster.run(relaunch, whole, heard=heard)
    (head,) = cluster.head.requests("submit")
    assert head.group.token not in repr((outcome, heard))


def test_what_speaks_against_one_node_refuses_all(whole: Target) -> None:
    cluster = Cluster(other=healthy_agent(preflight=[answer(preflight(differences=[DRIFT]))]))
    with pytest.raises(RefusedError) as refused:
        cluster.run(relaunch, whole)
    assert refused.value.evidence[0].startswith("rank 1 in gpu2: ")
    assert cluster.head.requests("submit") == cluster.other.requests("submit") == []


@pytest.mark.parametrize("held", [None, wire.PersonLock("kim@desk", "mine", 1.0)])
def test_a_plan_says_that_a_person_has_locked_one_of_them(whole: Target, held: wire.PersonLock | None) -> None:
    cluster = Cluster(other=healthy_agent(survey=[answer(survey(lock=held))]))
    looks = Options(plan_only=True)
    assert cluster.run(relaunch, whole, looks).lock == held
    assert teardown(whole, looks, Heard(), yes, cluster.connect).lock == held


def test_an_order_that_is_not_taken_takes_back_those_that_were(whole: Target) -> None:
    cancelled = answer(wire.OrderStatus("ORDER", "relaunch", "LOCKED", True, 1.0, "ann@laptop"))
    cluster = Cluster(head=healthy_agent(submit=[[LockedError("bob has it")]]), other=healthy_agent(cancel=[cancelled]))
    with pytest.raises(LockedError, match="bob has it"):
        cluster.run(relaunch, whole)
    (asked,) = cluster.other.requests("cancel")
    assert asked.order_id == cluster.other.requests("submit")[0].order_id
    assert cluster.head.requests("follow") == []


def test_a_node_that_can_t_be_reached_refuses_all(whole: Target) -> None:
    cluster = Cluster(unreachable={"gpu2"})
    with pytest.raises(ConnectError):
        cluster.run(relaunch, whole)
    assert cluster.head.requests("submit") == []


def test_a_launch_over_what_serves_on_another_node_is_refused(whole: Target) -> None:
    cluster = Cluster(head=healthy_agent(survey=[answer(HEAD_ONLY)], preflight=[answer(preflight(server=None))]))
    with pytest.raises(RefusedError, match="a launch never replaces a server"):
        cluster.run(launch, whole)


def test_an_order_that_was_cut_off_on_one_node_comes_to_its_end_first(whole: Target) -> None:
    half = wire.OrderStatus("o9", "relaunch", "INTERRUPTED(LOADING)", False, 1.0, "bob@desk", touched=True)
    cluster = Cluster(other=healthy_agent(survey=[answer(survey(order=half))]))
    with pytest.raises(UnfinishedOrderError) as refused:
        cluster.run(relaunch, whole)
    assert refused.value.next_step == "fab resume --host gpu2 --service glm5"


def stands(state: str, *, live: bool = False, **more: Any) -> list[list[Any]]:
    """What a node's lock answers of the order `o9`."""
    order = wire.OrderStatus("o9", "relaunch", state, live, 1.0, "bob@desk", touched=True)
    return [answer(wire.LockStatus(order=order, **more))]


TAKEN_UP = [answer(wire.Submitted("o9", "session 7"))]


def test_an_order_is_taken_up_on_all_nodes_on_which_it_was_cut_off(whole: Target) -> None:
    cut_off = stands("INTERRUPTED(LOADING)")
    cluster, heard = Cluster(healthy_agent(lock=cut_off, resume=TAKEN_UP), healthy_agent(lock=cut_off, resume=TAKEN_UP)), Heard()
    result = resume(whole, None, heard, connect=cluster.connect)
    for agent in (cluster.head, cluster.other):
        (asked,) = agent.requests("resume")
        assert (asked.order_id, asked.ranks.standings) == ("o9", [])
    assert [verdict.check for verdict in result.verdicts] == ["rank 1"]
    assert heard.results == [result]


@pytest.mark.parametrize(
    ("state", "known"),
    [
        ("DONE", wire.RankStanding(1, Point.DONE, left=True)),
        ("RESTORED", wire.RankStanding(1, Point.BACK_READY, "it has gone back", left=True)),
        ("DOWN", wire.RankStanding(1, failure="its order ended as DOWN", down=True, left=True)),
        ("REFUSED", wire.RankStanding(1, failure="its order ended as REFUSED", down=True, left=True)),
    ],
)
def test_who_goes_on_is_told_how_it_ended_on_the_other_nodes(whole: Target, state: str, known: wire.RankStanding) -> None:
    cluster = Cluster(healthy_agent(lock=stands("INTERRUPTED(MEASURED)"), resume=TAKEN_UP), healthy_agent(lock=stands(state)))
    resume(whole, "o9", Heard(), connect=cluster.connect)
    (asked,) = cluster.head.requests("resume")
    assert asked.ranks.standings == [known]
    assert cluster.other.requests("resume") == []


def test_a_node_that_never_got_the_order_is_waited_for_by_nobody(whole: Target) -> None:
    nothing = [answer(wire.LockStatus())]
    cluster = Cluster(healthy_agent(lock=nothing), healthy_agent(lock=stands("INTERRUPTED(LOCKED)"), resume=TAKEN_UP))
    resume(whole, None, Heard(), connect=cluster.connect)
    (asked,) = cluster.other.requests("resume")
    assert asked.ranks.standings == [wire.RankStanding(0, failure="it never had this order", down=True, left=True)]
    assert cluster.head.requests("follow") == []


@pytest.mark.parametrize(
    ("head", "other", "error", "message"),
    [
        (stands("DONE"), stands("DONE"), RefusedError, "has ended: DONE"),
        (stands("DONE"), stands("LOADING", live=True), LockedError, "is at work, in LOADING"),
        (stands("INTERRUPTED(LOADING)"), stands("DOWN", person=wire.PersonLock("kim@desk", "mine", 1.0)), LockedError, "rank 1 in gpu2: "),
        ([answer(wire.LockStatus())], [answer(wire.LockStatus())], RefusedError, "there was no order yet of glm5 on any of its nodes"),
    ],
)
def test_what_can_t_be_taken_up_is_begun_on_no_node(whole: Target, head: Any, other: Any, error: type[Exception], message: str) -> None:
    cluster = Cluster(healthy_agent(lock=head), healthy_agent(lock=other))
    with pytest.raises(error, match=re.escape(message)):
        resume(whole, None, Heard(), connect=cluster.connect)
    assert cluster.head.requests("resume") == cluster.other.requests("resume") == []


def test_commands_around_the_orders_are_run_once(folder: Path, whole: Target, tmp_path: Path) -> None:
    told = tmp_path / "told"
    hooks = f"hooks:\n  before:\n    - command: [sh, -c, 'cat > {told}']\n"
    service = folder / "services" / "glm5.yml"
    service.write_text(service.read_text(encoding="utf-8") + hooks, encoding="utf-8")
    cluster, heard = Cluster(), Heard()
    cluster.run(relaunch, choose_target(load_inventory(folder), "gpu1", None), heard=heard)
    (head,), (other,) = cluster.head.requests("submit"), cluster.other.requests("submit")
    assert len(heard.hooks) == 1
    assert json.loads(told.read_text(encoding="utf-8"))["order"] == head.order_id
    assert head.afterwards is not None
    assert other.afterwards is None


def test_only_rank_0_stands_behind_a_router(whole: Target) -> None:
    cluster, seat = Cluster(), SEAT
    cluster.run(relaunch, whole, Options(router=seat))
    assert cluster.head.requests("submit")[0].router == seat
    assert cluster.other.requests("submit")[0].router is None


def test_what_went_worse_on_another_node_is_the_exit_code(whole: Target) -> None:
    down = done(state=wire.State.DOWN, exit_code=7, summary="what failed could not be ended")
    restored = done(state=wire.State.RESTORED, exit_code=6)
    cluster = Cluster(
        head=healthy_agent(follow=[relaunch_script(restored)]),
        other=healthy_agent(follow=[relaunch_script(down)]),
    )
    result = cluster.run(relaunch, whole).result
    assert result is not None
    assert (result.state, result.exit_code) == (wire.State.RESTORED, 7)
    assert result.next_step == "fab status --host gpu2 --service glm5"


def test_a_teardown_goes_over_all_nodes_also_where_one_part_is_gone(whole: Target) -> None:
    cluster = Cluster(other=healthy_agent(survey=[answer(survey(server=None, health="down"))]))
    teardown(whole, Options(), Heard(), yes, cluster.connect)
    (head,), (other,) = cluster.head.requests("submit"), cluster.other.requests("submit")
    assert (head.kind, head.old, other.old) == ("teardown", OLD.main, None)


def test_a_teardown_of_nothing_submits_nothing(whole: Target) -> None:
    gone = [answer(survey(server=None, health="down"))]
    cluster = Cluster(healthy_agent(survey=gone), healthy_agent(survey=gone))
    assert teardown(whole, Options(), Heard(), yes, cluster.connect).result is None
    assert cluster.other.requests("submit") == []


def test_the_status_shows_the_other_nodes_and_why_one_can_t_be_asked(whole: Target) -> None:
    cluster = Cluster()
    box = FakeBox(cluster.head)
    assert [rank.survey.health for rank in status(whole, cluster.connect, box.open).ranks if rank.survey] == ["serving"]
    cluster.unreachable = {"gpu2"}
    found = status(whole, cluster.connect, box.open).ranks
    assert found[0].problem == "gpu2 can't be reached"
    shown = " ".join(str(block) for block in rank_blocks("glm5", 0, found))
    assert "rank 1 in gpu2: not known: gpu2 can't be reached" in shown


def test_another_nodes_host_names_its_part(folder: Path) -> None:
    part = choose_target(load_inventory(folder), "gpu2", "glm5")
    assert (part.rank, part.place, part.service.port) == (1, "gpu2", 30001)
    assert choose_target(load_inventory(folder), "gpu2", None).rank == 1
    assert [each.host.name for each in part.parts()] == ["gpu1", "gpu2"]


def test_a_rollback_by_one_nodes_records_is_refused(whole: Target) -> None:
    with pytest.raises(RefusedError, match="over 2 nodes"):
        rollback(whole, None, Options(), Heard(), yes, Cluster().connect)


def test_one_part_is_not_made_to_come_back_alone(whole: Target) -> None:
    with pytest.raises(RefusedError, match="a part that came back alone"):
        boot(whole, BootAction.ON, Cluster().connect)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ("dist_init_addr: 10.0.0.11:20000\n", "nodes and dist_init_addr need each other"),
        ("dist_init_addr: 10.0.0.11\nnodes: [{host: gpu2, place: host}]\n", "is not HOST:PORT"),
        ("dist_init_addr: 10.0.0.11:20000\nnodes: [{host: gpu1}]\n", "a host is named twice"),
        ("dist_init_addr: 10.0.0.11:20000\nnodes: [{host: gpu7}]\n", "there is no host 'gpu7'"),
        ("dist_init_addr: 10.0.0.11:20000\nnodes: [{host: gpu2}]\n", "that host has no container"),
    ],
)
def test_mistakes_about_nodes_are_told(folder: Path, change: str, mistake: str) -> None:
    service = folder / "services" / "glm5.yml"
    service.write_text(service.read_text(encoding="utf-8").replace(NODES, change), encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        load_inventory(folder)
    assert mistake in str([told.value.message, *told.value.evidence])


def test_what_the_nodes_say_is_said_nowhere_else(folder: Path) -> None:
    service = folder / "services" / "glm5.yml"
    text = service.read_text(encoding="utf-8")
    service.write_text(text.replace("  --tp-size: 8\n", "  --tp-size: 8\n  --nnodes: 2\n"), encoding="utf-8")
    with pytest.raises(ConfigError) as told:
        load_inventory(folder)
    assert "--nnodes is not set in arguments" in str([told.value.message, *told.value.evidence])

    service.write_text(text, encoding="utf-8")
    profile = folder / "backends" / "ep8.yml"
    profile.write_text(profile.read_text(encoding="utf-8").replace("--ep-size: 8", "--node-rank: 1"), encoding="utf-8")
    loaded = load_inventory(folder)
    arguments: dict[str, Any] = {"sglang_version": "0.5.23", "launch_id": "L", "secrets": {}}
    with pytest.raises(UsageError, match="sets --node-rank"):
        compose_launch(loaded.service("glm5"), loaded.backends_named("auto+ep8"), **arguments)
