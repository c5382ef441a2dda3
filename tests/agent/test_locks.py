"""Locks between real processes: one of two wins, the kernel's end with their holder, and no server inherits one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.journal import Journal, ServiceLock
from orchestrator.agent.locks import GpuLocks, held_gpus, person_lock
from orchestrator.agent.private_files import write_private
from orchestrator.agent.runner import OwnSession
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.stopping import stop_members
from tests.agent.box import wait_for

REPOSITORY = Path(__file__).parents[2]
ACQUIRE = """
import sys, time
from pathlib import Path
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.locks import lock
from orchestrator.agent.wire import LockRequest
root, name = sys.argv[1:]
print("there", flush=True)
while not Path(root, "go").exists():
    pass
try:
    lock(LockRequest("svc", root, "acquire", name, "mine"), print)
    print("won", flush=True)
except AgentRefusal as refusal:
    print(refusal.failure.category, refusal.failure.message, flush=True)
"""
HOLD = """
import sys, time
from orchestrator.agent import wire
from orchestrator.agent.locks import GpuLocks
root, service, order_id = sys.argv[1:]
order = wire.Order(order_id, "relaunch", service, root, 1, wire.Policy(), "bob@desk")
print(GpuLocks(root).take(order, ["GPU-a", "GPU-b"]), flush=True)
time.sleep(300)
"""


@contextmanager
def python(code: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.slow
def test_of_two_who_lock_at_once_one_wins(tmp_path: Path) -> None:
    with python(ACQUIRE, str(tmp_path), "ann@laptop") as one, python(ACQUIRE, str(tmp_path), "bob@desk") as two:
        assert [said(one), said(two)] == ["there", "there"]
        (tmp_path / "go").touch()
        answers = sorted([said(one), said(two)], key=lambda answer: answer != "won")
    held = person_lock(StateFolder(str(tmp_path), "svc"))
    assert held is not None
    assert answers[0] == "won"
    assert answers[1].startswith("locked ")
    assert not [path for path in (tmp_path / "svc").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_an_orders_gpus_are_free_as_soon_as_its_supervisor_is_killed_unless_it_was_half_way(tmp_path: Path) -> None:
    mine = wire.Order("o2", wire.OrderKind.RELAUNCH, "two", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    with python(HOLD, str(tmp_path), "one", "o1") as holder:
        assert said(holder) == "None"
        refused = GpuLocks(str(tmp_path)).take(mine, ["GPU-b", "GPU-c"], seconds=0.1)
        assert refused is not None
        assert (refused.uuid, refused.service, refused.order_id) == ("GPU-b", "one", "o1")
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)

        folder = StateFolder(str(tmp_path), "one")
        folder.create()
        path = folder.order_folder("o1")
        path.mkdir()
        order = wire.Order("o1", wire.OrderKind.RELAUNCH, "one", str(tmp_path), 1, wire.Policy(), "bob@desk")
        write_private(path / "order.json", json.dumps(wire.to_json(order)))
        with Journal(path) as journal:
            journal.state(wire.State.LOADING, "")
            assert GpuLocks(str(tmp_path)).take(mine, ["GPU-b"], seconds=0.1) == refused
            journal.state(wire.State.RESTORED, "")
    locks = GpuLocks(str(tmp_path))
    assert locks.take(mine, ["GPU-b"]) is None
    assert [held.order_id for held in held_gpus(str(tmp_path))] == ["o2"]
    locks.release()


@pytest.mark.slow
def test_a_server_inherits_neither_the_services_lock_nor_a_gpus(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    order = wire.Order("o1", wire.OrderKind.LAUNCH, "svc", str(tmp_path), 1, wire.Policy(), "ann@laptop")
    service, gpus = ServiceLock(folder), GpuLocks(str(tmp_path))
    assert service.take("o1")
    assert gpus.take(order, ["GPU-a"]) is None
    launch = wire.Launch("l1", "svc", "auto", sys.executable, [], "127.0.0.1", 1, entry=["-c", "import time; time.sleep(300)"])
    runner = OwnSession(folder, launch)
    try:
        main = runner.start().main
        assert main is not None
        mine = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
        assert {str(folder.lock), str(tmp_path / ".gpus" / "GPU-a")} <= mine
        pids = [main.pid, json.loads((folder.launch_folder("l1") / "session").read_text())["waiter"]]
        for pid in pids:
            targets = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
            assert not [target for target in targets if target == str(folder.lock) or ".gpus" in target]
        service.release()
        gpus.release()
        again = ServiceLock(folder)
        assert again.take("o2", seconds=0.1)
        again.release()
    finally:
        stop_members(runner.members, wire.Policy(clean=10), lambda *_: None)
        wait_for("the server's end", lambda: not runner.members())
