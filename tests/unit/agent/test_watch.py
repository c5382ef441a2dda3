"""What a load that stands still is told to wait for, whatever somebody does to the wall clock meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.clock import steady
from orchestrator.agent.procfs import read_process
from orchestrator.agent.steps import LaunchFailed
from orchestrator.agent.watch import LoadWatch


@pytest.mark.parametrize(("step", "locks"), [(0.0, ["before"]), (10_800.0, ["before"]), (-10_800.0, [])])
def test_a_lock_of_the_load_itself_was_not_left_behind_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, locks: list[str]
) -> None:
    """After a step back what was there before can't be told by its time any more; nothing is claimed then."""
    launch = wire.Launch("l", "svc", "auto", "/py", [], "127.0.0.1", 1, environment={"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    began, monotonic = time.time(), time.monotonic()
    process = read_process(os.getpid())
    assert process is not None
    watch = LoadWatch(launch, lambda: [process], None, wire.Policy(load_stall=1.0), lambda *_: None, lambda: None)
    watch.read_members(steady.now())
    for name, written in (("before", began - 60), ("meanwhile", began + step + 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        os.utime(tmp_path / name / "lock", (written, written))
    monkeypatch.setattr("orchestrator.agent.watch.time.time", lambda: began + step + time.monotonic() - monotonic)
    with pytest.raises(LaunchFailed) as caught:
        watch.look(steady.now() + 2)
    told = "\n".join([caught.value.failure.summary, *caught.value.failure.evidence])
    assert [name for name in ("before", "meanwhile") if f"{tmp_path}/{name}/lock: left behind" in told] == locks


def test_a_phase_that_says_nothing_is_told_again(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("[2026-11-29 12:18:55 TP0] Running FlashInfer autotune\n")
    process = read_process(os.getpid())
    assert process is not None
    told: list[tuple[str, str]] = []
    launch = wire.Launch("l", "svc", "auto", "/py", [], "127.0.0.1", 1)
    watch = LoadWatch(launch, lambda: [process], log, wire.Policy(), lambda *what: told.append(what), lambda: None)
    begun = steady.now()
    for later in (0.0, 0.1, 5.0, 9.0, 10.2, 15.0, 20.5):
        watch.look(begun + later)
    watch.close()
    assert told == [("autotune", "")] * 3
