"""What the accounts of a decode step's time have in common, whether its parts were timed alone or it was traced. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import InvalidTimingError

BUDGET_FILE = "budget.json"
PROFILE_FILE = "profile.json"
"""Of a run folder; beside it lie the traces."""


@dataclass(frozen=True)
class Account:
    """Where the time of a decode step goes. `doubts` say why it is not to be believed; it is kept all the same."""

    doubts: Sequence[str]

    @property
    def valid(self) -> bool:
        return not self.doubts

    @property
    def exit_code(self) -> int:
        return 0 if self.valid else InvalidTimingError.exit_code
