"""OOM kills as the memory cgroup counts them.

The tree of version 2 is a fixture (this is how Proxmox 8 and 9 look, no machine of ours); version 1 is also read for real.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.agent.oom_kills import OomKills, OomMeter

TREES = Path(__file__).parents[2] / "data/cgroup_trees"
UNIT = "sys/fs/cgroup/system.slice/sglang-x.service"


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    return copy("v2_fixture", tmp_path)


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return copy("v1_hybrid_fixture", tmp_path)


def copy(name: str, to: Path) -> Path:
    return Path(shutil.copytree(TREES / name, to / "root"))


def count(path: Path, kills: int) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"oom_kill {kills}\n" if line.startswith("oom_kill ") else f"{line}\n" for line in lines), encoding="utf-8")


def test_version_2_counts_from_the_start_of_the_launch(version_2: Path) -> None:
    meter = OomMeter(77, version_2)
    before = meter.read()
    count(version_2 / UNIT / "memory.events", 3)

    assert before == OomKills(0, f"/{UNIT}/memory.events", 0)
    assert meter.read() == OomKills(1, f"/{UNIT}/memory.events", 0)


def test_when_the_units_cgroup_is_gone_the_one_above_counts(version_2: Path) -> None:
    meter = OomMeter(77, version_2)
    meter.sample()
    count(version_2 / "sys/fs/cgroup/system.slice/memory.events", 8)
    shutil.rmtree(version_2 / UNIT)

    assert meter.read() == OomKills(1, "/sys/fs/cgroup/system.slice/memory.events", 0)


def test_a_kill_in_another_unit_is_not_the_launchs(version_2: Path) -> None:
    meter = OomMeter(77, version_2)
    count(version_2 / "sys/fs/cgroup/system.slice/memory.events", 8)

    assert meter.read().kills == 0


def test_version_1_keeps_what_it_saw_when_the_cgroup_goes(version_1: Path) -> None:
    own = version_1 / "sys/fs/cgroup/memory/system.slice/sglang-x.service"
    meter = OomMeter(77, version_1)
    count(own / "memory.oom_control", 1)
    meter.sample()
    shutil.rmtree(own)

    assert meter.read() == OomKills(1, "/sys/fs/cgroup/memory/system.slice/sglang-x.service/memory.oom_control", 0)


def test_version_1_says_nothing_of_the_levels_above(version_1: Path) -> None:
    """It counts only in the process's own cgroup: another's zero proves nothing."""
    meter = OomMeter(77, version_1)
    shutil.rmtree(version_1 / "sys/fs/cgroup/memory/system.slice/sglang-x.service")
    count(version_1 / "proc/vmstat", 5)

    assert meter.read() == OomKills(None, "", 1)


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/../elsewhere\n", "4:memory:/not/there\n"])
def test_where_nothing_counts_nothing_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/cgroup").write_text(text, encoding="utf-8")

    assert OomMeter(77, tmp_path).read() == OomKills()
    assert OomMeter(78, tmp_path).read() == OomKills()


def test_this_machine_counts_one_way_or_the_other() -> None:
    found = OomMeter(os.getpid()).read()

    assert found.machine is not None
    assert found.machine >= 0
    assert found.kills is None or found.source.startswith("/sys/fs/cgroup/")
