"""What became of each step, kept so that a second call goes on where the first one ended, and told as a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "orchestrator.gpu-run/1"


class Verdict:
    """The values of :attr:`StepRecord.verdict`."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    """Something that it needs is not there; `why` says what. It is tried again by the next call."""
    BEGUN = "begun"
    """No word of its end: the call was cut off in it. It is tried again by the next call."""

    SETTLED = frozenset({PASSED, FAILED})


@dataclass(frozen=True)
class StepRecord:
    """One step. `began` is Unix time, `seconds` what it took, of them `prepared` to bring the box into the state that it starts from.

    `seen` are the few things worth a place in the table; `why` is empty where it passed. `call` counts the driver's calls from 1.
    """

    name: str
    verdict: str
    why: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    prepared: float = 0.0
    call: int = 0


@dataclass
class RunRecord:
    """The run as a whole. `machine` are facts for the head of the table, `columns` a table of decode timings where they were taken."""

    steps: dict[str, StepRecord] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """What a later call must take over, such as ports."""
    calls: int = 0

    def put(self, step: StepRecord) -> None:
        self.steps[step.name] = step

    @property
    def failed(self) -> list[str]:
        return [name for name, step in self.steps.items() if step.verdict == Verdict.FAILED]


def chosen_steps(names: Sequence[str], done: Mapping[str, StepRecord], only: Sequence[str] = (), again: Iterable[str] = ()) -> list[str]:
    """The steps of this call, in the order of `names`: of those in `only` (all of them where that is empty), without those settled already.

    Raises:
        ValueError: there is no step of that name.
    """
    again = list(again)
    unknown = sorted({*only, *again} - set(names))
    if unknown:
        raise ValueError(f"there is no step {unknown[0]}; there are {', '.join(names)}")
    wanted = [name for name in names if name in again or not only or name in only]
    return [name for name in wanted if name in again or name not in done or done[name].verdict not in Verdict.SETTLED]


def load(path: Path) -> RunRecord:
    """What earlier calls have kept; an empty record where there was none.

    Raises:
        ValueError: the file is something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return RunRecord()
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no record of a GPU run")
    steps = {name: StepRecord(**step) for name, step in data["steps"].items()}
    return RunRecord(steps, data["machine"], data["columns"], data["settings"], data["calls"])


def save(record: RunRecord, path: Path) -> None:
    """Replace the file as a whole: a call that is killed leaves the one before."""
    fresh = path.with_suffix(".new")
    text = json.dumps({"schema": SCHEMA, **asdict(record)}, indent=1, ensure_ascii=False)
    fresh.write_text(text + "\n", encoding="utf-8")
    os.replace(fresh, path)


def table(record: RunRecord, names: Sequence[str]) -> str:
    """The run as Markdown: the machine, a row for each step in the order of `names`, the decode timings."""
    lines = [f"- {name}: {value}" for name, value in record.machine.items()]
    lines += ["", "| step | verdict | seconds | of them to get there | seen |", "|---|---|---|---|---|"]
    lines += [_row(record.steps.get(name) or StepRecord(name, Verdict.NOT_RUN, ["not reached"])) for name in names]
    if record.columns:
        lines += ["", *record.columns]
    return "\n".join(lines).lstrip("\n") + "\n"


def _row(step: StepRecord) -> str:
    ran = step.verdict in Verdict.SETTLED
    times = [f"{step.seconds:.0f}", f"{step.prepared:.0f}"] if ran else ["", ""]
    told = "; ".join(_cell(text) for text in [*step.why, *step.seen])
    return "| " + " | ".join([step.name, step.verdict, *times, told]) + " |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
