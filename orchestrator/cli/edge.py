"""Between Fabric and a verb: what Fabric's own flags mean here, and how errors become exit codes.

A verb is written as ``@verb def name(call, host=None, ...) -> int | None``: it gets a :class:`Call` where Fabric's tasks
get a context, and returns its exit code. It works the same under our own program and under plain ``fab``, which builds
its own objects and knows nothing of ours; so everything is done here, in the task.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import fabric  # type: ignore[import-untyped]
import fabric.main  # type: ignore[import-untyped]
from invoke.context import Context
from invoke.exceptions import Exit

from orchestrator.cli.tracebacks import keep_traceback
from orchestrator.errors import InterruptedByOperatorError, OrchestratorError, UsageError
from orchestrator.results.redaction import Redactor

if TYPE_CHECKING:
    from orchestrator.cli.documents.envelope import Problem
    from orchestrator.cli.screen import Screen
    from orchestrator.results.runs import RunFolder

HELP, _DRY = {"--help", "-h"}, {"--dry", "-R"}
"""Fabric's parser gives these to a flag that waits for its value."""

Body = Callable[..., int | None]

GATHERING: dict[str, str] = {}
"""Verb -> its flag that any number of words without one are for."""

GATHERING_VERBS: set[str] = set()
"""Those of them for which a verb's name is such a word too: no other verb can follow them."""

_STOPPED_BY = {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP: the terminal has gone"}
"""Signals that end a verb the way Ctrl-C does, with a word on where things stand."""

INEFFECTIVE = {
    "identity": "identity_files: of the host, in hosts.yml",
    "ssh-config": "the host's own keys in hosts.yml: no ssh_config is read",
    "connect-timeout": "no flag: a host that does not answer is given up after 10 s, always",
    "command-timeout": "the deadlines in the service's policy:",
    "prompt-for-login-password": "identity_files: of the host, in hosts.yml: no passwords are used",
    "prompt-for-passphrase": "ssh-add, and agent: true of the host, in hosts.yml",
    "prompt-for-sudo-password": "become: sudo of the host, in hosts.yml: sudo -n is used, which asks for none",
    "list-agent-keys": "ssh-add -l",
    "config": "the inventory: Fabric's own configuration has no effect here",
    "pty": "no flag: nothing here wants a terminal",
    "echo": "--plan: it shows what would be done",
    "warn-only": "--force, which overrules refused checks",
    "hide": "--json, which prints one document",
}
"""Fabric's flags that would change nothing here, each with what to use instead."""


class Call:
    """One call of a verb: where its output goes and what it keeps."""

    def __init__(self, verb: str, *, as_json: bool, open_screen: Callable[[Redactor], Screen] | None = None) -> None:
        from orchestrator.cli import screen

        self.verb = verb
        self.as_json = as_json
        self.redactor = Redactor()
        self.screen: Screen = open_screen(self.redactor) if open_screen else screen.open_screen(self.redactor, as_json=as_json)
        self.confirm: Callable[[str], bool] = self.screen.ask
        """Asks whether a plan may be carried out."""
        self.run: RunFolder | None = None
        self.outer: Call | None = None
        """The call in the midst of which this one is made."""
        self._answer: Any = None
        self._problem: Problem | None = None
        self._has_lines = False
        self._stopped_by: signal.Signals | None = None
        self.flags: Mapping[str, Any] = {}
        """What the verb was given, by its parameters."""
        self.interrupted = "interrupted"
        """What Ctrl-C means now, where nothing that knows better catches it; empty where it is the usual end."""

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal, other than Ctrl-C's, that ended this call, or the one around it."""
        return self._stopped_by if self._stopped_by is not None or self.outer is None else self.outer.stopped_by

    def stop_by(self, number: signal.Signals) -> None:
        """Remember which signal ends this call."""
        self._stopped_by = number

    @property
    def interrupted_code(self) -> int:
        """The exit code of an interruption: 130, or 128 and the signal's number, as a shell has it."""
        return InterruptedByOperatorError.exit_code if self.stopped_by is None else 128 + self.stopped_by

    def keep_tracebacks(self, *errors: BaseException) -> list[str]:
        """Keep the tracebacks of what was not foreseen; the evidence that names their file, or the last lines where it can't be kept."""
        texts = [traceback.format_exception(error) for error in errors]
        kept = keep_traceback(self.run, self.redactor, "\n".join("".join(text) for text in texts))
        return [f"traceback: {kept}"] if kept is not None else [line for text in texts for line in text[-1].splitlines()]

    def keep_run(self, *names: str) -> RunFolder:
        """The run folder of this call, which is made when the change is about to be submitted."""
        from orchestrator.results.runs import RunFolder

        self.run = RunFolder.create(self.verb, names, self.redactor, self.screen.warn)
        return self.run

    def answer(self, answer: Any) -> None:
        """Give the answer as data: one of the verb's types in :mod:`orchestrator.cli.documents`. It is printed when the verb has ended."""
        self._answer = answer

    def fail(self, problem: Problem, *, silently: bool = False) -> int:
        """Tell why the verb did not do what was asked, and return the exit code. Where it is `silently`, only the document tells."""
        from orchestrator.cli.text import error_blocks

        self._problem = problem
        if silently:
            return problem.exit_code
        if self.run is not None:
            self.run.keep("error.json", problem)
        self.screen.close()
        self.screen.error(error_blocks(problem.message, problem.evidence, problem.next_step, problem.see))
        return problem.exit_code

    def line(self, answer: Any, code: int, error: OrchestratorError | None = None) -> None:
        """Print the document of one of many at once, on a line of its own, where that was asked for; there is none for the call then.

        With an `error`, `answer` says whose it is.
        """
        if not self.as_json:
            return
        from orchestrator.cli.documents.envelope import SCHEMA, Envelope, Problem

        self._has_lines = True
        if self.outer is None:
            begin_document()
        self.screen.line(Envelope(SCHEMA, self.verb, code, None if error is None else Problem.of(error)), answer)

    def end(self, code: int) -> int:
        """Name the run folder, on the last line; then print the document, when that was asked for. Returns the exit code.

        One document a call, whatever has happened in it, and the last thing that it does: so its exit code is that of the process.
        """
        from orchestrator.cli.blocks import Line

        self.screen.close()
        run = str(self.run.path) if self.run is not None and self.run.kept else None
        if run is not None:
            self.screen.show([Line(f"kept in {run}", "quiet", whole=True)])
        if self.as_json and not (self._has_lines and self._problem is None):
            self._print_document(code, run)
        return code

    def _print_document(self, code: int, run: str | None) -> None:
        from orchestrator.cli.documents.envelope import SCHEMA, Envelope

        if self.outer is None:
            begin_document()
        self.screen.document(Envelope(SCHEMA, self.verb, code, self._problem, run), self._answer)


class _Task(fabric.Task):  # type: ignore[misc]  # fabric has no types
    """A task of which single flags have a letter. Invoke's own short flags are all or none, and each new flag could move them."""

    letters: Mapping[str, str] = {}
    texts: Mapping[str, str] = {}
    """The help of each flag. What invoke keeps of it is used up when a parser is made (2.2.1, tasks.py, arg_opts)."""
    title: str = ""
    """The verb's whole name."""
    plain: Body
    """The function itself, which takes a :class:`Call`."""

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        options: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if name in self.letters:
            options["names"] = [*options["names"], self.letters[name]]
        return options


def verb(
    *,
    flags: Mapping[str, str] | None = None,
    positional: Sequence[str] = (),
    title: str | None = None,
    many_hosts: bool = False,
    letters: Mapping[str, str] | None = None,
    gathers: str | None = None,
    gathers_verbs: bool = False,
    several: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> Callable[[Body], fabric.Task]:
    """Make a Fabric task of a function that takes a :class:`Call`.

    Args:
        flags: the help of each flag.
        positional: arguments that may be given without their flag. Fabric's parser lets them swallow ``--help`` and
            ``--dry``, as it lets any flag that waits for its value; both get their meaning back here.
        title: the verb's whole name where the function's is only its end (``lab.up``).
        many_hosts: whether ``--host`` (and ``-H``) may name several, with commas.
        letters: flag -> its short form.
        gathers: the flag that words without one are for, any number of them; it gets them with commas. See :mod:`gathering`.
        gathers_verbs: whether those words may be the names of verbs.
        several: flags that may be given more than once.
        optional: flags that may be given without their value, which is then True.
    """

    def decorate(body: Body) -> fabric.Task:
        name = title or body.__name__

        @functools.wraps(body)
        def run(context: Context, **given: Any) -> None:
            sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))  # invoke turned it off: slow starts for good
            as_json, asks_help = bool(given.pop("json", False)), any(text in HELP for text in _texts(given))
            call = Call(name, as_json=as_json and not asks_help)
            if asks_help:
                code = guarded(call, lambda: front_end.print_task_help(name))
            else:
                code = guarded(call, lambda: _begun(call, body, understood(context, given, many_hosts=many_hosts)))
            if code:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the verb has ended: a late Ctrl-C must not change how
                raise Exit(code=code)

        task = fabric.task(
            positional=list(positional),
            iterable=list(several),
            optional=list(optional),
            auto_shortflags=False,
            help=_with_defaults(flags or {}, body),
            name=name.rpartition(".")[2],
            klass=_Task,
        )(run)
        task.letters, task.texts = dict(letters or {}), dict(flags or {})
        if gathers is not None:
            GATHERING[name] = gathers
        if gathers_verbs:
            GATHERING_VERBS.add(name)
        task.title, task.plain = name, body
        return task

    return decorate


def _with_defaults(flags: Mapping[str, str], body: Body) -> dict[str, str]:
    """The help of each flag, and what it is where it is not given."""
    defaults = {name.strip("_").replace("_", "-"): item.default for name, item in inspect.signature(body).parameters.items()}
    given = {name: defaults.get(name) for name in flags}
    return {
        name: f"{text} Default: {given[name]}." if isinstance(given[name], str) and given[name] else text for name, text in flags.items()
    }


def understood(context: Context, flags: dict[str, Any], *, many_hosts: bool = False) -> dict[str, Any]:
    """The verb's flags once Fabric's own have been minded.

    Raises:
        UsageError: ``--dry``, a remainder, several hosts, ``-H`` and ``--host`` at odds, or a flag taken for a value.
    """
    if context.config.run.dry or any(text in _DRY for text in _texts(flags)):
        raise UsageError(
            "--dry is not supported: it would only show what Fabric itself runs here, which is nothing",
            next_step="use --plan: it asks the box and shows all that would be done",
        )
    if remainder():
        raise UsageError(f"nothing can follow --, but there is: {remainder()}", next_step="ssh HOST COMMAND")
    for flag, value in flags.items():
        if isinstance(value, str) and value.startswith("-") and value != "-":
            raise UsageError(f"--{flag.strip('_').replace('_', '-')} needs a value, and {value} looks like a flag")
    names = host_names()
    if not names:
        return flags
    text = ",".join(names)
    if "host" not in flags:
        raise UsageError(f"this verb is not about a host, but -H {text} was given")
    if len(names) > 1 and not many_hosts:
        from orchestrator.config.inventory import one_at_a_time

        raise one_at_a_time(text)
    if flags["host"] is not None and _parts(flags["host"]) != names:
        raise UsageError(f"-H {text} and --host {flags['host']} name different hosts")
    return {**flags, "host": text}


def _texts(flags: Mapping[str, Any]) -> Iterator[str]:
    """The texts that were given to flags, those of flags that may come several times one by one."""
    for value in flags.values():
        yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str))


front_end: fabric.main.Fab = fabric.main.program
"""The program that parses this process's command line. Plain ``fab`` runs Fabric's; our own puts itself here."""


def document_begun() -> bool:
    """Whether the JSON document of this command line is being written, or was: another one must not follow."""
    return bool(getattr(front_end, "document_begun", False))


def begin_document() -> None:
    """Remember that it is."""
    front_end.document_begun = True


def refuse_ineffective(args: Mapping[str, Any]) -> None:
    """Refuse those of Fabric's flags that would be taken and change nothing.

    Raises:
        UsageError: there is one; the next step names what to use instead.
    """
    given = [name for name in INEFFECTIVE if args[name].value]
    if given:
        raise UsageError(f"Fabric's --{given[0]} has no effect here", next_step=f"use {INEFFECTIVE[given[0]]}")


def host_names() -> list[str]:
    """The names given with Fabric's ``-H``: inventory names, although Fabric takes them for addresses."""
    core = getattr(front_end, "core", None)
    given = core[0].args.hosts.value if core else None
    return _parts(given) if given else []


def _parts(hosts: str) -> list[str]:
    return [name.strip() for name in hosts.split(",") if name.strip()]


def remainder() -> str:
    """What was typed after ``--``, which Fabric would run as a command over an unchecked connection."""
    core = getattr(front_end, "core", None)
    return str(core.remainder) if core else ""


def guarded(call: Call, body: Callable[[], int | None]) -> int:
    """Run `body` and return its exit code, whatever happens in it."""
    from orchestrator.cli.documents.envelope import Problem

    try:
        with _stopped_by_signals(call), call.screen.watching():
            code = body() or 0
    except InterruptedByOperatorError as error:
        code = _tell_interrupted(call, error)
    except OrchestratorError as error:
        if isinstance(error, UsageError) and error.next_step is None:
            error.next_step = f"fab {call.verb} --help"
        code = call.fail(Problem.of(error))
    except KeyboardInterrupt:
        code = _tell_interrupted(call, InterruptedByOperatorError(call.interrupted))
    except BrokenPipeError:
        return leave_closed_output()
    except Exception as error:  # noqa: BLE001 - the edge: an operator gets a sentence, the traceback goes to a file
        code = _unexpected(call, error)
    return _ended(call, code)


def _ended(call: Call, code: int) -> int:
    """End the call; the exit code."""
    from orchestrator.cli.text import error_blocks

    try:
        return call.end(code)
    except BrokenPipeError:
        leave_closed_output()
        return code
    except OrchestratorError as error:
        call.screen.error(error_blocks(error.message, error.evidence, error.next_step))
        return code or error.exit_code


@contextlib.contextmanager
def _stopped_by_signals(call: Call) -> Iterator[None]:
    """Have SIGTERM and SIGHUP end `call` as Ctrl-C does; one that is ignored (nohup) stays so."""

    def stop(number: int, _frame: FrameType | None) -> None:
        call.stop_by(signal.Signals(number))
        raise KeyboardInterrupt

    taken = [number for number in _STOPPED_BY if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def perform(task: fabric.Task, call: Call, flags: Mapping[str, Any]) -> int:
    """Run a verb within another one, as its command line would be, and return its exit code. Fabric's own flags are not minded again."""
    return guarded(call, lambda: _begun(call, task.plain, flags))


def _begun(call: Call, body: Body, flags: Mapping[str, Any]) -> int | None:
    call.flags = flags
    return body(call, **flags)


def _tell_interrupted(call: Call, error: InterruptedByOperatorError) -> int:
    """Say where things stand and return the exit code."""
    from orchestrator.cli.documents.envelope import Problem

    number = call.stopped_by
    code = call.interrupted_code
    by = [] if number is None else [f"stopped by {_STOPPED_BY[number]}"]
    problem = Problem(error.category, error.message or "interrupted", [*by, *error.evidence], error.next_step, code)
    with contextlib.suppress(OSError):  # with SIGHUP the terminal may have gone
        call.fail(problem, silently=not error.message)
    return code


def leave_closed_output() -> int:
    """The reader of standard output has gone (``| head``), having seen enough: be silent, also at the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _unexpected(call: Call, error: Exception) -> int:
    from orchestrator.cli.documents.envelope import Problem

    message = f"{call.verb} failed in a way that was not foreseen: {type(error).__name__}: {error}"
    next_step = "report it with that file; fab status shows where things stand"
    return call.fail(Problem("unforeseen", message, call.keep_tracebacks(error), next_step, OrchestratorError.exit_code))
