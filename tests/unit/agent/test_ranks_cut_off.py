"""The supervisors of a server over two nodes, one or both of which die at any instant; walked in a world of its own for each node."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.agent import rank_link, ranks, wire
from orchestrator.agent.history import is_touched, read_history
from orchestrator.agent.rank_link import RankLink
from orchestrator.agent.ranks import Table, Together
from orchestrator.agent.relaunch import Relaunch
from orchestrator.agent.wire import OrderKind, RankGroup, State
from orchestrator.flows.node_orders import ended_standing
from tests.unit.agent.supervised_world import NEW, Killed, Recording, World, WorldSteps, order

ARGUMENTS = ["--nnodes", "2"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in life, only sooner."""
    monkeypatch.setattr(rank_link, "ASK_SECONDS", 0.005)
    monkeypatch.setattr(ranks, "_TICK", 0.002)
    monkeypatch.setattr(ranks, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(ranks, "LEAVE_SECONDS", 0.2)


@dataclass
class Part(World):
    """One node's world. SGLang's parts end together."""

    other: Part | None = None
    ranks: list[wire.RankStanding] = field(default_factory=list)
    """What was kept of the other nodes' supervisors."""

    def end(self, launch_id: str) -> None:
        super().end(launch_id)
        if self.other is not None:
            World.end(self.other, next((each for each in self.other.running if _kind(each) == _kind(launch_id)), launch_id))

    @property
    def serves(self) -> set[str]:
        """What runs, the way back's by one name."""
        return {_kind(each) for each in self.running}

    @property
    def last(self) -> str:
        return self.journal[-1].state if self.journal else "nothing"


def _kind(launch_id: str) -> str:
    return launch_id.partition("-")[0]


class PartSteps(WorldSteps):
    """Those of a node of the server."""

    def find(self) -> wire.ServerInfo | None:
        found = super().find()
        return None if found is None else replace(found, arguments=ARGUMENTS)


@dataclass
class Pair:
    """Two nodes, and where their supervisors meet."""

    kind: str = OrderKind.RELAUNCH
    failing: str = ""
    head: Part = field(default_factory=Part)
    other: Part = field(default_factory=Part)
    port: int = 0

    def __post_init__(self) -> None:
        self.head.other, self.other.other = self.other, self.head
        self.other.failing |= {self.failing} - {""}
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])

    def parts(self) -> tuple[Part, Part]:
        return self.head, self.other

    def run(self, *rank_numbers: int, again: int = 0) -> None:
        """Supervise on these nodes at once, each until its end or its death; those that die are followed by another one `again` times."""
        known = [] if not any(part.journal for part in self.parts()) else self._ended()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda rank: self._supervise(rank, known, again), rank_numbers))

    def resume(self) -> None:
        """What ``fab resume`` does."""
        self.run(*(rank for rank, part in enumerate(self.parts()) if part.last not in State.FINAL))

    def _ended(self) -> list[wire.RankStanding]:
        stands = [wire.OrderStatus("o1", self.kind, part.last, False, 1.0, "ann") for part in self.parts()]
        return [known for rank, stand in enumerate(stands) if (known := ended_standing(rank, stand)) is not None]

    def _supervise(self, rank: int, known: Sequence[wire.RankStanding], again: int) -> None:
        for _ in range(again + 1):
            if self._live(rank, known):
                return
            self.parts()[rank].lives = None

    def _live(self, rank: int, known: Sequence[wire.RankStanding]) -> bool:
        """One supervisor, of which a death leaves as little as SIGKILL does; whether it came to its end."""
        part = self.parts()[rank]
        asked = replace(order(self.kind), group=RankGroup(rank, 2, "127.0.0.1", self.port, "secret"))
        asked = asked if asked.new is None else replace(asked, new=replace(NEW, arguments=ARGUMENTS))
        table = Table(rank, 2, known=[*part.ranks, *known], keep=lambda standings: setattr(part, "ranks", standings))
        together, link = Together(table), RankLink(asked.group or RankGroup(0, 1, "", 0, ""), asked.order_id, table)
        link.open()
        try:
            machine = Relaunch(asked, PartSteps(part), Recording(part), part.boot, group=together)
            history = read_history(part.journal)
            if history is not None and history.ended:
                return True
            result = machine.run() if history is None else machine.resume(history)
            if result.state in (State.REFUSED, State.DOWN):
                together.give_up(result.summary)
            together.leave()
        except Killed:
            return False
        finally:
            link.close()
        return True


def instants(kind: str, failing: str, rank: int) -> range:
    """Those of an undisturbed order."""
    return range({(OrderKind.RELAUNCH, ""): 31, (OrderKind.RELAUNCH, "new"): 35, (OrderKind.TEARDOWN, ""): 18}[kind, failing])


CASES = [(OrderKind.RELAUNCH, ""), (OrderKind.RELAUNCH, "new"), (OrderKind.TEARDOWN, "")]
DEATHS = [
    pytest.param(kind, failing, rank, instant, id=f"{kind}-{failing or 'well'}-rank{rank}-{instant}")
    for kind, failing in CASES
    for rank in (0, 1)
    for instant in instants(kind, failing, rank)
]


def _expected(kind: str, failing: str) -> tuple[str, set[str]]:
    if kind == OrderKind.TEARDOWN:
        return State.DONE, set()
    return (State.RESTORED, {"back"}) if failing else (State.DONE, {"new"})


@pytest.mark.parametrize(("kind", "failing", "rank", "instant"), DEATHS)
def test_one_that_dies_and_is_started_again_costs_nothing(
    kind: str, failing: str, rank: int, instant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "SILENCE_SECONDS", 60.0)
    pair = Pair(kind, failing)
    pair.parts()[rank].lives = instant
    pair.run(0, 1, again=1)
    state, serving = _expected(kind, failing)
    assert [part.last for part in pair.parts()] == [state, state]
    assert [part.serves for part in pair.parts()] == [serving, serving]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failing", "rank", "instant"), DEATHS)
def test_where_one_dies_and_is_taken_up_later_all_or_nothing_serves(kind: str, failing: str, rank: int, instant: int) -> None:
    pair = Pair(kind, failing)
    pair.parts()[rank].lives = instant
    pair.run(0, 1)
    begun = is_touched(pair.parts()[rank].journal)
    pair.parts()[rank].lives = None
    pair.resume()
    _assert_safe(pair)
    if not begun:
        assert pair.head.serves == {"old"}, "nothing is stopped by halves"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failing", "rank", "instant"), DEATHS)
def test_where_both_die_and_are_taken_up_at_once_all_or_nothing_serves(kind: str, failing: str, rank: int, instant: int) -> None:
    pair = Pair(kind, failing)
    pair.parts()[rank].lives = instant
    _die_with(pair.parts()[rank], pair.parts()[1 - rank])
    pair.run(0, 1)
    for part in pair.parts():
        part.lives = None
    pair.resume()
    _assert_safe(pair)
    state, serving = _expected(kind, failing)
    ended = {part.last for part in pair.parts()}
    assert ended == {state} or "REFUSED" in ended or "DOWN" in ended
    assert pair.head.serves in (serving, {"old"}, set())


def _die_with(first: Part, then: Part) -> None:
    """Have the second one's supervisor die at its own next instant once the first one's has."""
    effect: Callable[[str], None] = first.effect

    def both(name: str) -> None:
        try:
            effect(name)
        except Killed:
            then.lives = 0
            raise

    first.effect = both  # type: ignore[method-assign]


def _assert_safe(pair: Pair) -> None:
    head, other = pair.parts()
    assert {head.last, other.last} <= State.FINAL
    assert head.serves == other.serves, "parts of two servers, or one alone"
    for part in pair.parts():
        if part.last in (State.DONE, State.RESTORED):
            assert part.serves == _expected(pair.kind, "new" if part.last == State.RESTORED else "")[1] or _told(pair)


def _told(pair: Pair) -> bool:
    """Whether what has gone is told by the end of one of the orders."""
    return State.DOWN in {part.last for part in pair.parts()}
