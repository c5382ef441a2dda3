"""The layout's promises: which package may import which, and what the agent may use."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "orchestrator"
OWN_FILES = sorted(path for path in PACKAGE.rglob("*.py") if "standin" not in path.parts)
"""The program's modules, without the stand-in `sglang` package that the lab ships."""
AGENT_FILES = sorted((PACKAGE / "agent").rglob("*.py"))

ALLOWED = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "folders": {"errors"},
    "agent": {"agent"},
    "config": {"agent", "config", "errors", "folders"},
    "remote": {"agent", "config", "errors", "remote"},
    "results": {"agent", "config", "errors", "results"},
    "reference": {"agent", "config", "reference"},
    "flows": {"agent", "config", "errors", "flows", "folders", "remote", "results"},
    "cli": {"agent", "cli", "config", "errors", "flows", "folders", "lab", "reference", "remote", "results"},
    "lab": {"agent", "config", "errors", "folders", "lab"},
}
"""What each part of the program may import of the others."""

CONNECTING = {"remote": {"fabric", "invoke", "paramiko"}, "cli": {"fabric", "invoke"}, "lab": {"asyncssh"}}
"""Who may import what speaks SSH. cli takes `task` and Program from fabric; it opens no connection."""


def part_of(path: Path) -> str:
    """The package, or the module, directly below `orchestrator`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> Iterator[str]:
    """The full names of everything that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def imported_parts(path: Path) -> set[str]:
    """The parts of the program that a file imports."""
    parts = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()}
    names = [name.split(".") for name in imported_modules(path) if name.startswith("orchestrator.")]
    return {name[1] for name in names} & parts


def python39() -> str | None:
    """A Python 3.9 on this machine."""
    found = shutil.which("python3.9")
    installed = sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))
    return str(installed[-1]) if installed else found


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    assert imported_parts(path) <= ALLOWED[part_of(path)]


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_remote_connects(path: Path) -> None:
    libraries = {"fabric", "invoke", "paramiko", "asyncssh"}
    used = {name.partition(".")[0] for name in imported_modules(path)} & libraries
    assert used <= CONNECTING.get(part_of(path), set())
    if part_of(path) == "cli":
        assert not {"fabric.Connection", "fabric.connection.Connection", "fabric.Group"} & set(imported_modules(path))


@pytest.mark.parametrize("path", AGENT_FILES, ids=lambda path: path.name)
def test_agent_is_standard_library_and_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    roots = {name.partition(".")[0] for name in imported_modules(path)}
    assert roots - {"orchestrator"} <= sys.stdlib_module_names


def test_agent_imports_under_python_3_9() -> None:
    python = python39()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in AGENT_FILES if path.name != "__init__.py"]
    # Type hints are resolved too: `int | None` parses under 3.9 and is a TypeError only when somebody asks. A name that is
    # imported for the type checker alone is a NameError, and fine.
    program = (
        f"import importlib, sys, typing\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        f"for name in {names!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    for item in list(vars(module).values()):\n"
        "        if getattr(item, '__module__', None) == name and (isinstance(item, type) or hasattr(item, '__code__')):\n"
        "            try:\n"
        "                typing.get_type_hints(item)\n"
        "            except NameError:\n"
        "                pass\n"
    )
    done = subprocess.run([python, "-I", "-B", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_what_only_a_server_or_an_order_needs_is_not_imported_for_the_question_that_is_asked_most() -> None:
    """Importing takes most of the time of a status, on hundreds of hosts at once."""
    later = ["orchestrator.agent.history", "orchestrator.agent.http", "orchestrator.agent.scrub", "orchestrator.agent.sglang", "subprocess"]
    program = (
        f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from orchestrator.agent import main\n"
        "verb = main.VERBS['status']\n"
        "__import__('orchestrator.agent.' + verb.types)\n"
        "main.resolve(verb)\n"
        f"print([name for name in {later!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
