"""An observer that remembers a plan and lets through only what nobody may miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import Plan

if TYPE_CHECKING:
    from orchestrator.results.hook_run import HookRun


class Quietly:
    """Hears of one change among many. Its plan is in `seen`; warnings and secrets go on to whoever hears of all."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.seen: Plan | None = None

    @property
    def kept_in(self) -> str | None:
        """None: nothing is kept here."""
        return None

    def note(self, text: str) -> None:
        """Of no weight among many."""

    def warn(self, text: str) -> None:
        self._observer.warn(text)

    def hide(self, values: Sequence[str]) -> None:
        self._observer.hide(values)

    def plan(self, plan: Plan) -> None:
        self.seen = plan

    def state(self, entry: wire.StateEntry) -> None:
        """Told by somebody else."""

    def progress(self, progress: wire.Progress) -> None:
        """Told by somebody else."""

    def log(self, text: str) -> None:
        """Told by somebody else."""

    def result(self, result: wire.OrderResult) -> None:
        """Told by somebody else."""

    def collected(self, collected: wire.Collected) -> None:
        """Told by somebody else."""

    def hook(self, run: HookRun) -> None:
        """Told by somebody else."""

    def notice(self, fate: wire.Fate) -> None:
        """Told by somebody else."""
