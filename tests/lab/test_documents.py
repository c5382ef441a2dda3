"""Every verb with ``--json`` over the lab, as an operator's evening: one document each, which fits the schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.documents.table import ANSWERS
from orchestrator.lab import control
from orchestrator.lab.layout import Layout, read_ports
from tests.rig.documents import checked

HOST = "lab-rtx6000"
AT = ("--host", HOST)
TIMED = ("--batch", "1", "--input", "16", "--output", "16", "--repeats", "2")
ELSEWHERE = {
    "budget": "it takes PyTorch; tests/unit/cli/test_budget.py",
    "profile": "it takes PyTorch; tests/unit/cli/test_profile.py",
    "roll": "it takes a router and several replicas; tests/unit/cli/test_roll.py",
}
"""Verbs that are not asked for an answer here, with where it is seen."""


@dataclass(frozen=True)
class Evening:
    """The program, its lab, and the verbs that have answered so far."""

    folder: Path
    answered: set[str]

    def ask(self, *words: str, code: int | tuple[int, ...] = 0) -> dict[str, Any]:
        """One verb's answer."""
        found = self.document(*words, code=code)
        assert found["error"] is None, found["error"]
        self.answered.add(found["verb"])
        return found

    def document(self, *words: str, code: int | tuple[int, ...] = 0) -> dict[str, Any]:
        """One verb's document, which says with which of the exit codes it ended."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *words, "--json"],
            env={**os.environ, "ORCHESTRATOR_RUNS": str(self.folder / "runs"), "LAB_API_KEY": "canary"},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found = checked(done.stdout)
        assert found["exit_code"] == done.returncode
        assert done.returncode in ((code,) if isinstance(code, int) else code), (words, done.stderr)
        return found


@pytest.fixture
def evening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Evening]:
    monkeypatch.delenv("ORCHESTRATOR_INVENTORY", raising=False)
    try:
        yield Evening(tmp_path, set())
    finally:
        control.down(tmp_path / ".lab")


def hurry(folder: Path) -> None:
    """Have the stand-in load and decode as fast as it can."""
    layout = Layout.of(folder)
    for path in (layout.inventory / "services").iterdir():
        service = yaml.safe_load(path.read_text())
        service["policy"].update(measure_repeats=2, measure_input_tokens=16, measure_output_tokens=16, generations=2)
        path.write_text(yaml.safe_dump(service))
    settings = layout.python(HOST).parent.parent / "standin.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "time_scale": 0.02, "tokens_per_second": 2000}))


@pytest.mark.slow
@pytest.mark.timeout(900)  # some forty commands, one after the other
def test_every_verb_answers_with_its_document(evening: Evening) -> None:
    ask = evening.ask
    assert ask("lab.status")["up"] is False
    up = ask("lab.up")
    assert up["up"] is True
    hurry(Path(up["directory"]))

    assert HOST in {host["name"] for host in ask("hosts")["hosts"]}
    assert ask("services")["services"][0]["secrets"] == []
    ask("backends", "--sglang", "0.5.23")
    ask("tunings")
    assert ask("trust", HOST, "--yes")["errors"] == []
    port = next(host["sglang_port"] for host in up["hosts"] if host["name"] == HOST)
    assert ask("adopt", *AT, "--print", "--port", str(port))["written"] is False

    begun = ask("init", *first_time(Layout.of(Path(up["directory"])), evening.folder / "own"), "--port", str(port), "--yes")
    assert (begun["written"], begun["checks"]["plan"], begun["plan"]["host"]) == (True, 0, begun["host"])
    assert ask("docs", "hang")["topics"][0]["kind"] == "failure"

    assert ask("status", *AT)["report"]["health"] == "serving"
    ask("doctor", *AT, code=(0, 3))
    assert ask("teardown", *AT, "--yes")["result"]["state"] == "DONE"
    assert ask("launch", *AT, "--backend", "auto", "--yes")["result"]["launch_id"]
    assert ask("preflight", *AT, "--backend", "marlin")["result"] is None
    relaunched = ask("relaunch", *AT, "--backend", "marlin", "--yes", "--no-measure")
    assert Path(relaunched["run"]).is_dir()
    assert ask("attach", *AT)["result"]["order_id"] == relaunched["result"]["order_id"]
    assert evening.document("resume", *AT, code=(2, 3))["error"]["next_step"]
    assert ask("logs", *AT, "--lines", "3")["launch_id"] == relaunched["result"]["launch_id"]
    ask("boot", *AT)

    assert ask("lock.acquire", *AT, "-m", "dinner")["lock"]["person"]["reason"] == "dinner"
    refused = evening.document("relaunch", *AT, "--backend", "auto", "--yes", code=5)
    assert refused["error"]["category"] == "locked"
    ask("lock.status", *AT)
    assert ask("lock.release", *AT)["lock"]["released"]["reason"] == "dinner"

    measured = ask("measure", *AT, *TIMED, code=(0, 9))
    name = Path(measured["run"]).name
    ask("compare", name, name, "--invalid")
    evening.document("budget", *AT, "--measured", name, code=(0, 3, 4, 7, 9))
    ask("sweep", *AT, "--backends", "auto,marlin", "--plan")
    assert ask("rollback", *AT, "--list")["report"]["launches"]
    assert ask("rollback", *AT, "--yes", "--no-measure")["result"]["state"] == "DONE"
    ask("prep", *AT, "--check", "--profile", tuning(up), code=(0, 1, 4, 8))

    assert {run["verb"] for run in ask("history")["runs"]} >= {"relaunch", "measure", "rollback"}
    assert ask("show", name)["report"]["batches"]
    ask("report", "--out", str(evening.folder / "page.html"))
    assert ask("export", name, "--invalid")["rows"]

    assert ask("completion", "bash")["script"]
    assert ask("docs", "service")["topics"][0]["text"]
    ask("runbook.list")
    ask("runbook.show", "switch-backend")
    ask("runbook.run", "switch-backend", *AT, "--set", "backend=auto", "--plan")
    assert ask("lab.down")["up"] is False
    assert set(ANSWERS) - evening.answered == {*ELSEWHERE, "resume"}


def first_time(layout: Layout, inventory: Path) -> tuple[str, ...]:
    """The lab's host as somebody meets it who has its address and a key."""
    ports = read_ports(layout)
    assert ports is not None
    login = f"{os.environ.get('USER') or 'root'}@127.0.0.1:{ports[HOST].ssh}"
    place = ("--container", "none", "--state-root", str(layout.state_root(HOST)))
    return (login, "--identity", str(layout.client_key), *place, "--inventory", str(inventory))


def tuning(lab: dict[str, Any]) -> str:
    """A tuning profile of the lab's inventory, which is made where there is none."""
    folder = Path(lab["inventory"]) / "tuning"
    folder.mkdir(exist_ok=True)
    (folder / "look.yml").write_text("name: look\nsummary: what is there\nknobs:\n  - knob: transparent_hugepage\n")
    return "look"
