"""Verbs that misbehave on demand. Shipped inside the agent's archive by the tests; runs with the agent's rules."""

import os
import subprocess
import sys
import time
from typing import Any

from orchestrator.agent import wire


def trial(request: wire.LogRequest, emit: Any) -> Any:
    """Do what `service` names; `state_root` is its argument."""
    return globals()["do_" + request.service](request.state_root, emit)


def do_raise(argument: str, emit: Any) -> Any:
    raise ValueError("a bug in a verb")


def do_kill(argument: str, emit: Any) -> Any:
    os.kill(os.getpid(), int(argument))


def do_exit(argument: str, emit: Any) -> Any:
    sys.stderr.write("last words\n")
    os._exit(int(argument))


def do_fill_disk(argument: str, emit: Any) -> Any:
    with open("/dev/full", "w") as stream:
        stream.write("x")


def do_print(argument: str, emit: Any) -> Any:
    sys.stdout.write("stray from Python\n")
    sys.stdout.flush()
    os.write(1, b"stray from a library\n")
    subprocess.run(["echo", "stray from a child"], check=True)
    return {"said": True}


def do_stream(argument: str, emit: Any) -> Any:
    """Emit one event, wait for the file that the test makes on seeing it, and so on."""
    for number in range(3):
        emit("progress", {"number": number})
        while not os.path.exists(argument + str(number)):
            time.sleep(0.01)
    return {}


def do_flood(argument: str, emit: Any) -> Any:
    """Much on both streams at once."""
    for _ in range(64):
        sys.stderr.write("e" * 65536 + "\n")
        emit("log", {"text": "o" * 65536})
    return {"text": "r" * int(argument)}


def do_wait(argument: str, emit: Any) -> Any:
    """Wait for ever, with a child; `argument` is a file that is written should the agent outlive its reader."""
    child = subprocess.Popen(["sleep", "600"])
    emit("progress", {"pids": [os.getpid(), child.pid]})
    time.sleep(600)


def do_finish(argument: str, emit: Any) -> Any:
    """Take a while, write a file. Registered as a verb that does not end with its reader."""
    emit("progress", {})
    time.sleep(0.5)
    emit("progress", {})
    with open(argument, "w") as stream:
        stream.write("done")
    return {}
