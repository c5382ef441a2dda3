"""Runs in the container for as long as the campaign does: one JSON line is a question, one the answer. It imports the agent once.

``python3 -I -u driver.py CODE STATE_ROOT``
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from orchestrator.agent import boot_state, procfs, supervisor, wire
from orchestrator.agent.generation import generate
from orchestrator.agent.http import Client
from orchestrator.agent.journal import order_status
from orchestrator.agent.known_launches import launches
from orchestrator.agent.processes import find_leftovers, find_servers
from orchestrator.agent.ready import wait_ready
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.runner import choose_runner
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_launches import LaunchesRequest

ROOT = sys.argv[2]


def ignore(_phase: str, _detail: Any) -> None:
    """Nobody watches."""


def start(launch: dict[str, Any], seconds: float) -> Any:
    """Start a launch of ours as an order would, wait until it serves, and record it as verified."""
    wanted = wire.from_json(wire.Launch, launch)
    folder = StateFolder(ROOT, wanted.service)
    folder.create()
    runner = choose_runner(folder, wanted)
    started = runner.start()
    wait_ready(wanted, runner.members, None, wire.Policy(load_total=seconds), ignore, runner.exit_status)
    folder.mark_verified(wanted.launch_id, {})
    return started.main


def start_by_hand(argv: list[str], environment: dict[str, str], log: str, unit: str) -> None:
    """As a person would in a shell that they then close; `unit` instead names a unit of theirs that is always restarted."""
    words = [f"{name}={value}" for name, value in environment.items()]
    if unit:
        settings = "".join(f"Environment={word}\n" for word in words)
        text = f"[Service]\n{settings}ExecStart={' '.join(argv)}\nRestart=always\nRestartSec=1\n"
        text += f"StandardOutput=append:{log}\nStandardError=append:{log}\n"
        Path("/etc/systemd/system", unit).write_text(text, encoding="utf-8")
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "start", unit], check=True)
        return
    with open(log, "ab") as stream:
        command = ["setsid", "--fork", "env", "-i", "PATH=/usr/bin:/bin", "HOME=/root", *words, *argv]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, check=True)


def submit(order: dict[str, Any]) -> Any:
    return _refusable(lambda: supervisor.submit(wire.from_json(wire.Order, order), ignore))


def resume(service: str, order_id: str) -> Any:
    return _refusable(lambda: supervisor.resume(wire.OrderReference(service, ROOT, order_id), ignore))


def cancel(service: str, order_id: str) -> Any:
    return _refusable(lambda: supervisor.cancel(wire.Cancel(service, ROOT, order_id, "bob@desk"), ignore))


def _refusable(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except AgentRefusal as refusal:
        return {"refused": wire.to_json(refusal.failure)}


def status(service: str, order_id: str | None) -> Any:
    return order_status(StateFolder(ROOT, service), order_id)


def known(service: str, port: int) -> Any:
    """The launches that the box remembers."""
    return launches(LaunchesRequest(service, ROOT, port), ignore)


def servers() -> Any:
    return [
        {
            "main": wire.to_json(found.main.id),
            "members": [[member.pid, member.title] for member in found.members],
            "port": found.port,
            "listening": found.listening,
            "launch_id": found.launch_id,
            "manager": found.manager.kind,
        }
        for found in find_servers()
    ]


def look(service: str, order_id: str | None, port: int) -> Any:
    """All that an ending is judged by."""
    folder = StateFolder(ROOT, service)
    found = servers()
    order_units = f"orchestrator-{service}-order-*"
    listed = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating,deactivating", order_units]
    return {
        "status": wire.to_json(order_status(folder, order_id)),
        "servers": found,
        "answers": any(server["port"] == port and server["listening"] for server in found) and answers(port, service),
        "leftovers": [[str(left.process), left.launch_id] for left in find_leftovers()],
        "listeners": sorted(procfs.listening_pids(port)),
        "verified": folder.verified_launch_id(),
        "boot": wire.to_json(boot_state.describe(folder)),
        "order_units": _settled(listed),
        "resume_units": [path.name for path in Path("/etc/systemd/system").rglob(f"orchestrator-{service}-resume.service")],
        "drop_ins": [str(path) for path in Path("/run/systemd/system").glob("*.d/zzz-orchestrator.conf")],
        "shared_memory": sorted(path.name for path in Path("/dev/shm").glob("psm_*")),
        "gpu_locks": [path.name for path in Path(ROOT, ".gpus").glob("*")],
    }


def _settled(command: list[str]) -> list[str]:
    """A unit ends a moment after its program has let go of the lock."""
    deadline = time.monotonic() + 10.0
    while True:
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        if not lines or time.monotonic() > deadline:
            return lines
        time.sleep(0.1)


def answers(port: int, service: str) -> bool:
    """Whether a real generation comes back within half a minute."""
    key = None
    for server in find_servers():
        record = StateFolder(ROOT, service).read_launch(server.launch_id) if server.port == port and server.launch_id else None
        key = record.secrets.get("api-key") if record is not None else key
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        try:
            generate(Client(port, "127.0.0.1", key), {"text": "The campaign asks"}, 4, 20.0)
            return True
        except Exception:  # noqa: BLE001 - that it does not answer is what was asked for
            time.sleep(0.2)
    return False


def processes() -> Any:
    """Everybody but the driver and what it was started by."""
    table = procfs.scan()
    ours = {os.getpid()} | {parent.pid for parent in procfs.ancestors(table, os.getpid())}
    return [[process.pid, process.id.start_time, process.title, process.state] for process in table.values() if process.pid not in ours]


def supervisor_of(order_id: str) -> int | None:
    """The process that carries an order out."""
    for process in procfs.scan().values():
        words = process.arguments
        if words and words[-1].endswith(f"/orders/{order_id}") and process.state not in "ZX":
            return process.pid
    return None


def send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def shell(script: str, seconds: float) -> Any:
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, timeout=seconds, check=False)
    return [done.returncode, done.stdout, done.stderr]


VERBS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        start,
        start_by_hand,
        submit,
        resume,
        cancel,
        status,
        known,
        servers,
        look,
        answers,
        processes,
        supervisor_of,
        send_signal,
        shell,
    )
}


def main() -> None:
    answers_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer: dict[str, Any] = {"answer": wire.to_json(VERBS[question["verb"]](**question["given"]))}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"error": repr(error)}
        answers_out.write(json.dumps(answer) + "\n")
        answers_out.flush()


if __name__ == "__main__":
    main()
