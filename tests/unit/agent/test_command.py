"""Running other programs: one that is not there is told at once, and the same way wherever it was looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent import command
from orchestrator.agent.command import run_bounded


@pytest.mark.parametrize("argv", [["no-such-program-anywhere"], ["/no/such/program"]])
def test_a_program_that_is_not_there(argv: list[str]) -> None:
    output = run_bounded(argv, 5.0)
    assert (output.status, output.errors) == (None, f"{argv[0]}: No such file or directory")


def test_it_is_looked_for_where_its_own_environment_says(tmp_path: Path) -> None:
    program = tmp_path / "greets"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert run_bounded(["greets"], 5.0, environment={"PATH": f"/nowhere:{tmp_path}"}).text == "hello\n"
    assert run_bounded(["greets"], 5.0, environment={"PATH": "/nowhere"}).status is None


def test_one_that_may_not_be_run_is_not_told_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not command._is_missing("closed", None)
    assert run_bounded(["closed"], 5.0).errors == "closed: Permission denied"
