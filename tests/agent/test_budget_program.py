"""The program that times a step's parts ends with the agent that has started it, whatever it is doing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from orchestrator.agent.procfs import has_ended, read_process
from orchestrator.agent.service_python import program_source
from tests.agent.box import wait_for

AGENT = """
import json, subprocess, sys
source, question = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, start_new_session=True)
child.stdin.write(question.encode())
child.stdin.close()
child.wait()
"""
TORCH = """
import os, pathlib, signal
def _rank(*ignored):
    folder = pathlib.Path(__file__).parent
    (folder / f"rank-{os.getpid()}").touch()
    while True:
        signal.pause()
set_num_threads = set_grad_enabled = _rank
"""
QUESTION = {"gemms": [], "all_reduces": [], "devices": [0, 1], "device": "cpu", "memory": 1 << 20, "seconds": 60.0}


def test_no_rank_outlives_the_agent(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(TORCH, encoding="utf-8")
    (tmp_path / "torch/distributed.py").touch()
    words = [sys.executable, "-c", AGENT, program_source("orchestrator.agent.budget_program"), json.dumps(QUESTION)]
    agent = subprocess.Popen(words, env={"PYTHONPATH": str(tmp_path)})
    try:
        wait_for("both ranks", lambda: len(list((tmp_path / "torch").glob("rank-*"))) == 2)
    finally:
        agent.kill()
        agent.wait()
    ranks = [int(path.name.rpartition("-")[2]) for path in (tmp_path / "torch").glob("rank-*")]

    wait_for("the ranks' ends", lambda: all(found is None or has_ended(found) for found in map(read_process, ranks)))
