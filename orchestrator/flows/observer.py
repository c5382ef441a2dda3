"""What a flow tells while it works. Printing, the run folder and JSON are observers; flows know none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from orchestrator.agent import wire

if TYPE_CHECKING:
    from orchestrator.flows.plan import Plan
    from orchestrator.results.hook_run import HookRun


class Observer(Protocol):
    """Hears what happens, in the order in which it happens."""

    @property
    def kept_in(self) -> str | None:
        """The folder in which what it hears is kept, None where it isn't."""

    def note(self, text: str) -> None:
        """What is being done now."""

    def warn(self, text: str) -> None:
        """Something the operator should know that stops nothing."""

    def hide(self, values: Sequence[str]) -> None:
        """These are secret: they must not be shown or kept. Called before anything that holds them."""

    def plan(self, plan: Plan) -> None:
        """What is about to be changed, before anybody is asked."""

    def state(self, entry: wire.StateEntry) -> None:
        """The order entered a state."""

    def progress(self, progress: wire.Progress) -> None:
        """What goes on inside the state."""

    def log(self, text: str) -> None:
        """A line of the server's log."""

    def result(self, result: wire.OrderResult) -> None:
        """How the order ended."""

    def collected(self, collected: wire.Collected) -> None:
        """What the order left on the box."""

    def hook(self, run: HookRun) -> None:
        """What became of a command around the order."""

    def notice(self, fate: wire.Fate) -> None:
        """What became of the notice of its end."""


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    @property
    def kept_in(self) -> str | None:
        return next((observer.kept_in for observer in self._observers if observer.kept_in is not None), None)

    def note(self, text: str) -> None:
        for observer in self._observers:
            observer.note(text)

    def warn(self, text: str) -> None:
        for observer in self._observers:
            observer.warn(text)

    def hide(self, values: Sequence[str]) -> None:
        for observer in self._observers:
            observer.hide(values)

    def plan(self, plan: Plan) -> None:
        for observer in self._observers:
            observer.plan(plan)

    def state(self, entry: wire.StateEntry) -> None:
        for observer in self._observers:
            observer.state(entry)

    def progress(self, progress: wire.Progress) -> None:
        for observer in self._observers:
            observer.progress(progress)

    def log(self, text: str) -> None:
        for observer in self._observers:
            observer.log(text)

    def result(self, result: wire.OrderResult) -> None:
        for observer in self._observers:
            observer.result(result)

    def collected(self, collected: wire.Collected) -> None:
        for observer in self._observers:
            observer.collected(collected)

    def hook(self, run: HookRun) -> None:
        for observer in self._observers:
            observer.hook(run)

    def notice(self, fate: wire.Fate) -> None:
        for observer in self._observers:
            observer.notice(fate)


class Hiding:
    """Hears of one of many, whose end alone is shown; what is secret is hidden all the same."""

    def __init__(self, hide: Callable[[Sequence[str]], None]) -> None:
        self.hide = hide

    @property
    def kept_in(self) -> str | None:
        """Nothing is kept."""
        return None

    def note(self, text: str) -> None:
        """Not shown."""

    def warn(self, text: str) -> None:
        """Not shown."""

    def plan(self, plan: Plan) -> None:
        """Not shown."""

    def state(self, entry: wire.StateEntry) -> None:
        """Not shown."""

    def progress(self, progress: wire.Progress) -> None:
        """Not shown."""

    def log(self, text: str) -> None:
        """Not shown."""

    def result(self, result: wire.OrderResult) -> None:
        """Not shown."""

    def collected(self, collected: wire.Collected) -> None:
        """Not kept."""

    def hook(self, run: HookRun) -> None:
        """Not shown."""

    def notice(self, fate: wire.Fate) -> None:
        """Not shown."""
