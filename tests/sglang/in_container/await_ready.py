"""Runs in the container: start a launch whose port is taken, let SGLang itself make its claim, then ask the agent if it is ready.

usage: await_ready.py AGENT_ZIP STATE_ROOT CLAIM < LAUNCH   (JSON of wire.Launch); prints what came out as JSON.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.ready import wait_ready
from orchestrator.agent.runner import choose_runner
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import LaunchFailed


def main() -> None:
    launch = wire.from_json(wire.Launch, json.load(sys.stdin))
    folder = StateFolder(sys.argv[2], launch.service)
    folder.create()
    runner = choose_runner(folder, launch)
    runner.start()
    log = folder.launch_folder(launch.launch_id) / "server.log"
    claimed = wait_until(lambda: claims(log, sys.argv[3]), Deadline(280.0), 0.1)
    try:
        wait_ready(launch, runner.members, log, wire.Policy(), lambda phase, detail: None, runner.exit_status)
        category = None
    except LaunchFailed as failed:
        category = failed.failure.category
    for process in runner.members():
        os.kill(process.id.pid, signal.SIGKILL)
    print(json.dumps({"claimed": claimed, "ready": category is None, "category": category}))


def claims(log: Path, text: str) -> bool:
    """Whether `text` has appeared in the server's log."""
    return log.exists() and text in log.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
