"""What is the same in every document: the version, the verb, how it ended. Imports nothing heavy: a refused command line needs it too."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from orchestrator.agent.codec import to_json

if TYPE_CHECKING:
    from orchestrator.errors import OrchestratorError

SCHEMA = "1"
"""Of all documents. It changes when a field is taken away, renamed or means something else, not when one is added."""


@dataclass(frozen=True)
class Problem:
    """Why something was not done.

    Attributes:
        category: what kind of failure it is, such as ``refused``, ``unreachable``, ``locked``, ``usage``, ``interrupted``.
        message: one sentence.
        evidence: what shows it, a line each.
        next_step: what to type or do next; null where nothing is better than thinking.
        exit_code: the exit code that stands for it.
        see: the commands that show pages which tell more.
    """

    category: str
    message: str
    evidence: list[str]
    next_step: str | None
    exit_code: int
    see: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, error: OrchestratorError) -> Problem:
        """The same as data."""
        from orchestrator.cli.text import commands

        see = commands(error.see)
        return cls(error.category, error.message, list(error.evidence), error.next_step, error.exit_code, see)


@dataclass(frozen=True)
class Envelope:
    """Comes first in every document.

    Attributes:
        schema: the version of the documents.
        verb: the verb's whole name; null where the command line named none.
        exit_code: the exit code of the process (see the README's table).
        error: why the verb did not do what was asked; null where it did, also when its answer is bad news. With an error nothing of the
            answer follows, except the `plan`, the `result`, the `hooks` and the `notice` that were known by then.
        run: the run folder that was kept of this call; null where none was.
    """

    schema: str
    verb: str | None
    exit_code: int
    error: Problem | None = None
    run: str | None = None


def document(envelope: Envelope, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Envelope and answer as JSON's own types."""
    whole: dict[str, Any] = plain({**vars(envelope), **answer})
    return whole


def refusal(verb: str | None, problem: Problem) -> str:
    """The document of a command line that never came to its verb, as text."""
    return written(document(Envelope(SCHEMA, verb, problem.exit_code, problem), {}))


def written(data: Any) -> str:
    """JSON's own types as text, as every document is written."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def written_on_a_line(data: Any) -> str:
    """The same where there is one a line: of many at once."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Data classes, models and paths as JSON's own types. JSON has no infinity: what has no bound is null."""
    return _plain(to_json(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(value, "model_dump", None)
    return value if dump is None else _plain(dump(mode="json", by_alias=True))
