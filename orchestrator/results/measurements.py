"""Decode timings as they lie in run folders."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.agent.codec import WireError, from_json
from orchestrator.agent.wire_measure import SCHEMA, BatchTiming, MeasureReport
from orchestrator.errors import UsageError
from orchestrator.results.runs import RunFolder, runs_root

if TYPE_CHECKING:
    from orchestrator.results.floor import Given

FILE = "measure.json"


@dataclass(frozen=True)
class Measurement:
    """One timing. `label` is its run folder's name."""

    label: str
    place: str
    service: str
    report: MeasureReport

    @property
    def valid(self) -> bool:
        return not self.report.invalid

    @property
    def launch(self) -> str:
        """What tells the server that was timed from any other: its launch, else its process and when that began."""
        found = self.report.covariates
        return f"{self.place}/{found.launch_id or f'{found.main_pid}@{found.started}'}"

    def values(self, batch: BatchTiming) -> list[float]:
        """The time per output token of each repeat that nothing speaks against, in order; of all, if something does against each."""
        doubted = {item.repeat for item in self.report.invalid if item.batch_size == batch.batch_size}
        good = [repeat.time_per_output_token for place, repeat in enumerate(batch.repeats) if place not in doubted]
        return good or [repeat.time_per_output_token for repeat in batch.repeats]


def keep(folder: RunFolder, host: str, place: str, service: str, report: MeasureReport, given: Given) -> None:
    """Keep a timing in a run folder, with what somebody has written down of the service's floor."""
    folder.keep(
        FILE,
        {
            "schema": SCHEMA,
            "host": host,
            "place": place,
            "service": service,
            "valid": not report.invalid,
            "report": report,
            "floor": dataclasses.asdict(given),
        },
    )


def load_side(names: str, root: Path | None = None) -> list[Measurement]:
    """The timings that a side of a comparison is made of: run folders with commas, by path or by their name in RUNS.

    Raises:
        UsageError: there is no such folder, or no decode timing in it.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UsageError("a side of a comparison needs a run folder", next_step="fab measure, which keeps one")
    return [load(_folder(name, root or runs_root())) for name in wanted]


def _folder(name: str, root: Path) -> Path:
    candidates = (Path(name).expanduser(), root / name)
    found = next((path for path in candidates if path.is_dir()), None)
    if found is None:
        raise UsageError(f"no run folder {name}, neither here nor in {root}", evidence=_timings_in(root), next_step="ls " + str(root))
    return found


def _timings_in(root: Path) -> list[str]:
    """The newest runs that could have been meant."""
    return [path.parent.name for path in sorted(root.glob(f"*/{FILE}"), reverse=True)[:5]]


def load(folder: Path) -> Measurement:
    """Read a run folder's timing.

    Raises:
        UsageError: it has none, or one of another schema.
    """
    path = folder / FILE
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{folder} holds no decode timing: {error.strerror or error}", next_step="name a folder of fab measure") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", next_step="fab measure, which makes a new one") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise UsageError(f"{path} has the schema {schema}, not {SCHEMA}", next_step="fab measure, which makes a new one")
    try:
        report = from_json(MeasureReport, data.get("report"))
    except WireError as error:
        raise UsageError(f"{path} can't be read: {error}", next_step="fab measure, which makes a new one") from error
    return Measurement(folder.name, str(data.get("place")), str(data.get("service")), report)


def batch_sizes(sides: Sequence[Sequence[Measurement]]) -> list[int]:
    """Those that every side has timed."""
    timed = [{batch.batch_size for item in side for batch in item.report.batches if batch.repeats} for side in sides]
    return sorted(set.intersection(*timed))
