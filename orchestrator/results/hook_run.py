"""What became of a command around an order: for the screen, and for the run folder."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HookRun:
    """One command that was run here.

    Attributes:
        when: ``before`` or ``after`` the order.
        status: its exit status, negative for the signal that ended it; None: it could not be started, or was killed here.
        seconds: how long it took.
        output: the head and tail of its standard output, as text.
        errors: the same of its standard error.
        problem: why there is no status.
        refuses: whether the order is refused for it.
    """

    when: str
    command: Sequence[str]
    status: int | None
    seconds: float
    output: str = ""
    errors: str = ""
    problem: str = ""
    refuses: bool = False

    @property
    def good(self) -> bool:
        return self.status == 0

    @property
    def line(self) -> str:
        """The command as it would be typed."""
        return shlex.join(self.command)

    @property
    def ending(self) -> str:
        """How it ended, as the end of a sentence about it."""
        if self.problem:
            return self.problem
        after = f"after {self.seconds:.1f} s"
        if self.status is not None and self.status < 0:
            return f"was killed by {_signal_name(-self.status)} {after}"
        return f"ended well {after}" if self.good else f"ended with status {self.status} {after}"

    def last_errors(self, lines: int = 20) -> list[str]:
        """The end of what it said is wrong; where it said nothing there, of its output."""
        return (self.errors.splitlines() or self.output.splitlines())[-lines:]

    def text(self) -> str:
        """All that is kept of it."""
        parts = [f"$ {self.line}\n{self.ending}\n"]
        parts += [f"\n--- {name}\n{said}" for name, said in (("output", self.output), ("errors", self.errors)) if said]
        return "".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
