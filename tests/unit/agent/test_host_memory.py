"""How much memory may still be taken, on trees of /proc and of cgroups. Version 1 is also read for real where it is mounted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.agent import host_memory
from orchestrator.agent.host_memory import GIB, HostMemory, Limit

TREES = Path(__file__).parents[2] / "data/cgroup_trees"
UNIT = "system.slice/sglang-x.service"
VERSION_2 = "sys/fs/cgroup"
VERSION_1 = "sys/fs/cgroup/memory"


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    return tree("v2_fixture", tmp_path)


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    return tree("v1_hybrid_fixture", tmp_path)


def tree(name: str, to: Path) -> Path:
    """A machine with 100 GiB available, on which this process runs in a unit of its own."""
    root = Path(shutil.copytree(TREES / name, to / name))
    shutil.copytree(root / "proc/77", root / "proc/self")
    (root / "proc/meminfo").write_text(f"MemTotal:  {128 * GIB >> 10} kB\nMemAvailable:   {100 * GIB >> 10} kB\n", encoding="ascii")
    return root


def limit(folder: Path, gib: float, used: float, inactive: float) -> None:
    """A memory cgroup with a limit, as its version writes it."""
    first = "memory" in folder.parts and "cgroup" in folder.parts and VERSION_1 in str(folder)
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if first
        else (
            "memory.max",
            "memory.current",
            "inactive_file",
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{int(gib * GIB)}\n", encoding="ascii")
    (folder / names[1]).write_text(f"{int(used * GIB)}\n", encoding="ascii")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {int(inactive * GIB)}\nfile 3\n", encoding="ascii")


@pytest.mark.parametrize("mount", [VERSION_2, VERSION_1])
def test_a_limit_of_the_container_is_tighter_than_the_machine(tmp_path: Path, mount: str) -> None:
    root = tree("v2_fixture" if mount == VERSION_2 else "v1_hybrid_fixture", tmp_path)
    limit(root / mount, 32, used=30, inactive=6)
    found = host_memory.read(in_systems_hands=True, root=root)
    assert found.free == 8 * GIB
    assert found.whole == 32 * GIB
    name = "memory.max" if mount == VERSION_2 else "memory.limit_in_bytes"
    assert found.told() == f"8.0 GiB of memory are free within /{mount}/{name} (32.0 GiB)"


@pytest.mark.parametrize("mount", [VERSION_2, VERSION_1])
def test_a_unit_of_its_own_has_no_limit_of_another_unit(tmp_path: Path, mount: str) -> None:
    """The supervisor's own unit may be small; a launch gets one of its own beside it."""
    root = tree("v2_fixture" if mount == VERSION_2 else "v1_hybrid_fixture", tmp_path)
    limit(root / mount / UNIT, 1, used=0.5, inactive=0)
    limit(root / mount / "system.slice", 64, used=10, inactive=0)
    assert host_memory.read(in_systems_hands=True, root=root).free == 54 * GIB
    assert host_memory.read(in_systems_hands=False, root=root).free == GIB // 2


def test_of_two_levels_the_one_with_less_left_counts(version_2: Path) -> None:
    limit(version_2 / VERSION_2, 64, used=60, inactive=0)
    limit(version_2 / VERSION_2 / "system.slice", 32, used=2, inactive=0)
    assert host_memory.read(in_systems_hands=True, root=version_2).free == 4 * GIB


def test_memory_high_is_a_limit_too(version_2: Path) -> None:
    limit(version_2 / VERSION_2, 64, used=10, inactive=0)
    (version_2 / VERSION_2 / "memory.high").write_text(f"{16 * GIB}\n", encoding="ascii")
    assert host_memory.read(in_systems_hands=True, root=version_2).free == 6 * GIB


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n", "", "nonsense"])
def test_what_is_no_limit_bounds_nothing(version_1: Path, version_2: Path, text: str) -> None:
    for root, folder, name in ((version_2, VERSION_2, "memory.max"), (version_1, VERSION_1, "memory.limit_in_bytes")):
        limit(root / folder, 1, used=0.5, inactive=0)
        (root / folder / name).write_text(text, encoding="ascii")
        found = host_memory.read(in_systems_hands=True, root=root)
        assert (found.free, found.whole) == (100 * GIB, 128 * GIB)
        assert found.told() == "100.0 GiB of memory are available"


def test_a_container_sees_the_hosts_path_in_front_of_its_own(version_2: Path) -> None:
    (version_2 / "proc/self/cgroup").write_text("0::/lxc/101/ns/user.slice/user-0.slice/session-1.scope\n", encoding="ascii")
    limit(version_2 / VERSION_2 / "lxc/101", 8, used=1, inactive=0)
    limit(version_2 / VERSION_2 / "lxc/101/ns/user.slice", 1, used=1, inactive=0)
    assert host_memory.read(in_systems_hands=True, root=version_2).free == 7 * GIB
    assert host_memory.read(in_systems_hands=False, root=version_2).free == 0


def test_where_nobody_says_nothing_is_known(tmp_path: Path) -> None:
    found = host_memory.read(in_systems_hands=True, root=tmp_path)
    assert (found.free, found.whole) == (None, 0)
    assert found.told() == "how much memory is free is unknown"
    assert host_memory.swapped_out(tmp_path) is None


def test_a_limit_counts_where_meminfo_says_nothing() -> None:
    assert HostMemory(None, 0, [Limit("/f", 10 * GIB, 4 * GIB)]).free == 6 * GIB


def test_this_machine_says_something() -> None:
    found = host_memory.read(in_systems_hands=False)
    assert found.free is not None
    assert 0 <= found.free <= found.whole
    assert host_memory.swapped_out() is not None
    assert host_memory.resident([os.getpid()]) > 10 << 20
    assert host_memory.resident([2**22 + 1]) == 0


def test_sizes_are_for_a_person() -> None:
    assert [host_memory.size(count) for count in (0, 300 << 20, 3 * GIB // 2)] == ["0 MiB", "300 MiB", "1.5 GiB"]
