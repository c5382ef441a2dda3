"""The console script: Fabric's program with our own verbs. Plain ``fab`` takes its manners over, by way of the fabfile."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import gc
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fabric  # type: ignore[import-untyped]
import fabric.main  # type: ignore[import-untyped]
from invoke.exceptions import Exit, ParseError
from invoke.parser import Parser

import orchestrator
from orchestrator.cli import completion, edge
from orchestrator.cli.called import as_typed, typed_in
from orchestrator.cli.documents.envelope import Problem, refusal
from orchestrator.cli.gathering import GatheringParser
from orchestrator.cli.tasks import namespace
from orchestrator.errors import InterruptedByOperatorError, OrchestratorError, UsageError

_UNKNOWN = re.compile(r"No idea what '([^']+)' is")
_LACKING = re.compile(r"'([^']+)' did not receive required positional arguments")
_NO_COMMANDS = "this program runs no commands of your own: nothing can follow --"


class Executor(fabric.Executor):  # type: ignore[misc]  # fabric has no types
    """Calls each task once. What follows ``-H`` names inventory entries (see edge.py), so no Fabric connection is made."""

    def expand_calls(self, calls: Any, apply_hosts: bool = True) -> Any:
        return super().expand_calls(calls, apply_hosts=False)


class Program(fabric.main.Fab):  # type: ignore[misc]  # fabric has no types
    """Fabric's program, except that our exit codes hold for command lines too, and that no flag is taken for nothing."""

    def parse_core(self, *args: Any, **kwargs: Any) -> None:
        with self._our_exit_codes():
            super().parse_core(*args, **kwargs)

    def parse_core_args(self) -> None:
        super().parse_core_args()
        shell = self.args["print-completion-script"].value
        if shell:  # ours instead of invoke's, which completes no values
            print(completion.script(shell), end="")  # noqa: T201
            raise Exit

    def _make_parser(self) -> Parser:
        """One that knows the verbs named in the command line: invoke copies all that a parser knows, flag by flag, each time."""
        parser: Parser = super()._make_parser()
        words = set(self.argv)
        named = [context for name, context in parser.contexts.items() if words & {name, *context.aliases}]
        return GatheringParser(initial=parser.initial, contexts=named)

    def parse_tasks(self) -> None:
        if self.args.complete.value:
            from orchestrator.cli import completing

            for line in completing.answer(self.argv, self.initial_context, self.collection):
                print(line)  # noqa: T201
            raise Exit
        if self.core.remainder:
            raise self._refused(UsageError(_NO_COMMANDS))
        with self._our_exit_codes():
            try:
                super().parse_tasks()
            except ParseError as error:
                verb = _asked_about(error, self.core.unparsed)
                if verb is None:
                    raise
                self.print_task_help(verb)
                raise Exit from None

    def parse_cleanup(self) -> None:
        with self._our_exit_codes():
            super().parse_cleanup()
            edge.refuse_ineffective(self.args)  # before Fabric would ask for passwords

    def execute(self) -> None:
        try:
            super().execute()
        except KeyboardInterrupt:  # before the verb, or after it: invoke's own answer is 1
            raise self._refused(InterruptedByOperatorError("interrupted")) from None

    def print_help(self) -> None:
        """Fabric's help without the flags that have no effect here."""
        flags = [row for row in self.initial_context.help_tuples() if not set(re.findall(r"--([a-z-]+)", row[0])) & set(edge.INEFFECTIVE)]
        bundled = self.namespace is not None
        print(f"Usage: {self.binary} [--core-opts] VERB [--verb-opts]\n\nCore options:\n")  # noqa: T201
        self.print_columns(flags)
        if bundled:
            self.list_tasks()

    def print_task_help(self, name: str) -> None:
        """What a verb does, what it takes, and each of its flags."""
        task = self.collection[name]
        words = [word.upper() for word in task.positional]
        if name in edge.GATHERING:
            words.append(f"[{edge.GATHERING[name].upper()} ...]")
        about, *examples = (inspect.getdoc(task) or "").splitlines()
        print(" ".join([f"Usage: {self.binary} {name}", *words, "[--options]\n"]))  # noqa: T201
        print("\n".join([textwrap.fill(as_typed(about), 80), *(f"  {as_typed(line)}".rstrip() for line in examples), "", "Options:"]))  # noqa: T201
        self.print_columns([(flag, as_typed(text)) for flag, text in self.parser.contexts[name].help_tuples()])
        print(f"Exit codes: {self.binary} docs exit-codes\n")  # noqa: T201

    @contextmanager
    def _our_exit_codes(self) -> Iterator[None]:
        try:
            yield
        except (ParseError, ValueError) as error:
            problem = str(error)
            near, help_of = _near(problem, self.argv)
            meant = _meant(problem, self.argv) or _names_of(problem) or help_of
            step = f"{self.binary} {meant}" if meant is not None else f"{self.binary} --help, or {self.binary} VERB --help"
            raise self._refused(UsageError(f"{problem}{near}", next_step=step)) from None
        except UsageError as error:
            raise self._refused(error) from None
        except KeyboardInterrupt:
            raise self._refused(InterruptedByOperatorError("interrupted; nothing was touched")) from None

    def _refused(self, error: OrchestratorError) -> Exit:
        """The end of a command line that is not, or no more, in the hands of its verb; as JSON too, when that was asked for."""
        words = list(itertools.takewhile(lambda word: word != "--", getattr(self, "argv", sys.argv)[1:]))
        if "--json" in words and not edge.document_begun():
            edge.begin_document()
            verb = next((title for title in map(_verb, words) if title is not None), None)
            with contextlib.suppress(OSError):  # nobody reads it
                print(refusal(verb, Problem(**typed_in(vars(Problem.of(error))))), flush=True)  # noqa: T201
        step = "" if error.next_step is None else f"\nnext: {error.next_step}"
        return Exit(as_typed(f"{error.message}{step}"), code=error.exit_code)


def _verb(word: str) -> str | None:
    """The whole name of the verb that a word stands for; None where it is none."""
    try:
        return str(namespace[word.replace("_", "-")].title)
    except (KeyError, ValueError):  # the latter of a collection of which no verb is meant
        return None


def _asked_about(error: ParseError, argv: Sequence[str]) -> str | None:
    """The verb whose help was asked for where invoke's parser takes ``--help`` for the first of the words that the verb needs."""
    lacking = _LACKING.match(str(error))
    return lacking.group(1) if lacking is not None and edge.HELP & set(argv) else None


def _meant(problem: str, argv: Sequence[str]) -> str | None:
    """The words to type where one that is no verb names something in the inventory; None where it does not, or nobody can say."""
    from orchestrator.cli.common import load

    unknown = _UNKNOWN.search(problem)
    verbs = [word for word in argv[1:] if word.replace("_", "-") in namespace.task_names]
    if unknown is None or not verbs:
        return None
    word = unknown.group(1)
    try:
        known = load(None)
    except OrchestratorError:
        return None
    if all(name.partition("/")[0] in known.hosts for name in word.split(",")):
        named = [value for flag, value in itertools.pairwise(argv) if flag == "--host"]
        return f"{verbs[0]} --host {','.join(named) if word in named else word}"
    if word in known.tunings:
        return f"{verbs[0]} --profile {word}"
    if "--backend" in _flags(verbs[0]) and all(name in known.backends for name in word.split("+")):
        hosts = [value for flag, value in itertools.pairwise(argv) if flag == "--host"]
        return " ".join([verbs[0], "--backend", word, *(["--host", ",".join(hosts)] if hosts else [])])
    return f"{verbs[0]} --service {word}" if word in known.services else None


def _flags(verb: str) -> list[str]:
    """The flags that a verb takes."""
    return next((list(context.flags) for context in namespace.to_contexts() if context.name == verb.replace("_", "-")), [])


def _near(problem: str, argv: Sequence[str]) -> tuple[str, str | None]:
    """What a word that is no verb or no flag comes near to, to be said after `problem`, and the help to read: of the verb, if known."""
    unknown = _UNKNOWN.search(problem)
    if unknown is None:
        return "", None
    word = unknown.group(1)
    verbs = [title for title in map(_verb, argv[1:]) if title is not None]
    if word.startswith("-"):
        if not verbs:
            return "", None
        flags = _flags(verbs[0])
        if word in flags:
            return f" It goes after the verb: {verbs[0]} {word}", f"{verbs[0]} --help"
        known = [flag for flag in flags if flag.startswith("--")]
    elif not verbs:
        known = list(namespace.task_names)
    else:
        return "", f"{verbs[0]} --help"
    close = difflib.get_close_matches(word.replace("_", "-"), known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    verb = verbs[0] if verbs else close[0] if close else None
    return hint, None if verb is None else f"{verb} --help"


_NAMED_BY = {"runbook.show": "runbook.list", "runbook.run": "runbook.list", "trust": "hosts"}
"""Verbs that need a name, each with the one that lists the names."""


def _names_of(problem: str) -> str | None:
    """The words to type where a verb lacks a word that it needs: the verb that lists what it could be, else its help."""
    lacking = _LACKING.match(problem)
    return None if lacking is None else _NAMED_BY.get(lacking.group(1), f"{lacking.group(1)} --help")


def adopt(front_end: Any) -> None:
    """Let `front_end`, which runs already, be a :class:`Program` for the rest of its way.

    Plain ``fab`` has parsed its own flags when it loads a fabfile; it parses the verbs and theirs after that.
    """
    if type(front_end) is fabric.main.Fab:
        front_end.__class__ = Program
        spare_collections()


def spare_collections() -> None:
    """Keep the garbage collector from what there is already, let it come seldom, and not at the exit.

    A verb is short and makes many objects, by imports above all, and hardly any garbage.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 20)
    atexit.register(gc.freeze)


_OBJECTS = 20_000
"""Made before the collector looks at the new ones; Python's own number is 700."""


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
