"""Several supervisors of one server, each with steps that only remember, told of each other over real connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.agent import rank_link, ranks, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.rank_link import RankLink, joined
from orchestrator.agent.ranks import Point, Table, Together, behind, further
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.steps import LaunchFailed
from orchestrator.agent.wire import OrderKind, Outcome, RankGroup, RankStanding, State
from tests.unit.agent.remembering_steps import DIRTY, NEW_LAUNCH, OLD, OLD_ID, ListJournal, RememberingSteps, order

SERVER = replace(OLD, arguments=["--nnodes", "2"])
NEW = replace(NEW_LAUNCH, arguments=[*NEW_LAUNCH.arguments, "--nnodes", "2"])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in life, only sooner."""
    monkeypatch.setattr(rank_link, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(ranks, "_TICK", 0.005)


@dataclass
class Node:
    """One node: what its steps answer, and what came of its order."""

    steps: RememberingSteps = field(default_factory=lambda: RememberingSteps(server=SERVER))
    states: list[str] = field(default_factory=list)
    cancelled: str | None = None
    result: wire.OrderResult | None = None

    @property
    def end(self) -> tuple[str, int]:
        assert self.result is not None
        return self.result.state, self.result.exit_code


def walk(*nodes: Node, kind: str = OrderKind.RELAUNCH) -> None:
    """Carry one order out on all nodes, as their supervisors do."""
    port = free_port()

    def supervise(rank: int) -> None:
        node = nodes[rank]
        old = OLD_ID if node.steps.server is not None else None
        new = None if kind == OrderKind.TEARDOWN else NEW
        group = RankGroup(rank, len(nodes), "127.0.0.1", port, "secret")
        asked = replace(order(kind, old, new, measure=rank == 0), group=group)
        journal = ListJournal()
        with joined(asked) as joint:
            node.result = Relaunch(asked, node.steps, journal, cancelled=lambda: node.cancelled, group=joint).run()
            node.states = journal.states
            if node.result.state in (State.REFUSED, State.DOWN):
                joint.give_up(node.result.summary)

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(supervise, range(len(nodes))))


def started(node: Node) -> list[str]:
    return [call for call in node.steps.calls if call.startswith("start ")]


def once_started(node: Node, launch_id: str) -> Callable[[RememberingSteps], None]:
    """Waits until another node has started it too: one that hears of a failure before that has nothing to end."""

    def wait(_: RememberingSteps) -> None:
        assert wait_until(lambda: f"start {launch_id}" in node.steps.calls, Deadline(5.0))

    return wait


def test_all_ranks_serve_together() -> None:
    head, other = Node(), Node()
    walk(head, other)
    assert (head.end, other.end) == ((State.DONE, 0), (State.DONE, 0))
    assert "mark_verified new" in head.steps.calls
    assert "mark_verified new" in other.steps.calls


def test_a_rank_that_fails_to_load_turns_all_back() -> None:
    head, other = Node(), Node()
    other.steps.failing = {"new"}
    walk(head, other)
    assert (head.end, other.end) == ((State.RESTORED, 6), (State.RESTORED, 6))
    assert started(other) == ["start new", "start back"]
    assert started(head)[-1] == "start back"
    assert head.result is not None
    assert head.result.failure is not None
    assert head.result.failure.category == "another_rank"
    assert head.result.failure.summary == "rank 1 failed: new ran out of memory"
    assert "mark_verified new" not in head.steps.calls


def test_wrong_answers_of_rank_0_turn_all_back() -> None:
    head, other = Node(), Node()
    head.steps.verdict = wire.Verdict("answers", Outcome.REFUSE, "mean log-likelihood fell by 3.1 nats")
    walk(head, other)
    assert (head.end, other.end) == ((State.RESTORED, 6), (State.RESTORED, 6))
    assert "stop_launch new" in other.steps.calls


def test_a_rank_that_dies_while_rank_0_times_turns_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.rank_waits._LOOK_SECONDS", 0.0)
    head, other = Node(), Node()
    held = threading.Event()
    timed = head.steps.measure

    def measure(launch: wire.Launch, report: Callable[[str, str], None]) -> wire.DecodeTiming:
        if launch.launch_id == "new":
            other.steps.failing.add("serves new")
            wait_until(lambda: "stop_launch new" in other.steps.calls, Deadline(5.0))
            held.set()
        return timed(launch, report)

    monkeypatch.setattr(head.steps, "measure", measure)
    walk(head, other)
    assert held.is_set()
    assert (head.end, other.end) == ((State.RESTORED, 6), (State.RESTORED, 6))


def test_nothing_is_touched_anywhere_where_one_refuses() -> None:
    head, other = Node(), Node()
    other.steps.server = replace(SERVER, main=wire.ProcessId(100, 9999))
    walk(head, other)
    assert (head.end, other.end) == ((State.REFUSED, 3), (State.REFUSED, 3))
    assert "stop" not in head.steps.calls
    assert head.result is not None
    assert "another server" in head.result.summary


def test_nothing_is_touched_where_one_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.rank_waits.MEETING_SECONDS", 0.0)
    alone = RememberingSteps(server=SERVER)
    group = RankGroup(0, 2, "127.0.0.1", free_port(), "secret")
    asked = order()
    asked = replace(asked, new=NEW, group=group, policy=replace(asked.policy, measure_seconds=0.1, verify=0.1, measure=False))
    table = Table(0, 2)
    result = Relaunch(asked, alone, ListJournal(), group=Together(table)).run()
    assert (result.state, result.exit_code) == (State.REFUSED, 3)
    assert "rank 1 was not checked and locked" in result.summary
    assert "stop" not in alone.calls


def test_nothing_is_started_anywhere_before_every_node_is_clean() -> None:
    head, other = Node(), Node()
    other.steps.dirty_after = {"old"}
    walk(head, other)
    assert (head.end, other.end) == ((State.DOWN, 7), (State.DOWN, 7))
    assert started(head) == started(other) == []
    assert head.result is not None
    assert DIRTY.detail in head.result.summary


def test_rank_0_stops_first() -> None:
    head, other, stopped = Node(), Node(), []
    for name, node in (("head", head), ("other", other)):
        node.steps.meanwhile = {}
        stop = node.steps.stop

        def note(report: object, enter: object, name: str = name, stop: Callable[..., object] = stop) -> object:
            stopped.append(name)
            return stop(report, enter)

        node.steps.stop = note  # type: ignore[assignment, method-assign]
    walk(head, other)
    assert stopped == ["head", "other"]


def test_a_teardown_ends_all() -> None:
    head, other = Node(), Node()
    walk(head, other, kind=OrderKind.TEARDOWN)
    assert (head.end, other.end) == ((State.DONE, 0), (State.DONE, 0))
    assert "stop" in head.steps.calls
    assert "stop" in other.steps.calls


def test_what_was_launched_where_nothing_served_is_ended_on_all() -> None:
    head, other = Node(RememberingSteps(server=None)), Node(RememberingSteps(server=None))
    other.steps.failing = {"new"}
    other.steps.meanwhile = {"loading new": once_started(head, "new")}
    walk(head, other, kind=OrderKind.LAUNCH)
    assert (head.end, other.end) == ((State.DOWN, 7), (State.DOWN, 7))
    assert "stop_launch new" in head.steps.calls


def test_where_the_previous_server_fails_on_one_node_it_is_ended_on_all() -> None:
    head, other = Node(), Node()
    other.steps.failing = {"new", "back"}
    other.steps.meanwhile = {"loading back": once_started(head, "back")}
    walk(head, other)
    assert (head.end, other.end) == ((State.DOWN, 7), (State.DOWN, 7))
    assert "stop_launch back" in head.steps.calls


def test_an_operator_who_stops_one_stops_all() -> None:
    head, other = Node(), Node()

    def cancel(_: RememberingSteps) -> None:
        head.cancelled = "asked by ann"

    head.steps.meanwhile = {"loading new": cancel}
    walk(head, other)
    assert (head.end, other.end) == ((State.RESTORED, 6), (State.RESTORED, 6))


def test_three_ranks_hear_of_each_other_by_rank_0() -> None:
    nodes = [Node(), Node(), Node()]
    for node in nodes:
        assert node.steps.server is not None
        node.steps.server = replace(node.steps.server, arguments=["--nnodes", "3"])
    nodes[2].steps.failing = {"new"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.agent.test_ranks.NEW", replace(NEW, arguments=[*NEW.arguments[:-1], "3"]))
        walk(*nodes)
    assert [node.end for node in nodes] == [(State.RESTORED, 6)] * 3


@pytest.mark.parametrize(("what", "server", "new"), [("the server that runs", OLD, NEW), ("the new server", SERVER, NEW_LAUNCH)])
def test_an_order_for_another_number_of_nodes_is_refused(what: str, server: wire.ServerInfo, new: wire.Launch) -> None:
    asked = replace(order(), new=new, group=RankGroup(0, 2, "127.0.0.1", 1, "secret"))
    result = Relaunch(asked, RememberingSteps(server=server), ListJournal()).run()
    assert result.state == State.REFUSED
    assert f"{what} goes over 1 nodes, and this order is for 2" in result.summary


def test_what_was_reached_is_never_taken_back() -> None:
    late = further(RankStanding(1, Point.READY), RankStanding(1, Point.CLEAN, "it failed"))
    assert late == RankStanding(1, Point.READY, "it failed")
    assert further(late, RankStanding(1, down=True, failure="and then")).failure == "it failed"
    assert behind([RankStanding(0, Point.CLEAN), late], Point.READY) == [0]
    assert behind([RankStanding(0, Point.BACK_CLEAN), late], Point.READY) == [0], "who has turned back is not further on the way forward"
    assert behind([RankStanding(0, Point.BACK_READY), RankStanding(1, Point.BACK_CLEAN)], Point.BACK_CLEAN) == []


def test_a_rank_that_is_not_heard_of_any_more_has_failed() -> None:
    now = [0.0]
    table = Table(0, 2, lambda: now[0])
    together = Together(table)
    table.heard(RankStanding(1, Point.CLEAN))
    now[0] = ranks.SILENCE_SECONDS - 1
    together.pulse()
    now[0] += 2
    with pytest.raises(LaunchFailed, match="rank 1 was not heard of"):
        together.pulse()


def test_a_supervisor_that_has_ended_before_the_others_has_failed() -> None:
    table = Table(0, 2)
    table.take(RankStanding(1, Point.READY, left=True))
    with pytest.raises(LaunchFailed, match="rank 1 has ended before the others"):
        Together(table).meet(Point.VERIFIED, 30.0, lambda: None)


def test_rank_0s_silence_at_the_end_is_a_doubt_and_no_failure() -> None:
    """It may as well have ended well: if it has not, it ends its own server, and SGLang here ends with that."""
    now = [0.0]
    table = Table(1, 2, lambda: now[0])
    table.heard(RankStanding(0, Point.VERIFIED))
    now[0] = ranks.SILENCE_SECONDS + 1
    assert "rank 0 did not say that it is done" in Together(table).conclude(30.0, lambda: None)
    with pytest.raises(LaunchFailed):
        Together(table).meet(Point.DONE, 30.0, lambda: None)


@pytest.fixture
def head() -> Iterator[tuple[RankGroup, Table]]:
    """A rank 0 that listens."""
    group, table = RankGroup(0, 2, "127.0.0.1", free_port(), "secret"), Table(0, 2)
    link = RankLink(group, "o1", table)
    link.open()
    assert wait_until(lambda: _listens(group), Deadline(5.0))
    yield group, table
    link.close()


def _listens(group: RankGroup) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex((group.address, group.port)) == 0


@pytest.mark.parametrize(("order_id", "token"), [("o1", "guessed"), ("o2", "secret")])
def test_who_is_not_of_this_order_is_neither_believed_nor_told(head: tuple[RankGroup, Table], order_id: str, token: str) -> None:
    group, table = head
    mine = Table(1, 2)
    mine.take(RankStanding(1, failure="a lie"))
    stranger = RankLink(replace(group, rank=1, token=token), order_id, mine)
    stranger.open()
    assert wait_until(lambda: "rank 0" in mine.trouble and "refused" not in mine.trouble, Deadline(5.0))
    stranger.close()
    assert table.standings()[1] == RankStanding(1)


def test_a_head_that_was_ended_and_is_back_knows_all_again() -> None:
    group, mine = RankGroup(1, 2, "127.0.0.1", free_port(), "secret"), Table(1, 2)
    mine.take(RankStanding(1, Point.READY))
    link = RankLink(group, "o1", mine)
    link.open()
    for _ in range(2):
        table = Table(0, 2)
        again = RankLink(replace(group, rank=0), "o1", table)
        again.open()
        assert wait_until(lambda table=table: table.standings()[1].point == Point.READY, Deadline(5.0))  # type: ignore[misc]
        again.close()
    link.close()


def test_what_a_supervisor_ended_with_is_heard_by_one_that_begins_later() -> None:
    group, mine = RankGroup(1, 2, "127.0.0.1", free_port(), "secret"), Table(1, 2)
    table = Table(0, 2)
    late = RankLink(replace(group, rank=0), "o1", table)
    link = RankLink(group, "o1", mine)
    link.open()
    with ThreadPoolExecutor(1) as pool:
        together = Together(mine)
        together.give_up("it is not the server that the plan showed")
        leaving = pool.submit(together.leave)
        late.open()
        leaving.result(timeout=10.0)
    link.close()
    late.close()
    assert table.standings()[1].failure == "it is not the server that the plan showed"


def test_somebody_who_connects_and_says_nothing_keeps_nobody_away(head: tuple[RankGroup, Table], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_link, "_ANSWER_SECONDS", 0.2)
    group, table = head
    with socket.create_connection((group.address, group.port)) as silent:
        silent.sendall(b'{"text": 1')
        mine = Table(1, 2)
        mine.take(RankStanding(1, Point.CLEAN))
        link = RankLink(replace(group, rank=1), "o1", mine)
        link.open()
        assert wait_until(lambda: table.standings()[1].point == Point.CLEAN, Deadline(5.0))
        link.close()
