"""Where the console script begins: before anything heavy is imported."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections.abc import Iterator
from typing import Any


def main() -> None:
    """Run the program with the garbage collector out of the way of imports and of the exit.

    Imports make many objects and hardly any garbage, and a process that is about to end needs no collection: together they
    were a third of a short verb's time. While a verb runs, the collector works as usual.
    """
    try:
        _run()
    except KeyboardInterrupt:  # while importing, or past the verb's own word on it
        _tell_interrupted()
        sys.exit(130)


def _tell_interrupted() -> None:
    """On standard error, and as the one document of ``--json`` unless that is there already."""
    sys.stderr.write("interrupted\n")
    edge = sys.modules.get("orchestrator.cli.edge")
    begun = edge is not None and hasattr(edge, "document_begun") and edge.document_begun()
    if "--json" in sys.argv[1:] and not begun:
        from orchestrator.cli.documents.envelope import Problem, refusal

        sys.stdout.write(refusal(None, Problem("interrupted", "interrupted", [], None, 130)) + "\n")


def _run() -> None:
    gc.disable()
    with _late_mock():
        from orchestrator.cli.program import main as run
        from orchestrator.cli.program import spare_collections

    spare_collections()
    gc.enable()
    run()


@contextlib.contextmanager
def _late_mock() -> Iterator[None]:
    """Keep invoke from importing :mod:`unittest.mock`, and asyncio with it, before its MockContext makes a Mock.

    invoke 2.2.1, context.py: a sixth of the time of ``import fabric``, for an aid to tests that no verb uses.
    """
    name = "unittest.mock"
    if name in sys.modules:
        yield
        return
    standin = types.ModuleType(name)
    standin.__dict__["Mock"] = _mock
    sys.modules[name] = standin
    try:
        yield
    finally:
        del sys.modules[name]


def _mock(*arguments: Any, **options: Any) -> Any:
    from unittest.mock import Mock

    return Mock(*arguments, **options)
