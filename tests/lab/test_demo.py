"""What the demonstration says at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.lab import control, demo


@pytest.mark.parametrize("installed", [True, False])
def test_the_program_that_it_names_can_be_called_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    if not installed:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
        (tmp_path / "python3").symlink_to(Path(sys.prefix) / "bin" / "python3")
    words = demo.program().split()
    assert words[-1] == "orchestrator" if not installed else words[0].endswith("bin/orchestrator")
    if installed:
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("orchestrator ")


def test_without_asyncssh_it_names_what_to_install_from_this_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError) as raised:
        control.up(tmp_path / "lab")
    clone = Path(__file__).resolve().parents[2]
    assert raised.value.next_step == f"{sys.executable} -m pip install -e '{clone}[lab]'"
