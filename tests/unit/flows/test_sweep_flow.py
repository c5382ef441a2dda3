"""A sweep against a box that remembers: what is launched, timed, skipped and put back, and how it is taken up again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.errors import (
    ConnectError,
    ConnectionLostError,
    InterruptedByOperatorError,
    LockedError,
    OrchestratorError,
    RefusedError,
    ServiceDownError,
    TurnedAwayError,
    UnfinishedOrderError,
    UsageError,
)
from orchestrator.flows.order import Interruption
from orchestrator.flows.sweep import Place, begin, carry_on, find_end
from orchestrator.flows.sweep_plan import SweepPlan, plan_sweep
from orchestrator.flows.swept import Swept
from orchestrator.flows.target import Target
from orchestrator.results.redaction import Redactor
from orchestrator.results.runs import RunFolders, runs_root
from orchestrator.results.sweep import Design, Point, Timing
from orchestrator.results.sweep_journal import FILE, SweepJournal, read_records
from orchestrator.results.sweep_records import Allowed, Ordered
from tests.unit.flows.fake_agent import Heard
from tests.unit.flows.samples import DRIFT
from tests.unit.flows.swept_box import STARTED, SweptBox

AUTO, FAST, WIDE = Point("auto"), Point("flashinfer_cutedsl"), Point("auto+ep8")
NAME = "20261130T000000Z-sweep-gpu1-glm5"


def design(*points: Point, **more: Any) -> Design:
    return Design(list(points or (AUTO, FAST)), Timing([1]), **more)


@dataclass
class Watcher:
    """Hears of the steps."""

    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)

    def begins(self, step: str, doing: str) -> Heard:
        self.begun.append(f"{step} {doing}")
        return self.heard

    def ends(self, step: str, said: str, *, good: bool) -> None:
        self.ended.append(f"{'+' if good else '-'} {step} {said}")


@dataclass
class Sweeper:
    """An operator with one box, who sweeps and takes up again."""

    target: Target
    box: SweptBox = field(default_factory=SweptBox)
    watcher: Watcher = field(default_factory=Watcher)
    safely: bool = False
    """What a Ctrl-C is answered with."""

    @property
    def path(self) -> Path:
        return runs_root().absolute() / NAME / FILE

    def plan(self, wanted: Design, allowed: Allowed | None = None, **more: Any) -> SweepPlan:
        return plan_sweep(self.box, self.target, wanted, allowed or Allowed(), Heard(), **more)

    def sweep(self, wanted: Design, allowed: Allowed | None = None) -> Swept:
        planned = self.plan(wanted, allowed)
        with SweepJournal(self.path, Redactor()) as journal:
            begin(journal, planned, allowed or Allowed())
            return carry_on(*self._hands(journal))

    def resume(self, take_up: Callable[[str], bool] = lambda what: False) -> Swept:
        with SweepJournal(self.path, Redactor()) as journal:
            find_end(*self._hands(journal), take_up)
            standing = journal.standing
            begin(journal, self.plan(standing.design, standing.begun.allowed, standing=standing), standing.begun.allowed)
            return carry_on(*self._hands(journal))

    def _hands(self, journal: SweepJournal) -> tuple[Place, SweepJournal, Watcher, RunFolders, Interruption]:
        folders = RunFolders(["gpu1", "glm5"], Redactor(), lambda text: None)
        return Place(self.target, self.box.connect, self.box.open), journal, self.watcher, folders, lambda order: self.safely

    def runs(self, verb: str) -> list[Path]:
        return sorted(runs_root().glob(f"*-{verb}-*"))


@pytest.fixture
def sweeper(target: Target) -> Sweeper:
    return Sweeper(target)


def test_every_point_is_launched_and_timed_and_the_best_one_stays(sweeper: Sweeper) -> None:
    sweeper.box.milliseconds = {"auto": 20.0, "flashinfer_cutedsl": 16.0}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto", "flashinfer_cutedsl"]
    assert (swept.exit_code, swept.choice.best, swept.standing.point) == (0, 1, 1)
    assert swept.said.startswith("best is flashinfer_cutedsl: 16.00 ms a token at batch 1; flashinfer_cutedsl serves, as launch ")
    assert [len(sweeper.runs(verb)) for verb in ("relaunch", "measure")] == [2, 2]
    relaunched, timed = (sweeper.runs(verb)[0] for verb in ("relaunch", "measure"))
    assert {"run.json", "plan.json", "result.json", "events.jsonl"} <= {path.name for path in relaunched.iterdir()}
    assert (timed / "measure.json").is_file()
    assert sweeper.watcher.begun[:2] == ["1/2 auto", "1/2 timing auto"]
    assert sweeper.watcher.ended[0] == "+ 1/2 DONE: auto serves; serving; dark for 4.0 s"


def test_it_ends_with_one_relaunch_more_where_the_best_is_not_the_last(sweeper: Sweeper) -> None:
    sweeper.box.milliseconds = {"auto": 16.0, "flashinfer_cutedsl": 20.0}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto", "flashinfer_cutedsl", "auto"]
    assert (swept.exit_code, swept.standing.point) == (0, 0)
    assert len(sweeper.runs("measure")) == 2, "what it ends on was timed already"
    assert sweeper.watcher.begun[-1] == "end to the best point: auto"


def test_a_difference_that_is_not_shown_is_worth_no_relaunch(sweeper: Sweeper) -> None:
    sweeper.box.milliseconds = {"auto": 16.0, "flashinfer_cutedsl": 16.01}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto", "flashinfer_cutedsl"]
    assert (swept.choice.best, swept.choice.alike) == (1, (0,))
    assert "no difference shown to auto (16.00 ms), and it serves already" in swept.said


def test_two_rounds_go_forth_and_back_with_a_launch_each(sweeper: Sweeper) -> None:
    swept = sweeper.sweep(design(AUTO, FAST, rounds=2))
    assert sweeper.box.launched[:4] == ["auto", "flashinfer_cutedsl", "flashinfer_cutedsl", "auto"]
    assert [(point.launches, point.timed) for point in swept.points] == [(2, 2), (2, 2)]
    again = sweeper.box.orders[2]
    assert again.new is not None
    assert not again.overruled, "that nothing would change is no check that was overruled"


def test_a_points_arguments_are_laid_over_the_service_and_are_the_sweeps(sweeper: Sweeper) -> None:
    points = [Point("auto", {"--max-running-requests": value}) for value in (32, 64)]
    swept = sweeper.sweep(design(Point("auto"), *points))
    launches = [order.new for order in sweeper.box.orders if order.new is not None]
    assert [launch.arguments[-2:] for launch in launches[1:3]] == [["--max-running-requests", "32"], ["--max-running-requests", "64"]]
    assert all(launch.swept_flags == ["--max-running-requests"] for launch in launches)
    assert swept.exit_code == 0
    assert all(not order.policy.measure for order in sweeper.box.orders), "the sweep times by itself"
    assert all(NAME in order.reason for order in sweeper.box.orders)
    assert sweeper.box.orders[1].reason.endswith("2/3: auto --max-running-requests 32")


@pytest.mark.parametrize(("state", "dark"), [("RESTORED", True), ("REFUSED", False)])
def test_a_point_that_fails_is_told_with_its_class_and_the_sweep_goes_on(sweeper: Sweeper, state: str, dark: bool) -> None:
    sweeper.box.ends = {"flashinfer_cutedsl": state}
    swept = sweeper.sweep(design(AUTO, FAST, WIDE))
    assert sweeper.box.launched[:3] == ["auto", "flashinfer_cutedsl", "auto+ep8"]
    assert swept.exit_code == 6
    assert [point.timed for point in swept.points] == [1, 0, 1]
    assert "[kernel_missing]" in swept.points[1].troubles[0]
    assert ("dark for 9.0 s" in sweeper.watcher.ended[2]) is dark


def test_a_refused_point_is_skipped_with_its_reason_and_its_run_is_kept(sweeper: Sweeper) -> None:
    sweeper.box.refused = {"flashinfer_cutedsl": "it is held"}
    plan = sweeper.plan(design(AUTO, FAST))
    assert [list(item.refusals) for item in plan.points] == [[], ["port: it is held"]]
    swept = sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto"]
    assert (swept.exit_code, swept.points[1].troubles) == (6, ["refused: port: it is held"])
    assert sweeper.watcher.ended[-1] == "- 2/2 refused: port: it is held"
    assert {"plan.json", "error.json"} <= {path.name for path in sweeper.runs("relaunch")[-1].iterdir()}


def test_where_nothing_could_be_launched_nothing_is_asked(sweeper: Sweeper) -> None:
    sweeper.box.refused = {"auto": "it is held", "flashinfer_cutedsl": "it is held"}
    with pytest.raises(RefusedError, match="no point of the sweep could be launched; nothing was touched") as caught:
        sweeper.plan(design(AUTO, FAST))
    assert caught.value.next_step == "look at it"


def test_a_timing_that_is_not_to_be_believed_is_kept_and_does_not_count(sweeper: Sweeper) -> None:
    sweeper.box.milliseconds = {"auto": 20.0, "flashinfer_cutedsl": 10.0}
    sweeper.box.invalid = {"flashinfer_cutedsl"}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert (swept.exit_code, swept.choice.best, swept.standing.point) == (6, 0, 0)
    assert swept.points[1].troubles == ["not to be believed: others: 3 ran, 1 was ours [batch 1]"]
    assert len(sweeper.runs("measure")) == 2


def test_where_nothing_is_to_be_believed_it_goes_back_to_where_it_began(sweeper: Sweeper) -> None:
    sweeper.box.invalid = {"auto", "flashinfer_cutedsl"}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert (swept.exit_code, swept.choice.best, swept.standing.at_start) == (9, None, True)
    assert sweeper.box.launched == ["auto", "flashinfer_cutedsl", "back"]
    assert sweeper.box.orders[-1].copy_of == STARTED
    assert "what served before serves again" in swept.said


def test_where_everything_failed_what_served_before_still_does_and_is_left_alone(sweeper: Sweeper) -> None:
    sweeper.box.ends = {"auto": "RESTORED", "flashinfer_cutedsl": "REFUSED"}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert (swept.exit_code, swept.standing.at_start, sweeper.box.launched) == (9, True, ["auto", "flashinfer_cutedsl"])


def test_it_may_end_where_it_began(sweeper: Sweeper) -> None:
    swept = sweeper.sweep(design(FAST, restore=True))
    assert sweeper.box.launched == ["flashinfer_cutedsl", "back"]
    assert (swept.exit_code, swept.standing.at_start, swept.choice.best) == (0, True, 0)


def test_after_a_way_back_the_beginning_is_its_newest_launch(sweeper: Sweeper) -> None:
    sweeper.box.ends = {"auto": "RESTORED"}
    sweeper.sweep(design(AUTO, FAST, restore=True))
    assert str(sweeper.box.orders[-1].copy_of).endswith("-back")


def test_a_server_that_could_not_be_brought_back_is_not_left_for_a_sweep_that_is_to_end_there(sweeper: Sweeper) -> None:
    sweeper.box.serves = None
    with pytest.raises(RefusedError, match="could not be brought back") as caught:
        sweeper.plan(design(restore=True))
    assert str(caught.value.next_step).startswith("fab adopt --host gpu1")
    assert sweeper.plan(design()).start_launch is None


def test_of_somebody_elses_server_the_way_back_is_the_orders_own(sweeper: Sweeper) -> None:
    sweeper.box.serves = None
    sweeper.box.ends = {"auto": "RESTORED"}
    swept = sweeper.sweep(design(AUTO, FAST))
    assert (swept.exit_code, swept.standing.point) == (6, 1)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"up": False}, RefusedError, "nothing serves"),
        ({"health": "unhealthy"}, RefusedError, "does not answer as it should"),
        ({"drift": True}, RefusedError, "no point of the sweep could be launched"),
    ],
)
def test_a_sweep_that_is_not_begun(sweeper: Sweeper, changes: dict[str, Any], error: type[OrchestratorError], said: str) -> None:
    sweeper.box = SweptBox(**changes)
    with pytest.raises(error, match=said):
        sweeper.plan(design())


def test_drift_is_accepted_of_what_served_before_and_of_nothing_that_comes_later(sweeper: Sweeper) -> None:
    sweeper.box.drift = True
    accepted = Allowed(accept_drift=True)
    assert sweeper.sweep(design(AUTO, FAST), accepted).exit_code == 0
    assert [bool(order.overruled) for order in sweeper.box.orders] == [True, False]


def test_drift_that_comes_in_between_is_not_reverted_in_passing(sweeper: Sweeper) -> None:
    class Drifting(SweptBox):
        def on_preflight(self, request: wire.PreflightRequest) -> wire.PreflightReport:
            return dataclasses.replace(super().on_preflight(request), differences=[DRIFT])

    sweeper.box = Drifting()
    swept = sweeper.sweep(design(AUTO, FAST), Allowed(accept_drift=True))
    assert (swept.exit_code, sweeper.box.launched) == (6, ["auto"])
    assert "--mem-fraction-static" in swept.points[1].troubles[0]


def test_a_profiles_own_flag_is_not_swept_under_its_name(sweeper: Sweeper) -> None:
    with pytest.raises(UsageError, match="backend profile auto sets --moe-runner-backend itself"):
        sweeper.plan(design(Point("auto", {"--moe-runner-backend": "triton"})))


def test_when_the_service_is_down_it_stops_at_once_and_says_what_to_type(sweeper: Sweeper) -> None:
    sweeper.box.ends = {"auto": "DOWN"}
    with pytest.raises(ServiceDownError) as caught:
        sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto"]
    assert caught.value.exit_code == 7
    assert str(caught.value.next_step) == "fab launch --host gpu1 --service glm5"
    assert f"fab sweep --host gpu1 --service glm5 --resume {NAME}" in caught.value.evidence[-1]
    with pytest.raises(RefusedError, match="nothing serves"):
        sweeper.resume()
    sweeper.box.up = True
    swept = sweeper.resume()
    assert (sweeper.box.launched, swept.exit_code) == (["auto", "flashinfer_cutedsl"], 6)


def test_a_server_that_died_after_its_timing_stops_it(sweeper: Sweeper) -> None:
    class Dying(SweptBox):
        def on_measure(self, request: Any) -> Any:
            report = super().on_measure(request)
            self.up = False
            return report

    sweeper.box = Dying()
    with pytest.raises(ServiceDownError, match="nothing serves any more"):
        sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto"]


def test_somebody_elses_change_in_between_stops_it(sweeper: Sweeper) -> None:
    class Meddled(SweptBox):
        def on_measure(self, request: Any) -> Any:
            report = super().on_measure(request)
            self.serves = "20261130T111111Z-kim"
            self.backends[self.serves] = "auto"
            return report

    sweeper.box = Meddled()
    with pytest.raises(LockedError, match="somebody else has changed what serves: launch 20261130T111111Z-kim"):
        sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto"], "it is not replaced"


def test_what_was_timed_must_be_what_was_launched(sweeper: Sweeper) -> None:
    class Meddled(SweptBox):
        def on_measure(self, request: Any) -> Any:
            self.serves = "20261130T111111Z-kim"
            return super().on_measure(request)

    sweeper.box = Meddled()
    with pytest.raises(LockedError, match="was timed, not launch"):
        sweeper.sweep(design(AUTO, FAST))
    assert sweeper.runs("measure") == []


def interrupt(times: int = 1) -> list[BaseException]:
    return [KeyboardInterrupt() for _ in range(times)]


def test_ctrl_c_leaves_the_order_running_and_the_sweep_to_be_taken_up(sweeper: Sweeper) -> None:
    sweeper.box.raising = {"follow": interrupt()}
    with pytest.raises(InterruptedByOperatorError) as caught:
        sweeper.sweep(design(AUTO, FAST))
    assert str(caught.value.next_step) == f"fab sweep --host gpu1 --service glm5 --resume {NAME}"
    assert "fab attach" in caught.value.evidence[-1]
    swept = sweeper.resume()
    assert (swept.exit_code, sweeper.box.launched) == (0, ["auto", "flashinfer_cutedsl"])
    assert [point.timed for point in swept.points] == [1, 1]


def test_ctrl_c_that_stops_the_order_safely_ends_the_sweep_there(sweeper: Sweeper) -> None:
    class Cancelled(SweptBox):
        def on_cancel(self, request: wire.Cancel) -> wire.OrderStatus:
            self.serves = f"{request.order_id}-back"
            self.backends[self.serves] = "auto"
            failure = wire.Failure("cancelled", "the operator wanted it")
            self.results[request.order_id] = dataclasses.replace(
                self.results[request.order_id], state="RESTORED", exit_code=6, failure=failure, launch_id=self.serves
            )
            return super().on_cancel(request)

    sweeper.box, sweeper.safely = Cancelled(raising={"follow": interrupt()}), True
    with pytest.raises(InterruptedByOperatorError, match="stopped as you asked"):
        sweeper.sweep(design(AUTO, FAST))
    assert sweeper.box.launched == ["auto"]
    swept = sweeper.resume()
    assert (swept.exit_code, sweeper.box.launched) == (0, ["auto", "auto", "flashinfer_cutedsl"]), "the point is tried again"


def test_an_order_that_was_stopped_before_it_touched_anything_tells_nothing_of_its_point(sweeper: Sweeper) -> None:
    class Untouched(SweptBox):
        def on_cancel(self, request: wire.Cancel) -> wire.OrderStatus:
            self.serves = STARTED
            self.results[request.order_id] = wire.OrderResult(
                request.order_id, "REFUSED", 3, "stopped before anything was touched", "unchanged"
            )
            return super().on_cancel(request)

    sweeper.box, sweeper.safely = Untouched(raising={"follow": interrupt()}), True
    with pytest.raises(InterruptedByOperatorError):
        sweeper.sweep(design(AUTO, FAST))
    swept = sweeper.resume()
    assert (swept.exit_code, sweeper.box.launched) == (0, ["auto", "auto", "flashinfer_cutedsl"])


@pytest.mark.parametrize("verb", ["survey", "preflight", "measure"])
def test_ctrl_c_while_no_order_is_at_work(sweeper: Sweeper, verb: str) -> None:
    planned = sweeper.plan(design(AUTO, FAST))
    sweeper.box.raising = {verb: interrupt()}
    with SweepJournal(sweeper.path, Redactor()) as journal:
        begin(journal, planned, Allowed())
        with pytest.raises(InterruptedByOperatorError, match="no order is at work"):
            carry_on(*sweeper._hands(journal))
    swept = sweeper.resume()
    assert (swept.exit_code, sweeper.box.launched) == (0, ["auto", "flashinfer_cutedsl"])


@pytest.mark.parametrize(
    ("verb", "error"),
    [
        ("submit", ConnectionLostError("gone")),
        ("measure", ConnectError("no route")),
        ("submit", TurnedAwayError("somebody was faster")),
    ],
)
def test_what_stops_it_leaves_it_to_be_taken_up_again(sweeper: Sweeper, verb: str, error: OrchestratorError) -> None:
    sweeper.box.raising = {verb: [error]}
    with pytest.raises(type(error)):
        sweeper.sweep(design(AUTO, FAST))
    swept = sweeper.resume()
    assert (swept.exit_code, sweeper.box.launched) == (0, ["auto", "flashinfer_cutedsl"])


def test_a_sweep_that_was_killed_asks_the_box_for_the_end_of_its_order(sweeper: Sweeper) -> None:
    class Killed(BaseException):
        pass

    sweeper.box.raising = {"follow": [Killed()]}
    with pytest.raises(Killed):
        sweeper.sweep(design(AUTO, FAST))
    assert isinstance(read_records(sweeper.path)[-1], Ordered)
    swept = sweeper.resume()
    assert sweeper.box.launched == ["auto", "flashinfer_cutedsl"]
    assert swept.exit_code == 0
    watched = sweeper.runs("relaunch")[0]
    assert (watched / "result.json").is_file(), "its end is kept in its own run folder"


def test_an_order_that_was_cut_off_half_way_is_brought_to_its_end_first_if_that_is_wanted(sweeper: Sweeper) -> None:
    sweeper.box.raising = {"follow": interrupt()}
    with pytest.raises(InterruptedByOperatorError):
        sweeper.sweep(design(AUTO, FAST))
    (order,) = sweeper.box.orders
    cut_off = wire.OrderStatus(order.order_id, "relaunch", "INTERRUPTED(LOADING)", False, 0.0, "kim@laptop", touched=True)
    sweeper.box.status = {order.order_id: cut_off}
    with pytest.raises(UnfinishedOrderError, match="was cut off half-way"):
        sweeper.resume()
    assert sweeper.box.requests("resume") == []
    asked: list[str] = []
    swept = sweeper.resume(lambda what: not asked.append(what))  # type: ignore[func-returns-value]
    assert asked == [f"the relaunch {order.order_id} was cut off: INTERRUPTED(LOADING)"]
    assert len(sweeper.box.requests("resume")) == 1
    assert swept.exit_code == 0


def test_a_launch_that_somebody_replaced_before_its_timing_is_made_again(sweeper: Sweeper) -> None:
    sweeper.box.raising = {"measure": interrupt()}
    with pytest.raises(InterruptedByOperatorError):
        sweeper.sweep(design(FAST, AUTO))
    sweeper.box.serves = "20261130T111111Z-kim"
    sweeper.box.backends[sweeper.box.serves] = "auto"
    with SweepJournal(sweeper.path, Redactor()) as journal:
        assert sweeper.plan(journal.standing.design, standing=journal.standing).changed_meanwhile
    swept = sweeper.resume()
    assert sweeper.box.launched[:3] == ["flashinfer_cutedsl", "flashinfer_cutedsl", "auto"]
    assert [point.timed for point in swept.points] == [1, 1]


def test_the_plan_of_what_is_left_is_of_what_is_left(sweeper: Sweeper) -> None:
    sweeper.box.raising = {"measure": interrupt()}
    with pytest.raises(InterruptedByOperatorError):
        sweeper.sweep(design(AUTO, FAST, rounds=2))
    with SweepJournal(sweeper.path, Redactor()) as journal:
        plan = sweeper.plan(journal.standing.design, standing=journal.standing)
    assert (list(plan.steps), plan.to_time, plan.changed_meanwhile) == ([1, 1, 0], 1, False)


def test_the_plan_says_what_it_takes(sweeper: Sweeper) -> None:
    plan = sweeper.plan(design(AUTO, FAST, rounds=2))
    assert plan.dark_seconds == pytest.approx(4 * 44.04)
    assert plan.pace.seconds(4) is None
    assert [item.staged for item in plan.points] == [True, True]
    assert (plan.start_launch, plan.load, list(plan.steps)) == (STARTED, 2, [0, 1, 1, 0])
    sweeper.sweep(design(AUTO, FAST))
    assert sweeper.plan(design(AUTO, FAST)).pace.timing == 30.0


def test_the_end_is_refused_or_fails(sweeper: Sweeper) -> None:
    class Fickle(SweptBox):
        def on_submit(self, order: wire.Order) -> wire.Submitted:
            if len(self.orders) == 2:
                self.ends = {"auto": "RESTORED"}
            return super().on_submit(order)

    sweeper.box = Fickle(milliseconds={"auto": 10.0, "flashinfer_cutedsl": 20.0})
    swept = sweeper.sweep(design(AUTO, FAST))
    assert (swept.exit_code, swept.choice.best, swept.standing.point) == (6, 0, 1)
    assert "flashinfer_cutedsl serves" in swept.said


def test_no_secret_is_in_the_journal(sweeper: Sweeper) -> None:
    sweeper.sweep(design(AUTO))
    assert "canary" not in sweeper.path.read_text()
