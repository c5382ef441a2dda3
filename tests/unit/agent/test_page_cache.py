"""Bringing a checkpoint's files into the page cache: real files on a disk, imagined memory."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import host_memory, model_files, page_cache, resident_pages, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.host_memory import GIB, HostMemory
from orchestrator.agent.model_files import ModelFile, ModelFiles
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Outcome

MIB = 1 << 20
LAUNCH = wire.Launch("new", "svc", "auto", "/py", [], "127.0.0.1", 1)
PLENTY = HostMemory(100 * GIB, 10 * GIB)
STAGED = 4 * GIB
"""What a staged server needs by default; others keep 1 GiB."""


class Checkpoint:
    """Two files of weights on a disk, which can be put out of the page cache."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "model-1.safetensors", folder / "model-2.safetensors"]
        for path in self.paths:
            with path.open("wb") as stream:
                stream.write(os.urandom(1 * MIB) * 12)
                os.fsync(stream.fileno())
        self.launch = dataclasses.replace(LAUNCH, arguments=["--model-path", str(folder)])

    def drop(self, *paths: Path) -> None:
        """Until no page is left: the kernel keeps what another processor is just putting on its lists."""
        for path in paths or self.paths:
            assert wait_until(functools.partial(_dropped, path), Deadline(20.0)), path

    def held(self) -> list[bool]:
        """Whether all of each file is in the page cache."""
        return [_pages(path) == 12 * MIB // mmap.PAGESIZE for path in self.paths]


def _dropped(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return _pages(path) == 0


def _pages(path: Path) -> int:
    """How many pages of a file are in the page cache, by mincore(2)."""
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapped:
        found = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(mapped)), found)
        del start  # else the mapping can't be closed
    assert failed == 0
    return sum(page & 1 for page in found)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    (tmp_path / "model").mkdir()
    made = Checkpoint(tmp_path / "model")
    assert made.held() == [True, True]
    monkeypatch.setattr(page_cache, "_memory", lambda: PLENTY)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(str(tmp_path / "state"), "svc")


def warm(checkpoint: Checkpoint, folder: StateFolder, **policy: Any) -> tuple[wire.Verdict, list[str]]:
    told: list[str] = []
    verdicts = page_cache.warm(checkpoint.launch, folder, wire.Policy(**policy), lambda _, detail: told.append(detail))
    assert len(verdicts) == 1
    return verdicts[0], told


def test_files_are_read_once_and_told_in_bytes(checkpoint: Checkpoint, folder: StateFolder) -> None:
    checkpoint.drop()
    verdict, told = warm(checkpoint, folder)
    assert (verdict.outcome, checkpoint.held()) == (Outcome.PASS, [True, True])
    assert re.match(r"24 MiB of weights are in the page cache: 24 MiB were read in \d+ s", verdict.detail)
    assert told[-1] == "24 MiB of 24 MiB, 24 MiB of it read"
    again, _ = warm(checkpoint, folder)
    assert again.detail.startswith("24 MiB of weights are in the page cache: 24 MiB were there")


def test_only_what_is_missing_is_read(checkpoint: Checkpoint, folder: StateFolder) -> None:
    checkpoint.drop(checkpoint.paths[1])
    verdict, _ = warm(checkpoint, folder)
    assert "12 MiB were there, 12 MiB were read" in verdict.detail


def test_the_rate_is_held_while_the_operator_is_listened_to(checkpoint: Checkpoint, folder: StateFolder) -> None:
    checkpoint.drop()
    pulses: list[float] = []
    began = time.monotonic()
    page_cache.warm(checkpoint.launch, folder, wire.Policy(warm_rate=12.0), lambda *_: None, lambda: pulses.append(time.monotonic()))
    # 25.2 MB at 12 MB/s; the last piece's share is waited for too.
    assert time.monotonic() - began >= 2.05
    assert len(pulses) >= 4


def test_what_the_pulse_raises_ends_it(checkpoint: Checkpoint, folder: StateFolder) -> None:
    def cancelled() -> None:
        raise InterruptedError

    checkpoint.drop()
    with pytest.raises(InterruptedError):
        page_cache.warm(checkpoint.launch, folder, wire.Policy(), lambda *_: None, cancelled)
    assert checkpoint.held() == [False, False]


def test_what_does_not_fit_is_read_from_the_front_only(
    checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.drop()
    monkeypatch.setattr(page_cache, "_memory", lambda: HostMemory(STAGED + GIB + 16 * MIB, 10 * GIB))
    verdict, _ = warm(checkpoint, folder)
    assert verdict.outcome == Outcome.WARN
    assert re.match(r"16 MiB of 24 MiB of weights are in the page cache: 16 MiB were read in \d+ s; more than 16 MiB", verdict.detail)
    assert "5.0 GiB of memory are available, 4.0 GiB of it for a staged server and 1.0 GiB for others" in verdict.detail
    assert checkpoint.held() == [True, False]


def test_without_room_nothing_is_read(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    monkeypatch.setattr(page_cache, "_memory", lambda: HostMemory(5 * GIB, 10 * GIB))
    verdict, _ = warm(checkpoint, folder)
    assert (verdict.outcome, checkpoint.held()) == (Outcome.WARN, [False, False])
    monkeypatch.setattr(page_cache, "_memory", lambda: HostMemory(None))
    assert warm(checkpoint, folder)[0].outcome == Outcome.UNKNOWN


def test_it_ends_when_the_machine_begins_to_swap(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    pages = iter([1000, 1200, 1257, 1300])
    monkeypatch.setattr(host_memory, "swapped_out", lambda: next(pages))
    verdict, _ = warm(checkpoint, folder, warm_rate=16.0)
    assert verdict.outcome == Outcome.WARN
    assert verdict.detail.endswith("; the machine has begun to swap")
    assert checkpoint.held()[1] is False


def test_it_ends_when_memory_becomes_short(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    left = iter([PLENTY, PLENTY, HostMemory(GIB // 2, 10 * GIB)])
    monkeypatch.setattr(page_cache, "_memory", lambda: next(left))
    verdict, _ = warm(checkpoint, folder, warm_rate=16.0)
    assert verdict.detail.endswith("memory has become short: 512 MiB of memory are available")


def test_a_slow_disk_is_not_waited_for_without_end(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    monkeypatch.setattr(page_cache, "LONGEST_SECONDS", 0.2)
    verdict, _ = warm(checkpoint, folder, warm_rate=10.0)
    assert verdict.outcome == Outcome.WARN
    assert "it took longer than 0.2 s" in verdict.detail


def test_a_disk_that_hangs_is_left_behind(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    monkeypatch.setattr(page_cache, "_STUCK_SECONDS", 0.2)
    monkeypatch.setattr(page_cache, "_read_slice", lambda *_: time.sleep(30))
    verdict, _ = warm(checkpoint, folder)
    assert "no answer within 0.2 s" in verdict.detail


def test_a_file_that_can_not_be_read_is_told(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ModelFiles((ModelFile(str(checkpoint.paths[0].parent / "gone"), 5),))
    monkeypatch.setattr(model_files, "find", lambda *_: files)
    verdict, _ = warm(checkpoint, folder)
    assert (verdict.outcome, "No such file or directory" in verdict.detail) == (Outcome.WARN, True)


def test_where_nobody_tells_what_was_there_all_is_read(
    checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_pages, "may_ask", lambda _: False)
    verdict, _ = warm(checkpoint, folder)
    assert verdict.outcome == Outcome.PASS
    assert re.search(r"24 MiB were read in \d+ s, and nobody can tell what of it was there", verdict.detail)
    looked = page_cache.look(checkpoint.launch, wire.Policy(), STAGED)
    assert (looked.outcome, "can't be told" in looked.detail) == (Outcome.UNKNOWN, True)


def test_a_rate_of_zero_reads_nothing(checkpoint: Checkpoint, folder: StateFolder) -> None:
    checkpoint.drop()
    assert "warm_rate is 0" in warm(checkpoint, folder, warm_rate=0.0)[0].detail
    assert checkpoint.held() == [False, False]


@pytest.mark.parametrize(
    ("kinds", "outcome", "words"),
    [
        (["zfs"], Outcome.UNKNOWN, "ZFS keeps a cache of its own (ARC), so nobody can tell"),
        (["ext4", "zfs"], Outcome.UNKNOWN, "ZFS keeps"),
        (["tmpfs"], Outcome.PASS, "are in memory already (tmpfs)"),
        (["nfs4"], Outcome.PASS, "; they lie on nfs4, whose server and cache nobody looked at"),
        (["fuse.sshfs"], Outcome.PASS, "; they lie on fuse.sshfs"),
    ],
)
def test_file_systems_are_told_apart(
    checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch, kinds: list[str], outcome: str, words: str
) -> None:
    checkpoint.drop()
    monkeypatch.setattr(model_files, "mounts", lambda *_: kinds)
    verdict, _ = warm(checkpoint, folder)
    assert (verdict.outcome, words in verdict.detail) == (outcome, True)
    assert checkpoint.held()[0] is (kinds[0] in {"nfs4", "fuse.sshfs"})


def test_a_look_reads_nothing(checkpoint: Checkpoint) -> None:
    policy = wire.Policy(warm_rate=2.0)
    assert page_cache.look(checkpoint.launch, policy, STAGED).detail == "about 100% of 24 MiB of weights are in the page cache"
    checkpoint.drop(checkpoint.paths[1])
    half = page_cache.look(checkpoint.launch, policy, STAGED)
    assert half.outcome == Outcome.PASS
    share = re.match(r"about (\d+)% of 24 MiB of weights are in the page cache; the rest is read while the old server serves", half.detail)
    assert share is not None
    assert int(share.group(1)) == 50
    assert "6 s or more" in half.detail
    assert checkpoint.held() == [True, False]


def test_a_look_says_what_will_not_fit(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.drop()
    monkeypatch.setattr(page_cache, "_memory", lambda: HostMemory(STAGED + GIB + 16 * MIB, 10 * GIB))
    verdict = page_cache.look(checkpoint.launch, wire.Policy(), STAGED)
    assert (verdict.outcome, "more than 16 MiB of them do not fit" in verdict.detail) == (Outcome.WARN, True)


def test_a_python_without_ctypes_can_not_tell(checkpoint: Checkpoint, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert "nobody can tell what of it was there" in warm(checkpoint, folder)[0].detail


def test_a_file_that_is_not_ours_is_not_asked_about(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would call all of it resident."""
    resident_pages.prepare()
    path = str(checkpoint.paths[0])
    assert resident_pages.may_ask(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    assert resident_pages.may_ask(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not resident_pages.may_ask(path)


def test_a_model_of_nowhere_can_not_be_told(folder: StateFolder) -> None:
    launch = dataclasses.replace(LAUNCH, arguments=["--model-path", "org/nowhere"])
    verdicts = page_cache.warm(launch, folder, wire.Policy(), lambda *_: None)
    assert (verdicts[0].outcome, "neither a folder here nor in the hub's cache" in verdicts[0].detail) == (Outcome.UNKNOWN, True)
