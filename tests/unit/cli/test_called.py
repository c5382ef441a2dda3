"""Commands in texts name the program as it was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.cli import called
from orchestrator.cli.called import as_typed, typed_in
from tests.unit.cli.test_front_ends import FrontEnd, orchestrator

__all__ = ["orchestrator"]


@pytest.fixture
def started_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The console script, found by its name; a folder without a fabfile above."""
    script = tmp_path / "bin" / "orchestrator"
    script.parent.mkdir()
    script.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.chdir(tmp_path)
    return script


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("fab status, then fab logs", "orchestrator status, then orchestrator logs"),
        ("(see: fab runbook.run switch-backend)", "(see: orchestrator runbook.run switch-backend)"),
        ("`fab runbook NAME`; fab VERB --help", "`orchestrator runbook NAME`; orchestrator VERB --help"),
        ("a fab of chips, /srv/fab status, prefab status, fab statuses", "a fab of chips, /srv/fab status, prefab status, fab statuses"),
    ],
)
def test_commands_and_nothing_else_name_the_console_script(started_as: Path, text: str, typed: str) -> None:
    assert as_typed(text) == typed
    assert typed_in({"next_step": text, "see": [text], "code": 2}) == {"next_step": typed, "see": [typed], "code": 2}


def test_a_script_that_is_not_found_by_its_name_is_named_by_its_path(started_as: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert as_typed("fab status") == "bin/orchestrator status"


def test_the_module_is_named_where_no_fabfile_is_found(started_as: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(called._MODULE)])
    assert as_typed("fab status") == f"{sys.executable} -m orchestrator status"
    Path("fabfile.py").touch()
    assert as_typed("fab status") == "fab status"


def test_plain_fab_stays(started_as: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fab"])
    assert as_typed("fab status") == "fab status"


@pytest.mark.slow
def test_errors_documents_and_help_name_it(started_as: Path, orchestrator: FrontEnd) -> None:
    refused = orchestrator.run("hosts", "--host", "gpu9")
    assert "next: orchestrator hosts\n" in refused.stderr
    assert '"next_step": "orchestrator hosts"' in orchestrator.run("hosts", "--host", "gpu9", "--json").stdout
    shown = orchestrator.run("runbook.run", "--help").stdout
    assert "  orchestrator runbook.run switch-backend --host gpu1 --resume " in shown
    assert "fab " not in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
