"""A tier that can't run is skipped by name, never silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.halves import HALVES
from tests.rig import tiers


@pytest.fixture(autouse=True)
def forget_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the machine anew: the answers of a run are kept."""
    monkeypatch.setattr(tiers, "missing", tiers.missing.__wrapped__)


@pytest.mark.parametrize("tier", ["lxc", "sglang"])
def test_real_parts_need_root(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert tiers.missing(tier) == "needs root, for containers and a bridge"


def test_absent_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None if name == "sshd" else f"/usr/bin/{name}")
    assert tiers.missing("ssh") == "not installed: sshd (as root, `make test` installs them with apt)"


def test_an_absent_browser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert tiers.missing("browser") == "not installed: chromium (as root, `make test` installs it with apt)"


def test_absent_sglang_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tests.rig.tiers._missing_lxc", lambda: None)
    monkeypatch.setenv("ORCHESTRATOR_SGLANG_VENV", str(tmp_path))
    reason = tiers.missing("sglang")
    assert reason is not None
    assert "make sglang-cpu" in reason


def test_pure_tiers_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert [tiers.missing(tier) for tier in ("unit", "agent", "lab")] == [None, None, None]


def test_the_two_halves_are_all_tiers() -> None:
    assert sorted(folder for half in HALVES.values() for folder in half) == sorted(f"tests/{tier}" for tier in tiers.TIERS)
