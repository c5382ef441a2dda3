"""Locks in caches of compiled kernels that nobody of the launch will release."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.jit_locks import foreign_locks

HOLDER = "import fcntl, sys; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


def launch(home: Path, **environment: str) -> wire.Launch:
    return wire.Launch("l1", "svc", "auto", "/py", [], "127.0.0.1", 1, environment={"HOME": str(home), **environment})


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / ".cache/flashinfer/0.7.2/120f/cached_ops/tmp/fused_moe_120.lock"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


@pytest.fixture
def holder(lock: Path) -> Iterator[int]:
    """Another process that holds it."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.communicate()


def test_a_lock_of_somebody_else_is_told_with_its_holder(tmp_path: Path, lock: Path, holder: int) -> None:
    (found,) = foreign_locks(launch(tmp_path), {os.getpid()}, time.time())

    assert found.startswith(f"{lock}: held by process {holder} (python")


def test_a_lock_that_the_launch_itself_holds_is_not_told(tmp_path: Path, lock: Path, holder: int) -> None:
    assert foreign_locks(launch(tmp_path), {holder}, time.time()) == []


@pytest.mark.usefixtures("lock")
def test_a_file_that_nobody_holds_is_no_lock(tmp_path: Path) -> None:
    assert foreign_locks(launch(tmp_path), set(), time.time()) == []


def test_the_same_number_on_another_file_system_is_not_told(tmp_path: Path, lock: Path) -> None:
    tree = tmp_path / "proc"
    (tree / "7/fd").mkdir(parents=True)
    (tree / "7/fd/3").symlink_to("/elsewhere/x.lock")
    (tree / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 7 08:01:{lock.stat().st_ino} 0 EOF\n", encoding="utf-8")

    assert foreign_locks(launch(tmp_path), set(), time.time(), tree) == []


def test_a_lock_of_another_cache_is_found_where_the_launch_says_it_is(tmp_path: Path) -> None:
    baton = tmp_path / "ext/py312/fused/lock"
    baton.parent.mkdir(parents=True)
    baton.touch()
    os.utime(baton, (1000.0, 1000.0))

    (found,) = foreign_locks(launch(tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path / "ext")), set(), 1060.0)

    assert found == f"{baton}: left behind 60 s before this launch"


def test_a_baton_of_this_launch_is_not_told(tmp_path: Path) -> None:
    baton = tmp_path / ".cache/torch_extensions/fused/lock"
    baton.parent.mkdir(parents=True)
    baton.touch()

    assert foreign_locks(launch(tmp_path), set(), baton.stat().st_mtime - 1) == []


def test_without_any_cache_nothing_is_told(tmp_path: Path) -> None:
    assert foreign_locks(launch(tmp_path), set(), time.time(), tmp_path / "no-proc") == []


def test_flock_is_what_the_kernel_lists(tmp_path: Path, lock: Path) -> None:
    """The premise: /proc/locks shows our own flock with our number and the file's inode."""
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)

        assert any(f"{lock}: held by process {os.getpid()}" in line for line in foreign_locks(launch(tmp_path), set(), time.time()))
