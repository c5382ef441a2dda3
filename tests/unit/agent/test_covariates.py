"""What a timing depends on: the parts that files tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent.covariates import installed


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter in a virtual environment that has two packages."""
    site = tmp_path / "venv/lib/python3.12/site-packages"
    for name in ("transformers-5.17.0.dist-info", "torch-2.11.0.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text("cuda: Optional[str] = '13.0'\n", encoding="utf-8")
    (tmp_path / "venv/pyvenv.cfg").touch()
    interpreter = tmp_path / "venv/bin/python3"
    interpreter.parent.mkdir()
    interpreter.touch(mode=0o755)
    return interpreter


def test_packages_are_those_of_the_virtual_environment(python: Path) -> None:
    found = installed(str(python), {})
    assert found.versions == {"transformers": "5.17.0", "torch": "2.11.0"}
    assert found.cuda == "13.0"


def test_what_comes_first_in_the_search_path_counts(python: Path, tmp_path: Path) -> None:
    for name in ("transformers-5.12.1.dist-info", "flashinfer_python-0.6.15.post1.dist-info"):
        (tmp_path / "pack" / name).mkdir(parents=True)
    found = installed(str(python), {"PYTHONPATH": f"{tmp_path}/nothing:{tmp_path}/pack"})
    assert found.versions == {"transformers": "5.12.1", "flashinfer_python": "0.6.15.post1", "torch": "2.11.0"}
    assert found.cuda == "13.0"
