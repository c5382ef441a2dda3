"""What the verbs of the program take, for whoever names them in a file."""

from __future__ import annotations

import inspect
from typing import Any

from orchestrator.config.playbook_checks import VerbFlags, Verbs


def verb_flags() -> Verbs:
    """Every verb by its whole name."""
    return {name: _flags(name, task) for name, task in tasks().items()}


def tasks() -> dict[str, Any]:
    """The Fabric task behind each verb, by the verb's whole name."""
    from orchestrator.cli.tasks import namespace

    found = (namespace[name] for name in namespace.task_names)
    return {task.title: task for task in found}


def _flags(name: str, task: Any) -> VerbFlags:
    """Read off the function: the parser's own description of a task may be asked for only once (invoke 2.2.1, tasks.py, arg_opts)."""
    switches: set[str] = set()
    values: set[str] = set()
    required: list[str] = []
    on: set[str] = set()
    for parameter in list(inspect.signature(task.plain).parameters.values())[1:]:
        flag = parameter.name.strip("_").replace("_", "-")
        (switches if isinstance(parameter.default, bool) else values).add(flag)
        if parameter.default is inspect.Parameter.empty:
            required.append(flag)
        if parameter.default is True:
            on.add(flag)
    return VerbFlags(
        name,
        frozenset(switches),
        frozenset(values),
        tuple(required),
        frozenset(on),
        several=frozenset(task.iterable),
        optional=frozenset(task.optional),
    )
