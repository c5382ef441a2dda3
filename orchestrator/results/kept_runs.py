"""A run folder, read again: what a command was, how it ended, and what it timed.

A file that is missing is no mistake: a run that was cut off has fewer, and each verb keeps its own. A file that can't be read is told
with the run (:attr:`KeptRun.problems`). Only without a readable ``run.json`` a folder is no run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.codec import WireError, from_json
from orchestrator.errors import InvalidTimingError, UsageError
from orchestrator.results.account import BUDGET_FILE, PROFILE_FILE
from orchestrator.results.measurements import FILE as MEASURE_FILE
from orchestrator.results.measurements import Measurement, load
from orchestrator.results.prep_record import PrepRecord, prep_record

if TYPE_CHECKING:
    from orchestrator.results.roll_records import Finished as Rolled
    from orchestrator.results.sweep_records import Finished

SWEEP_FILE = "sweep.jsonl"
ROLL_FILE = "roll.jsonl"
RUN_SCHEMA = "orchestrator.run/1"
ACCOUNTS = {BUDGET_FILE: "accounted", PROFILE_FILE: "traced"}
"""Files that tell where a step's time goes, with the word for a run that has made one."""
SUMMARY_FILES = (
    "run.json",
    "plan.json",
    "result.json",
    "error.json",
    "prep.json",
    MEASURE_FILE,
    SWEEP_FILE,
    ROLL_FILE,
    *ACCOUNTS,
    "events.jsonl",
)
"""What :func:`read_run` looks at."""

_YEAR_3000 = 32_503_680_000.0

T = TypeVar("T")


class NotARunError(ValueError):
    """A folder has no readable ``run.json``; the message says why, without the folder's name."""


@dataclass(frozen=True)
class RunRecord:
    """The run's ``run.json``: who typed what, when (Unix time), with which version of this program."""

    verb: str
    names: tuple[str, ...]
    started: float
    operator: str
    command: tuple[str, ...]
    orchestrator: str


@dataclass(frozen=True)
class KeptError:
    """The run's ``error.json``: why a verb did not do what was asked."""

    message: str
    evidence: tuple[str, ...]
    next_step: str | None
    exit_code: int
    category: str | None = None
    """None of a run that an earlier version of this program has kept."""


@dataclass(frozen=True)
class Ending:
    """How a run ended. `exit_code` is None where nobody can tell: it was cut off, or goes on. `category` classes a failure or a doubt."""

    exit_code: int | None
    word: str
    category: str = ""

    @property
    def told(self) -> str:
        """``RESTORED [out_of_memory]``."""
        return f"{self.word} [{self.category}]" if self.category else self.word


@dataclass(frozen=True)
class Accounted:
    """Of a run that accounts for a step's time: how it ended, and where the server runs, as the screen names it."""

    ending: Ending
    place: str | None


@dataclass(frozen=True)
class KeptRun:
    """What lies in a run folder, as far as it could be read.

    Attributes:
        plan: what was shown before the question, as JSON has it; None where nothing was asked.
        swept: how a sweep finished; None for one that has not, and for other runs.
        account: of a run that accounts for a step's time; all of it: :func:`orchestrator.results.kept_accounts.read_account`.
        rolled: how a roll finished; None for one that has not, and for other runs.
        last_state: the last state that was heard of an order.
    """

    path: Path
    record: RunRecord
    plan: dict[str, Any] | None = None
    result: wire.OrderResult | None = None
    error: KeptError | None = None
    measurement: Measurement | None = None
    prep: PrepRecord | None = None
    swept: Finished | None = None
    account: Accounted | None = None
    rolled: Rolled | None = None
    last_state: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def host(self) -> str | None:
        planned = _text(self.plan, "host")
        return planned or (self.record.names[0] if self.record.names else None)

    @property
    def service(self) -> str | None:
        planned = _text(self.plan, "service")
        return planned or (self.record.names[1] if len(self.record.names) > 1 else None)

    @property
    def place(self) -> str | None:
        """Where the server runs, as the screen names it; the host where nothing says more."""
        if self.measurement is not None:
            return self.measurement.place
        return (self.account.place if self.account is not None else None) or _text(self.plan, "place") or self.host

    @property
    def backend(self) -> str | None:
        """The profile that was launched or timed."""
        if self.measurement is not None:
            return self.measurement.report.covariates.backend
        launch = self.plan.get("launch") if self.plan is not None else None
        return _text(launch, "backend")

    @property
    def ending(self) -> Ending:
        if self.result is not None:
            return Ending(self.result.exit_code, self.result.state, self.result.failure.category if self.result.failure else "")
        if self.account is not None:
            return self.account.ending
        if self.measurement is not None:
            doubts = list(dict.fromkeys(item.reason for item in self.measurement.report.invalid))
            return Ending(InvalidTimingError.exit_code, "not believed", ", ".join(doubts)) if doubts else Ending(0, "measured")
        if self.prep is not None:
            return Ending(self.prep.exit_code, self.prep.mode)
        if self.swept is not None:
            return Ending(self.swept.exit_code, "swept")
        if self.rolled is not None:
            return Ending(self.rolled.exit_code, "rolled")
        if self.error is not None:
            return Ending(self.error.exit_code, f"left in {self.last_state}" if self.last_state else "error")
        return Ending(None, f"cut off in {self.last_state}" if self.last_state else "cut off")


def read_run(folder: Path) -> KeptRun:
    """Read a run folder.

    Raises:
        NotARunError: its ``run.json`` is missing or can't be understood.
    """
    record = _record(folder)
    problems: list[str] = []
    kept = _Files(folder, problems)
    result = kept.read("result.json", lambda data: from_json(wire.OrderResult, data))
    return KeptRun(
        path=folder,
        record=record,
        plan=kept.read("plan.json", _object),
        result=result,
        error=kept.read("error.json", _error),
        measurement=kept.measurement(),
        prep=kept.read("prep.json", prep_record),
        swept=kept.sweep(),
        rolled=kept.roll(),
        account=next(filter(None, [kept.read(name, _account(word)) for name, word in ACCOUNTS.items()]), None),
        last_state=result.state if result is not None else _last_state(folder),
        problems=tuple(problems),
    )


class _Files:
    """The JSON files of a folder; what is wrong with one is added to `problems`."""

    def __init__(self, folder: Path, problems: list[str]) -> None:
        self._folder = folder
        self._problems = problems

    def read(self, name: str, decode: Callable[[Any], T]) -> T | None:
        try:
            return decode(json.loads((self._folder / name).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._problems.append(f"{name}: {error.strerror or error}")
        except (ValueError, WireError) as error:
            self._problems.append(f"{name} can't be understood: {error}")
        return None

    def measurement(self) -> Measurement | None:
        if not (self._folder / MEASURE_FILE).exists():
            return None
        try:
            return load(self._folder)
        except UsageError as error:
            self._problems.append(error.message.removeprefix(f"{self._folder}/"))
            return None

    def sweep(self) -> Finished | None:
        if not (self._folder / SWEEP_FILE).exists():
            return None
        from orchestrator.results.sweep_journal import read_records

        try:
            return next((record for record in read_records(self._folder / SWEEP_FILE) if record.kind == "finished"), None)
        except UsageError as error:
            self._problems.append(error.message.removeprefix(f"{self._folder}/"))
            return None

    def roll(self) -> Rolled | None:
        if not (self._folder / ROLL_FILE).exists():
            return None
        from orchestrator.results.roll_journal import read_records

        try:
            return next((record for record in read_records(self._folder / ROLL_FILE) if record.kind == "finished"), None)
        except UsageError as error:
            self._problems.append(error.message.removeprefix(f"{self._folder}/"))
            return None


def _record(folder: Path) -> RunRecord:
    try:
        data = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise NotARunError(f"run.json: {error.strerror or error}") from error
    except ValueError as error:
        raise NotARunError(f"run.json is no JSON: {error}") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != RUN_SCHEMA:
        raise NotARunError(f"run.json has the schema {schema}, not {RUN_SCHEMA}")
    try:
        return RunRecord(
            verb=str(data["verb"]),
            names=tuple(map(str, data["names"])),
            started=_moment(data["started"]),
            operator=str(data.get("operator", "")),
            command=tuple(map(str, data.get("command", ()))),
            orchestrator=str(data.get("orchestrator", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotARunError(f"run.json can't be understood: {error!r}") from error


def _moment(value: Any) -> float:
    """A Unix time that a calendar can show."""
    moment = float(value)
    if not 0 <= moment < _YEAR_3000:
        raise ValueError(f"{moment:g} is no time of a run")
    return moment


def _account(word: str) -> Callable[[Any], Accounted]:
    """Reads such a file; `word` is for one that is to be believed."""

    def read(data: Any) -> Accounted:
        valid = _object(data).get("valid")
        if not isinstance(valid, bool):
            raise ValueError(f"valid is {valid!r}, neither true nor false")
        ending = Ending(0, word) if valid else Ending(InvalidTimingError.exit_code, "not believed")
        return Accounted(ending, _text(data, "place"))

    return read


def _object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {type(data).__name__}")
    return data


def _error(data: Any) -> KeptError:
    found = _object(data)
    message, code, evidence = found.get("message"), found.get("exit_code"), found.get("evidence", [])
    if not isinstance(message, str) or not isinstance(code, int) or not isinstance(evidence, list):
        raise ValueError("expected a message, an exit_code and a list of evidence")
    return KeptError(message, tuple(map(str, evidence)), _text(found, "next_step"), code, _text(found, "category"))


def _text(data: Any, name: str) -> str | None:
    """A text of a document that was written by this program or an earlier one: whatever else stands there is nothing."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, str) and value else None


def _last_state(folder: Path) -> str | None:
    states = [
        _text(event.get("data"), "state") for event in read_lines(folder / "events.jsonl") if event.get("kind") == wire.EventKind.STATE
    ]
    return states[-1] if states else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a torn line, such as the last one of a run that was killed, is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found.append(data)
    return found
