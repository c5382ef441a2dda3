"""The console script: Fabric's program with our own verbs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fabric  # type: ignore[import-untyped]
import fabric.main  # type: ignore[import-untyped]
from invoke.exceptions import Exit, ParseError

import orchestrator
from orchestrator.cli import edge
from orchestrator.cli.tasks import namespace
from orchestrator.errors import UsageError

_NO_COMMANDS = "this program runs no commands of your own: nothing can follow --"


class Executor(fabric.Executor):  # type: ignore[misc]  # fabric has no types
    """Calls each task once. What follows ``-H`` names inventory entries (see edge.py), so no Fabric connection is made."""

    def expand_calls(self, calls: Any, apply_hosts: bool = True) -> Any:
        return super().expand_calls(calls, apply_hosts=False)


class Program(fabric.main.Fab):  # type: ignore[misc]  # fabric has no types
    """Fabric's program, except that a command line it can't parse ends with our code for wrong usage."""

    def parse_core(self, *args: Any, **kwargs: Any) -> None:
        with _usage_errors():
            super().parse_core(*args, **kwargs)
        if self.core.remainder and not self.args.complete.value:
            raise Exit(_NO_COMMANDS, code=UsageError.exit_code)

    def parse_tasks(self) -> None:
        with _usage_errors():
            super().parse_tasks()

    def parse_cleanup(self) -> None:
        with _usage_errors():
            super().parse_cleanup()


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except (ParseError, ValueError) as error:
        raise Exit(f"{error}\nnext: orchestrator --help, or orchestrator VERB --help", code=UsageError.exit_code) from None


def make_program() -> Program:
    """The program behind the console script."""
    return Program(
        name="orchestrator",
        binary="orchestrator",
        binary_names=["orchestrator"],
        version=orchestrator.__version__,
        namespace=namespace,
        executor_class=Executor,
        config_class=fabric.Config,
    )


def main() -> None:
    """Run the command line of this process."""
    edge.front_end = make_program()
    try:
        edge.front_end.run()
    except BrokenPipeError:
        sys.exit(edge.leave_closed_output())
