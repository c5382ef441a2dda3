"""Where a roll stands by its journal, and what it counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.errors import LockedError, UsageError
from orchestrator.results.redaction import Redactor
from orchestrator.results.roll import Finish, Look, PutIn, Return, Take, began_anew, counted, growth, next_action, stand
from orchestrator.results.roll_journal import FILE, RollJournal, find_roll, read_records, unfinished
from orchestrator.results.roll_records import (
    Begun,
    By,
    Changed,
    Counted,
    Dropped,
    Finished,
    Ordered,
    PutBack,
    Record,
    Refused,
    Removing,
    Resumed,
    Returned,
    RolledReplica,
    Skipped,
)
from orchestrator.results.sweep_records import Allowed

NONE = Counted(0, 0, 0, 0, 0, 0)


def begun(by: str = By.OPERATOR) -> Begun:
    replicas = [RolledReplica(name, "gpu1", f"http://{name}", by) for name in ("a", "b")]
    return Begun("front", "fast", replicas, "kim@laptop", NONE, {"http://a": "1"}, Allowed(reason="why"))


def changed(state: str) -> Changed:
    return Changed("a", state, "so it ended", "kernel_missing", "L1", 4.0, 0, "run-a")


REMOVING, ORDERED = Removing("a"), Ordered("a", "o1", "run-a")


@pytest.mark.parametrize(
    ("records", "by_operator", "by_supervisor"),
    [
        ([], Take("a"), Take("a")),
        ([REMOVING], PutIn("a"), None),
        ([REMOVING, ORDERED], Look(ORDERED), None),
        ([ORDERED], None, Look(ORDERED)),
        ([REMOVING, ORDERED, Dropped("a")], PutIn("a"), None),
        ([ORDERED, Dropped("a")], None, PutIn("a")),
        ([REMOVING, PutBack("a")], Take("a"), None),
        ([REMOVING, ORDERED, changed(wire.State.DONE)], Return("a"), None),
        ([REMOVING, ORDERED, changed(wire.State.DONE), Returned("a", 3)], Take("b"), None),
        ([REMOVING, ORDERED, changed(wire.State.RESTORED)], Return("a"), None),
        ([REMOVING, ORDERED, changed(wire.State.RESTORED), Returned("a", 3)], Finish(), None),
        ([REMOVING, ORDERED, changed(wire.State.REFUSED)], PutIn("a"), None),
        ([ORDERED, changed(wire.State.REFUSED)], None, PutIn("a")),
        ([REMOVING, ORDERED, changed(wire.State.DOWN)], Finish(), None),
        ([Refused("a", "the port is held")], Finish(), Finish()),
        ([REMOVING, Refused("a", "requests are left")], PutIn("a"), None),
        ([REMOVING, Refused("a", "requests are left"), PutBack("a")], Finish(), None),
        ([Skipped("a"), Skipped("b")], Finish(), Finish()),
        ([Skipped("a"), Resumed("kim@laptop")], Take("b"), Take("b")),
        ([Skipped("a"), Skipped("b"), Finished(0, "all")], None, None),
    ],
)
def test_what_comes_next(records: list[Record], by_operator: object, by_supervisor: object) -> None:
    finished = any(isinstance(record, Finished) for record in records)
    for by, expected in ((By.OPERATOR, by_operator), (By.SUPERVISOR, by_supervisor)):
        if expected is not None or finished:
            assert next_action(stand([begun(by), *records])) == expected


@pytest.mark.parametrize(("state", "code"), [(wire.State.DONE, 0), (wire.State.RESTORED, 6), (wire.State.REFUSED, 3), (wire.State.DOWN, 7)])
def test_the_exit_code_is_that_of_the_replica_it_stopped_at(state: str, code: int) -> None:
    standing = stand([begun(), REMOVING, ORDERED, changed(state), Returned("a", 1, seconds=0.3)])
    assert standing.exit_code == code
    assert ("a" in standing.done) == (code == 0)
    assert standing.returned["a"].seconds == 0.3


def test_a_journal_keeps_every_record_and_one_process_at_a_time(tmp_path: Path) -> None:
    records: list[Record] = [
        begun(),
        Resumed("kim@laptop"),
        REMOVING,
        ORDERED,
        Dropped("a"),
        changed(wire.State.DONE),
        Refused("a", "why", ["it is held"]),
        PutBack("a"),
        Returned("a", None, "no counters", 0.2),
        Skipped("b"),
        Finished(0, "all", Counted(9, 9, 0, 1, 0, 1)),
    ]
    path = tmp_path / "20261130T000000Z-roll-front" / FILE
    with RollJournal(path, Redactor()) as journal:
        for record in records:
            journal.append(record)
        with pytest.raises(LockedError, match=r"the roll .* is carried on by another process"), RollJournal(path, Redactor()):
            raise AssertionError("it was opened twice")
    read = read_records(path)
    untimed = [dataclasses.replace(record, time=0.0) for record in read]
    assert untimed == records


def test_rolls_are_found_by_their_router(tmp_path: Path) -> None:
    for name, router in (("20261130T000000Z-roll-front", "front"), ("20261130T000001Z-roll-front2", "front2")):
        with RollJournal(tmp_path / name / FILE, Redactor()) as journal:
            journal.append(dataclasses.replace(begun(), router=router))
    assert find_roll(None, "front", tmp_path).name == "20261130T000000Z-roll-front"
    with pytest.raises(UsageError, match="is a roll behind router front2, not front"):
        find_roll("20261130T000001Z-roll-front2", "front", tmp_path)
    with pytest.raises(UsageError, match="no roll nothing"):
        find_roll("nothing", "front", tmp_path)
    (tmp_path / "20261130T000002Z-roll-front").mkdir()
    (tmp_path / "20261130T000002Z-roll-front" / FILE).write_text('{"kind": "skipped", "service": "a"}\n')
    assert unfinished("front", tmp_path) == tmp_path / "20261130T000000Z-roll-front", "what can't be read is no roll"


def test_growth_is_known_only_where_no_counter_went_back() -> None:
    before, after = Counted(10, 10, 0, 1, 0, 1), Counted(30, 29, 0, 1, 0, 1)
    grown = growth(before, after)
    assert grown is not None
    assert (grown.requests, grown.answered, grown.clean) == (20, 19, True)
    assert growth(before, dataclasses.replace(after, upstream_errors=2)).clean is False  # type: ignore[union-attr]
    assert (began_anew(before, NONE), growth(before, NONE)) == (True, None)
    assert (growth(None, after), growth(before, None), began_anew(None, after)) == (None, None, False)
    assert counted(None) is None


def test_requests_without_an_end_are_told_apart_from_those_that_failed() -> None:
    grown = growth(NONE, Counted(2911, 2597, 4, 0, 0, 0))
    assert grown is not None
    assert grown.open == 310
