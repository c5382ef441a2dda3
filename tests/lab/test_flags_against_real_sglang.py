"""The stand-in's flags against the parser of the real SGLang 0.5.23, where that is installed (make sglang-cpu)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab.build import STANDIN

REAL = Path(__file__).parents[2] / ".cache" / "sglang-cpu" / "bin" / "python"

PROGRAM = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
kinds = {"_StoreTrueAction": True, "DeprecatedStoreTrueAction": True, "BooleanOptionalAction": True}
known = {
    option: [a.dest, kinds.get(type(a).__name__, False), str(a.nargs) if a.nargs else None, sorted(a.choices) if a.choices else None,
             a.required, repr(a.default)]
    for a in parser._actions for option in a.option_strings
}
sys.stdout.write("\\n" + json.dumps(known))
"""


def read_parser(python: str, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run([python, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=240)
    known: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return known


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="the real SGLang is not installed: make sglang-cpu")
def test_every_flag_is_the_real_one() -> None:
    real = read_parser(str(REAL), {"PATH": "/usr/bin:/bin", "HOME": "/tmp"})
    standin = read_parser(sys.executable, {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(STANDIN)})
    assert standin.keys() == real.keys()
    assert {flag: (standin[flag], real[flag]) for flag in real if standin[flag] != real[flag]} == {}
