"""The answer to a shell's Tab: ``PROGRAM --complete -- WORD...``.

Invoke's own completion (2.2.1, completion/complete.py) knows verbs and flags. Here their values are known too, and words may be quoted. The
description is read off the tasks themselves when it is asked for, so it can't be another one than the parser's.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.candidate_values import Answer, Flag, Verb
from orchestrator.cli.candidates import Grammar, complete, flag_at
from orchestrator.cli.common import find_inventory
from orchestrator.cli.edge import GATHERING, GATHERING_VERBS, INEFFECTIVE
from orchestrator.cli.names import Names
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from invoke.collection import Collection
    from invoke.parser.argument import Argument
    from invoke.parser.context import ParserContext

SHELL_VARIABLE = "ORCHESTRATOR_COMPLETE"
"""Set by our scripts to the name of their shell; without it, invoke's own script asks."""
_NOT_FOR_PEOPLE = frozenset({"complete", "dry"})
"""Fabric's flags that the program answers with a refusal, or only to a shell."""


def answer(argv: Sequence[str], core: ParserContext, collection: Collection) -> Iterable[str]:
    """The lines for ``PROGRAM --complete -- WORD...``: candidates, each with a word on it, and what of the disk may stand there.

    Args:
        argv: this process's command line. Behind ``--`` stands the one that is completed, up to the cursor: as one word where bash asks.
        core: the program's own flags.
    """
    from orchestrator.results.runs import runs_root

    shell = os.environ.get(SHELL_VARIABLE, "")
    given = list(argv[argv.index("--") + 1 :]) if "--" in argv else []
    words = split(given[0]) if shell == "bash" and given else given
    if len(words) < 2:
        words = [*words, ""]
    grammar = _grammar(core, collection)
    if not shell and _has_exact(grammar, words):
        words = [*words, ""]  # invoke's scripts lose the empty word at the cursor
    names = Names(_inventory(words), runs_root())
    return _lines(complete(words[1:-1], words[-1], grammar, names), shell, words[-1])


def split(line: str) -> list[str]:
    """The words of a command line that ends at the cursor, the last one being that at the cursor; quotes may still be open."""
    line = line.removesuffix("\\")
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return words if words and not (line[-1:].isspace() and not closing) else [*words, ""]
    return line.split(" ")


def _lines(found: Answer, shell: str, partial: str) -> Iterable[str]:
    if not shell:
        return [item.value for item in found.candidates]
    start = _kept_by_bash(partial) if shell == "bash" else 0
    lines = [f"{item.value[start:]}\t{item.help}" for item in found.candidates]
    return [*lines, f":{found.files.value}"]


def _kept_by_bash(partial: str) -> int:
    """How much of the word at the cursor bash takes for words of their own, which a candidate may not repeat (COMP_WORDBREAKS)."""
    return max(partial.rfind(mark) + 1 for mark in "=:")


def _has_exact(grammar: Grammar, words: Sequence[str]) -> bool:
    """Whether the last word is a whole flag that takes a value."""
    flag = flag_at(words[1:-1], words[-1], grammar)
    return flag is not None and flag.takes_value


def _inventory(words: Sequence[str]) -> Path | None:
    """The inventory that the command line means."""
    named = [after for before, after in itertools.pairwise(words) if before == "--inventory"]
    named += [word.partition("=")[2] for word in words if word.startswith("--inventory=")]
    try:
        return find_inventory(named[-1] if named and named[-1] else None)[0]
    except (UsageError, OSError, RuntimeError):
        return None


def _grammar(core: ParserContext, collection: Collection) -> Grammar:
    verbs: dict[str, str] = {}
    for name, aliases in collection.task_names.items():
        told = (collection[name].__doc__ or "").strip().partition("\n")[0]
        verbs.update(dict.fromkeys([name, *aliases], told))
    effective = [flag for flag in _flags(core) if flag.name not in {*INEFFECTIVE, *_NOT_FOR_PEOPLE}]
    return Grammar(effective, dict(sorted(verbs.items())), lambda name: describe(collection[name]))


def describe(task: Any) -> Verb:
    """A task's verb, by what its parser would be given."""
    from invoke.parser.context import ParserContext

    task.help = dict(task.texts)
    context = ParserContext(name=task.name, args=task.get_arguments())
    task.help = dict(task.texts)
    return Verb(task.title, tuple(_flags(context)), GATHERING.get(task.title), task.title in GATHERING_VERBS)


def _flags(context: ParserContext) -> list[Flag]:
    opposites = {str(main).removeprefix("--"): str(opposite) for opposite, main in context.inverse_flags.items()}
    return [_flag(argument, opposites) for argument in context.args.values()]


def _flag(argument: Argument, opposites: dict[str, str]) -> Flag:
    name = max(argument.names, key=len)
    spelled = [f"--{item}" if len(item) > 1 else f"-{item}" for item in argument.names]
    spelled = [opposites[name]] if name in opposites else spelled
    several = argument.kind is list
    return Flag(name, tuple(spelled), argument.help or "", argument.takes_value, argument.optional, several, argument.positional)
