"""What runs at boot, as a process of its own: what it says, how it ends, and that it ends. What sets knobs is stood in for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import orchestrator
from orchestrator.agent.at_boot import line
from orchestrator.agent.codec import to_json
from orchestrator.agent.persistence_files import kept_request
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, TuneRequest

GOVERNOR = KnobSetting("cpu_governor", "", "performance")
REQUEST = TuneRequest("quiet", [GOVERNOR, KnobSetting("sysctl", "kernel.numa_balancing", "0")])

PROGRAM = """\
import sys, time, types
sys.path.insert(0, {code!r})
from orchestrator.agent import wire_host
from orchestrator.agent.codec import from_json
from orchestrator.agent.refusal import AgentRefusal
def apply(request, files):
    {body}
import orchestrator.agent
sys.modules["orchestrator.agent.tuning"] = orchestrator.agent.tuning = types.ModuleType("orchestrator.agent.tuning")
orchestrator.agent.tuning.apply = apply
from orchestrator.agent.at_boot import main
main(*sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "request.json").write_text(json.dumps(to_json(kept_request(REQUEST))), encoding="utf-8")
    return tmp_path


def boot(folder: Path, body: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it with `body` in the place of what sets knobs."""
    code = str(Path(orchestrator.__file__).parents[1])
    argv = [sys.executable, "-I", "-S", "-c", PROGRAM.format(code=code, body=body), str(folder), *(words or ("0", "20"))]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def report(*outcomes: str) -> str:
    results = [to_json(KnobResult(GOVERNOR, outcome, {"policy0": "powersave"}, {"policy0": "?"}, source="/sys/x")) for outcome in outcomes]
    return f"return from_json(wire_host.TuneReport, {{'results': {results!r}, 'facts': []}})"


@pytest.mark.parametrize(
    ("outcome", "level", "status"),
    [
        (KnobOutcome.CHANGED, "<6>", 0),
        (KnobOutcome.SAME, "<6>", 0),
        (KnobOutcome.UNAVAILABLE, "<4>", 0),
        (KnobOutcome.TOLD, "<4>", 0),
        (KnobOutcome.FAILED, "<3>", 1),
        (KnobOutcome.UNKNOWN, "<3>", 1),
        (KnobOutcome.NOT_SETTABLE, "<3>", 1),
        (KnobOutcome.WOULD_CHANGE, "<3>", 1),
    ],
)
def test_one_line_a_knob_and_failure_unless_each_is_as_wanted(folder: Path, outcome: str, level: str, status: int) -> None:
    done = boot(folder, report(KnobOutcome.SAME, outcome))
    assert done.returncode == status, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "<6>profile quiet: 2 knobs"
    assert lines[2].startswith(f"{level}{outcome}: cpu_governor: powersave -> ?, wanted performance")
    assert lines[3:] == (["<3>1 of 2 knobs are not as profile quiet wants them"] if status else [])


def test_work_that_hangs_is_given_up(folder: Path) -> None:
    began = time.monotonic()
    done = boot(folder, "time.sleep(600)", "0", "0.5")
    assert time.monotonic() - began < 30
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("<3>not done within 0.5 s, given up so that guests can start")


def test_work_that_is_killed_is_no_success(folder: Path) -> None:
    assert boot(folder, "import os; os.kill(os.getpid(), 9)").returncode == 1


def test_refusal_is_a_line(folder: Path) -> None:
    done = boot(folder, "raise AgentRefusal('locked', 'somebody is at it', ['pid 7'])")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "<3>somebody is at it / pid 7"
    assert done.stderr == ""


def test_mistake_of_ours_fails_with_its_traceback(folder: Path) -> None:
    done = boot(folder, "raise RuntimeError('a mistake')")
    assert done.returncode == 1
    assert "RuntimeError: a mistake" in done.stderr


def test_look_goes_no_further(folder: Path) -> None:
    done = boot(folder, "raise SystemExit(9)", "--look")
    assert (done.returncode, done.stdout) == (0, "<6>2 knobs of quiet\n")


@pytest.mark.parametrize("text", [None, "", "{", '{"profile": 1}'])
def test_damaged_request_is_named(folder: Path, text: str | None) -> None:
    path = folder / "request.json"
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    done = boot(folder, "pass")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"<3>{path} is missing or damaged: fab prep --persist writes it anew\n"


def test_line_names_few_items_where_they_differ_and_counts_many() -> None:
    many = {f"policy{number}": "powersave" for number in range(64)}
    result = KnobResult(GOVERNOR, KnobOutcome.FAILED, many, {**many, "policy3": "performance"}, "policy3: busy", "/sys/*/governor")
    text = line(result)
    assert text == (
        "failed: cpu_governor: powersave -> powersave[63 items] performance[policy3], wanted performance: policy3: busy (/sys/*/governor)"
    )
    assert line(KnobResult(GOVERNOR, KnobOutcome.UNKNOWN)) == "unknown: cpu_governor: unread, wanted performance ()"
