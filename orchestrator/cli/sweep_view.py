"""A sweep on the screen while it goes on: a line as each part of a step ends, and one for what goes on now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_notice import FateOutcome
from orchestrator.cli.hook_text import hook_line, notice_line
from orchestrator.cli.pace import Pace
from orchestrator.cli.screen import Screen
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.cli.text import usually

if TYPE_CHECKING:
    from orchestrator.flows.plan import Plan
    from orchestrator.results.hook_run import HookRun


class SweepView:
    """See :class:`orchestrator.flows.sweep.SweepObserver`."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def begins(self, step: str, doing: str) -> StepView:
        self._screen.event(f"{step}  {doing}", "strong")
        return StepView(self._screen, step)

    def ends(self, step: str, said: str, *, good: bool) -> None:
        self._screen.event(f"{step}  {said}", "good" if good else "warn")


class StepView:
    """Hears of one step's relaunch or timing, and shows where it is: on a terminal in one live line, elsewhere a line for each state.

    Its plan, its checks and all the rest are in the run folder that it is kept in.
    """

    def __init__(self, screen: Screen, step: str) -> None:
        self._screen = screen
        self._step = step
        self._pace = Pace()

    def note(self, text: str) -> None:
        self._now(text, 0.0)

    def warn(self, text: str) -> None:
        self._screen.warn(f"{self._step}: {text}")

    def hide(self, values: Sequence[str]) -> None:
        self._screen.hide(values)

    def plan(self, plan: Plan) -> None:
        """Said yes to with the whole sweep."""

    def state(self, entry: wire.StateEntry) -> None:
        self._pace.enter(entry)
        self._now(entry.state, 0.0)
        if not isinstance(self._screen, TerminalScreen):
            self._screen.event(f"{self._step}  {entry.state}", "quiet")

    def progress(self, progress: wire.Progress) -> None:
        timed = self._pace.timed(progress)
        self._now(f"{progress.state} {progress.phase}{usually(timed)}", timed.seconds)

    def log(self, text: str) -> None:
        """A server's log is kept, not shown."""

    def result(self, result: wire.OrderResult) -> None:
        """Told in a line, when it was written down."""

    def collected(self, collected: wire.Collected) -> None:
        """Kept, not shown."""

    @property
    def kept_in(self) -> str | None:
        return None

    def hook(self, run: HookRun) -> None:
        if not run.good:
            self._screen.warn(f"{self._step}: {hook_line(run)[0]}")

    def notice(self, fate: wire.Fate) -> None:
        if fate.outcome != FateOutcome.DONE:
            self._screen.warn(f"{self._step}: {notice_line(fate)[0]}")

    def _now(self, what: str, elapsed: float) -> None:
        if isinstance(self._screen, TerminalScreen):
            self._screen.progress(wire.Progress(self._step, what, elapsed))
