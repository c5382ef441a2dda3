"""How long a switch is expected to be dark, by histories that are made up and by journals as the supervisor writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import estimate, wire
from orchestrator.agent.estimate import Load, Past, Switch, Wanted, read_past
from orchestrator.agent.footprints import keep_footprint
from orchestrator.agent.history import RESULT, RESUMED
from orchestrator.agent.kernel_caches import COLD_FACT
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed, Staged
from orchestrator.agent.wire import State

CUTLASS, TRTLLM = "flashinfer_cutlass", "flashinfer_trtllm"


def switch(dark: float, backend: str = CUTLASS, *, staged: bool = True, cold: bool | None = False, load: float | None = None) -> Switch:
    return Switch(backend, staged, cold, dark, load)


def expect(past: Past, backend: str = CUTLASS, *, staged: bool = True, cold: bool = False) -> wire.DarkEstimate | None:
    return estimate.estimate(past, Wanted(backend, staged, cold))


def told(past: Past, backend: str = CUTLASS, *, staged: bool = True, cold: bool = False) -> tuple[float, float, float, str]:
    found = expect(past, backend, staged=staged, cold=cold)
    assert found is not None
    return round(found.seconds, 2), round(found.shortest, 2), round(found.longest, 2), found.basis


def test_the_middle_of_like_switches_is_expected() -> None:
    past = Past([switch(46.2), switch(41.0), switch(44.0), switch(900.0, cold=True), switch(300.0, staged=False), switch(5.0, TRTLLM)])
    assert told(past) == (44.0, 41.0, 46.2, "3 staged switches to flashinfer_cutlass, caches warm")
    assert told(past, cold=True) == (900.0, 900.0, 900.0, "1 staged switch to flashinfer_cutlass, caches cold")
    assert told(past, staged=False)[3] == "1 sequential switch to flashinfer_cutlass, caches warm"
    found = expect(past)
    assert found is not None
    assert found.switches == 3


def test_what_a_router_was_without_a_worker_beyond_the_dark_time_is_the_longest_of_the_newest() -> None:
    held = [Switch(CUTLASS, staged=True, cold=False, dark=20.0, held=20.0 + more) for more in (90.0, 3.0, *[4.0] * 9)]
    assert estimate.around(Past([*held, switch(7.0)])) == 4.0
    assert estimate.around(Past([switch(7.0)])) is None


def test_only_the_newest_count() -> None:
    past = Past([switch(1000.0), *(switch(40.0 + number) for number in range(10))])
    assert told(past)[:3] == (44.5, 40.0, 49.0)


def test_switches_of_before_caches_were_looked_at_count_for_warm_ones() -> None:
    past = Past([switch(40.0, cold=None)])
    assert told(past)[3] == "1 staged switch to flashinfer_cutlass, nobody knows whether caches were cold"
    assert expect(past, cold=True) is None


def test_a_staged_switch_is_put_together_from_sequential_ones() -> None:
    past = Past([switch(60.0, staged=False, load=54.0), switch(62.0, staged=False, load=58.0)], [Load(CUTLASS, False, 54.0, 20.0)])
    assert told(past) == (
        25.5,
        24.0,
        27.0,
        "no staged switch like it yet; put together from 2 stops and 1 load of flashinfer_cutlass from the gate on, caches warm",
    )


def test_a_sequential_switch_is_put_together_from_staged_ones() -> None:
    past = Past([switch(25.0, load=20.0)], [Load(CUTLASS, False, 54.0, 20.0), Load(CUTLASS, False, 60.0, 24.0)])
    assert told(past, staged=False)[:3] == (62.0, 59.0, 65.0)


def test_a_first_switch_has_the_first_load_and_an_idle_stop() -> None:
    past = Past([], [Load(CUTLASS, False, 54.0, 20.0)])
    words = "no sequential switch like it yet; put together from a stop of an idle server and 1 load of flashinfer_cutlass, caches warm"
    assert told(past, staged=False) == (59.0, 57.0, 61.0, words)


def test_a_load_of_the_backend_counts_before_switches_to_others() -> None:
    past = Past([switch(5.0, TRTLLM, load=1.0)], [Load(CUTLASS, False, 54.0, 20.0)])
    assert told(past)[0] == 24.5
    assert told(Past([switch(5.0, TRTLLM)]))[3] == "1 staged switch to other backends, caches warm"
    assert "of other backends" in told(Past([], [Load(TRTLLM, False, 54.0, 20.0)]))[3]


def test_cold_caches_are_not_expected_by_warm_ones() -> None:
    past = Past([switch(44.0, load=20.0)], [Load(CUTLASS, False, 54.0, 20.0)])
    assert expect(past, cold=True) is None
    assert expect(Past()) is None


class Box:
    """A service's state folder, with orders as they are left behind."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.folder = StateFolder(self.root, "svc")
        self.folder.create()

    def launched(self, launch_id: str, phases: dict[str, float], *, cold: list[str] | None = None, gate: float | None = None) -> None:
        launch = wire.Launch(launch_id, "svc", CUTLASS, "/py", ["--port", "1"], "127.0.0.1", 1)
        self.folder.write_launch(launch)
        facts = [wire.Fact(f"phase.{name}", seconds, "server log") for name, seconds in phases.items()]
        facts += [] if cold is None else [wire.Fact(COLD_FACT, cold, "folders")]
        self.folder.mark_verified(launch_id, Observed(1000, facts))
        if gate is not None:
            keep_footprint(self.folder, launch_id, Staged(launch, gate), [])

    def ordered(
        self,
        launch_id: str,
        times: dict[str, float],
        dark: float | None = 30.0,
        *,
        staged: bool = True,
        kind: str = wire.OrderKind.RELAUNCH,
        state: str = State.DONE,
        data: dict[str, Any] | None = None,
        keep: bool = True,
    ) -> Path:
        path = self.folder.order_folder(launch_id)
        path.mkdir()
        order = wire.Order(launch_id, kind, "svc", self.root, 1, wire.Policy(), "ann@laptop", staged=staged)
        (path / "order.json").write_text(json.dumps(wire.to_json(order)), encoding="utf-8")
        result = wire.OrderResult(launch_id, state, 0, "", "serving", dark_seconds=dark, launch_id=launch_id, staged=staged)
        if keep:
            (path / "result.json").write_text(json.dumps(wire.to_json(result)), encoding="utf-8")
        entries = [wire.StateEntry(at, name, 0.0, moment, "", data or {}) for at, (name, moment) in enumerate(times.items(), 1)]
        entries.append(wire.StateEntry(len(entries) + 1, state, 0.0, 200.0, "", {RESULT: wire.to_json(result)}))
        lines = [json.dumps(wire.to_json(entry)) + "\n" for entry in entries]
        (path / "journal.jsonl").write_text("".join(lines), encoding="utf-8")
        return path


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


PHASES = {"imports": 20.0, "distributed": 14.0, "weights": 12.0, "graph_capture": 5.0, "warm_up": 3.0}
STAGED = {
    State.STAGING: 100.0,
    State.DRAINING: 120.0,
    State.CLEAN: 125.0,
    State.ACTIVATING: 125.5,
    State.LOADING: 125.6,
    State.ANSWERING: 146.0,
}
SEQUENTIAL = {State.DRAINING: 120.0, State.CLEAN: 125.0, State.STARTING: 125.5, State.LOADING: 126.0, State.ANSWERING: 180.0}


def test_journals_are_read(box: Box) -> None:
    box.launched("20260101T000000", PHASES)
    box.launched("20260102T000000", PHASES, cold=[])
    box.ordered("20260102T000000", SEQUENTIAL, 60.0, staged=False)
    box.launched("20260103T000000", {**PHASES, "distributed": 500.0}, cold=["FlashInfer: missing"], gate=21.0)
    box.ordered("20260103T000000", STAGED, 26.0)
    past = read_past(box.folder)
    assert past.switches == [
        Switch(CUTLASS, staged=False, cold=False, dark=60.0, load=54.5),
        Switch(CUTLASS, staged=True, cold=True, dark=26.0, load=20.5),
    ]
    assert [found.stop for found in past.switches] == [5.5, 5.5]
    # The time at its gate is no part of a load.
    assert past.loads == [Load(CUTLASS, None, 54.0, 20.0), Load(CUTLASS, False, 54.0, 20.0), Load(CUTLASS, True, 41.0, 20.0)]


def test_a_supervisor_that_left_no_result_has_one_in_its_journal(box: Box) -> None:
    box.launched("20260102T000000", PHASES)
    box.ordered("20260102T000000", STAGED, 26.0, keep=False)
    assert [found.dark for found in read_past(box.folder).switches] == [26.0]


@pytest.mark.parametrize(
    "different",
    [
        {"state": State.RESTORED},
        {"state": State.DOWN},
        {"dark": None},
        {"kind": wire.OrderKind.TEARDOWN},
        {"kind": wire.OrderKind.LAUNCH},
        {"data": {RESUMED: 1}},
        {"data": {"stood_still": [12.0]}},
    ],
    ids=str,
)
def test_what_tells_nothing_of_the_next_switch_is_left_out(box: Box, different: dict[str, Any]) -> None:
    box.launched("20260102T000000", PHASES)
    box.ordered("20260102T000000", STAGED, **different)
    assert read_past(box.folder).switches == []


def test_damaged_journals_are_left_out(box: Box) -> None:
    for day, name in enumerate(("order.json", "journal.jsonl", "result.json"), 2):
        launch_id = f"2026010{day}T000000"
        box.launched(launch_id, PHASES)
        path = box.ordered(launch_id, STAGED, 20.0 + day)
        (path / name).write_bytes(b'{"state": "CLE\xff\0\0')
    (box.folder.orders / "20260109T000000").mkdir()
    (box.folder.launches / "20260109T000000").mkdir()
    (box.folder.launch_folder("20260102T000000") / "verified.json").write_text('{"facts": [1, {"name": 2}, {"name": "phase.x"}]}')
    past = read_past(box.folder)
    assert [(found.dark, found.load) for found in past.switches] == [(23.0, None), (24.0, 20.5)]
    assert len(past.loads) == 2


def test_nothing_is_known_where_nothing_was_done(tmp_path: Path) -> None:
    assert read_past(StateFolder(str(tmp_path), "none")) == Past([], [])
