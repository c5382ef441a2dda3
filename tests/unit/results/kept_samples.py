"""Run folders for tests: those of the lab, as they were kept, and timings whose figures are chosen."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.agent.wire_base import to_json
from orchestrator.agent.wire_measure import SCHEMA, BatchTiming, Interval, Invalid, Reason
from orchestrator.results.kept_runs import RUN_SCHEMA
from orchestrator.results.measurements import FILE, Measurement
from tests.unit.results.test_comparison import asked, measurement, repeat

LAB_RUNS = Path(__file__).parents[2] / "data" / "runs"
"""Kept by this program on the lab: a server started by hand is timed, relaunched with a faster backend and timed again; on another host the
same relaunch fails and is put back, and what serves is torn down. Logs are left out, names and paths replaced."""
MEASURED = "20261130T065336Z-measure-lab-b200-glm5-b200"
RELAUNCHED = "20261130T065413Z-relaunch-lab-b200-glm5-b200"
MEASURED_AGAIN = "20261130T065450Z-measure-lab-b200-glm5-b200"
RESTORED = "20261130T065540Z-relaunch-lab-rtx6000-glm5-rtx6000"
TORN_DOWN = "20261130T065618Z-teardown-lab-rtx6000-glm5-rtx6000"

HOSTILE = "<script>document.documentElement.dataset.ran=1</script>\"'&"


def lab_runs(root: Path) -> Path:
    """A copy of the lab's run folders below `root`."""
    return Path(shutil.copytree(LAB_RUNS, root / "runs"))


def timed(launch: str, backend: str, milliseconds: Sequence[tuple[int, float]], spread: float = 0.05, **more: Any) -> Measurement:
    """A timing with these medians by batch size, each in an interval of `spread` to both sides."""
    batches = [_batch(size, value / 1000, spread) for size, value in milliseconds]
    return asked(measurement(launch, backend=backend, **more), batches=batches)


def _batch(size: int, seconds: float, spread: float) -> BatchTiming:
    def interval(middle: float) -> Interval:
        return Interval(middle, middle * (1 - spread), middle * (1 + spread), 0.96875, 6)

    return BatchTiming(
        size,
        [repeat(seconds)] * 6,
        time_to_first_token=interval(0.05),
        time_per_output_token=interval(seconds),
        tokens_per_second_per_stream=interval(1 / seconds),
        tokens_per_second=interval(size / seconds),
    )


def doubted(item: Measurement, detail: str = "3 requests ran at once, 2 were ours", batch_size: int | None = None) -> Measurement:
    return asked(item, invalid=[Invalid(Reason.OTHERS, detail, batch_size)])


def keep(root: Path, item: Measurement, started: float = 1_796_000_000.0, names: Sequence[str] = ("gpu1", "glm5")) -> Path:
    """Keep a timing as ``fab measure`` does; returns its folder."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started))
    folder = root / "-".join([stamp, "measure", *names])
    keep_record(folder, "measure", started, names)
    document = {"schema": SCHEMA, "place": item.place, "service": item.service, "valid": item.valid, "report": item.report}
    (folder / FILE).write_text(json.dumps(to_json(document)), encoding="utf-8")
    return folder


def keep_record(folder: Path, verb: str = "measure", started: float = 1_796_000_000.0, names: Sequence[str] = ("gpu1", "glm5")) -> Path:
    """A run folder with its ``run.json`` alone, as a run that was cut off leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "schema": RUN_SCHEMA,
        "verb": verb,
        "names": list(names),
        "command": ["/usr/bin/fab", verb],
        "operator": "kim@laptop",
        "started": started,
        "orchestrator": "0.1.0",
    }
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def relabelled(item: Measurement, **changes: Any) -> Measurement:
    return dataclasses.replace(item, **changes)
