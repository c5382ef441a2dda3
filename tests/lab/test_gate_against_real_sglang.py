"""The stand-in's gate against that of the real SGLang 0.5.23, where that is installed (make sglang-cpu)."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.conftest import Standin, free_port
from tests.lab.test_flags_against_real_sglang import REAL

REQUESTS = (
    ("GET", "/health"),
    ("POST", "/health"),
    ("GET", "/gate/activate"),
    ("GET", "/"),
    ("POST", "/"),
    ("POST", "/gate/activate"),
    ("POST", "/gate/activate"),
    ("GET", "/health"),
)

PROGRAM = """
import inspect, socket, sys, threading, time
from sglang.srt.distributed import gated_launch
gate = gated_launch._GatedLaunchServer()
gate.serve(host="127.0.0.1", port=int(sys.argv[1]))
while not gate._server.started:
    time.sleep(0.01)
taken = gated_launch._GatedLaunchServer()
taken.serve(host="127.0.0.1", port=int(sys.argv[1]))
taken._thread.join()
print("seconds", gated_launch.POLL_INTERVAL_SECONDS, gated_launch.LOG_INTERVAL_SECONDS, flush=True)
sys.stdin.read()
print("activated", gate.activated, flush=True)
"""
"""Serves the real gate until its input ends, and tries to serve a second one on the same port."""

Answers = list[tuple[int, str | None, str | None, bytes]]


def ask(port: int) -> Answers:
    """What a gate answers to the requests: status, server, content type, body."""
    answers: Answers = []
    for method, path in REQUESTS:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)
        connection.request(method, path)
        answer = connection.getresponse()
        answers.append((answer.status, answer.getheader("server"), answer.getheader("content-type"), answer.read()))
        connection.close()
    return answers


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the real SGLang is not installed: make sglang-cpu")
def test_the_gate_answers_and_fails_as_the_real_one(start: Callable[..., Standin], tmp_path: Path) -> None:
    port = free_port()
    errors = tmp_path / "errors.txt"
    with (
        errors.open("wb") as stream,
        subprocess.Popen(
            [str(REAL), "-c", PROGRAM, str(port)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SGLANG_USE_CPU_ENGINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        ) as real,
    ):
        assert real.stdout is not None
        seconds = next((line for line in real.stdout if line.startswith("seconds")), "")
        said = ask(port)
        output, _ = real.communicate(timeout=60)
    assert seconds.split()[1:] == ["1.0", "10.0"], errors.read_text()
    assert output.split() == ["activated", "True"]

    standin = start("--gated-launch-port", str(port), activation_lost=True)
    standin.wait_for_log("Gated launch waiting for activation")
    crowded = start("--gated-launch-port", str(port), activation_lost=True)
    crowded.wait_for_log("[Errno 98]")
    assert ask(port) == said
    assert taken(crowded.log) == taken(errors.read_text(encoding="utf-8"))


def taken(log: str) -> list[str]:
    """The lines of a port that can't be bound."""
    return [line for line in log.splitlines() if "[Errno 98]" in line]
