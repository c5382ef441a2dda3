"""A virtual environment that somebody has made in a container, with the lab's stand-in for SGLang in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orchestrator.lab
from tests.rig.container import Container


@contextmanager
def somebodys_venv(container: Container, folder: str) -> Iterator[None]:
    """Make it, and take it away again: a test that looks for the one Python with SGLang must not find another test's."""
    source = Path(orchestrator.lab.__file__).parent / "standin"
    venv = container.path(folder)
    shutil.copytree(source, venv / "lib/python3.11/site-packages", ignore=shutil.ignore_patterns("__pycache__"))
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    try:
        yield
    finally:
        shutil.rmtree(venv)
