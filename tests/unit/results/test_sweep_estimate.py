"""How long a sweep may take, by the run folders of earlier relaunches and timings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.agent.codec import to_json
from orchestrator.agent.wire_measure import SCHEMA
from orchestrator.results.measurements import FILE
from orchestrator.results.sweep import Timing
from orchestrator.results.sweep_estimate import Pace, pace
from tests.unit.results.test_comparison import asked, measurement


def relaunch(root: Path, day: int, seconds: float, state: str = "DONE", service: str = "glm5") -> Path:
    folder = root / f"202611{day}T000000Z-relaunch-gpu1-{service}"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"state": state}))
    lines = [{"state": "CHECKED", "time": 1000.0}, {"state": "LOCKED", "time": 1001.0}, {"state": state, "time": 1000.0 + seconds}]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def timing(root: Path, day: int, seconds: float, sizes: tuple[int, ...] = (1, 4)) -> None:
    folder = root / f"202611{day}T000000Z-measure-gpu1-glm5"
    folder.mkdir(parents=True)
    report = asked(measurement(sizes=sizes), seconds=seconds).report
    (folder / FILE).write_text(json.dumps({"schema": SCHEMA, "place": "gpu1/101", "service": "glm5", "report": to_json(report)}))


def test_the_median_of_what_is_like_it(tmp_path: Path) -> None:
    for day, seconds in ((10, 60.0), (11, 80.0), (12, 100.0)):
        relaunch(tmp_path, day, seconds)
    relaunch(tmp_path, 13, 500.0, "RESTORED")
    relaunch(tmp_path, 14, 500.0, service="glm5x").rename(tmp_path / "20261114T000000Z-relaunch-gpu1-tiny")
    timing(tmp_path, 10, 30.0)
    timing(tmp_path, 11, 32.0)
    timing(tmp_path, 12, 900.0, sizes=(1,))
    known = pace("gpu1", "glm5", Timing([1, 4], 256, 256, 6), tmp_path)
    assert known == Pace(80.0, 3, 31.0, 2)
    assert known.seconds(4) == pytest.approx(4 * 111.0)


def test_nothing_is_made_up(tmp_path: Path) -> None:
    assert pace("gpu1", "glm5", Timing(), tmp_path / "none") == Pace()
    (relaunch(tmp_path, 10, 60.0) / "journal.jsonl").write_text("{")
    (tmp_path / "20261110T000000Z-measure-gpu1-glm5").mkdir()
    (tmp_path / "20261110T000000Z-measure-gpu1-glm5" / FILE).write_text("{}")
    found = pace("gpu1", "glm5", Timing(), tmp_path)
    assert found == Pace()
    assert found.seconds(2) is None


def test_other_repeats_are_another_timing(tmp_path: Path) -> None:
    timing(tmp_path, 10, 30.0)
    assert pace("gpu1", "glm5", Timing([1, 4], 256, 256, 7), tmp_path).timing is None
    assert pace("gpu1", "glm5", Timing([1, 4], 256, 128, 6), tmp_path).timing is None
