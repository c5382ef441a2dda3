"""What SGLang's processes look like in a process table: the server's command line and its children's."""

import os
import re
from typing import List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.procfs import Process

DEFAULT_PORT = 30000
"""SGLang's own (srt/server_args.py, 0.5.3 to 0.5.23)."""

GATE_FLAG = "--gated-launch-port"
"""Of a server that waits at a gate after its distributed set-up (SGLang from 0.5.20). This program adds it to what it stages."""

_PYTHON = r"(?:pypy|python)[0-9.]*$"
_PYTHON_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_SERVER_MODULES = ("sglang.launch_server",)
_COMMAND_MODULES = ("sglang", "sglang.cli.main")
"""Modules whose first argument says what to do; ``serve`` is the server."""
_SPAWNED = r"from multiprocessing\.(?:spawn|resource_tracker|forkserver) import "
_TRACKER = "from multiprocessing.resource_tracker import "


def server_arguments(command: Sequence[str]) -> Optional[List[str]]:
    """What follows the entry point if a command line is SGLang's server, else None.

    Only real elements count: ``python -m sglang.launch_server ...``, ``sglang serve ...`` (a console script, so an interpreter
    and a path) and ``python .../sglang/launch_server.py``; never a shell, editor or client that merely mentions them.
    """
    words = list(command)
    if not words:
        return None
    if os.path.basename(words[0]) == "sglang":
        return words[2:] if words[1:2] == ["serve"] else None
    if not re.match(_PYTHON, os.path.basename(words[0])):
        return None
    rest = _after_python_options(words[1:])
    if rest[:1] == ["-m"]:
        module, following = (rest[1] if len(rest) > 1 else ""), rest[2:]
        if module in _SERVER_MODULES:
            return following
        return following[1:] if module in _COMMAND_MODULES and following[:1] == ["serve"] else None
    script = rest[0] if rest else ""
    if script.endswith("sglang/launch_server.py"):
        return rest[1:]
    return rest[2:] if os.path.basename(script) == "sglang" and rest[1:2] == ["serve"] else None


def _after_python_options(words: List[str]) -> List[str]:
    """Drop the interpreter's own options; what is left starts with ``-m``, ``-c`` or a script."""
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        words = words[2:] if words[0] in _PYTHON_OPTIONS_WITH_VALUE else words[1:]
    return words


def argument_value(arguments: Sequence[str], flag: str) -> Optional[str]:
    """The value of ``--flag VALUE`` or ``--flag=VALUE``; the last one counts, as in argparse."""
    value = None
    for index, word in enumerate(arguments):
        if word == flag and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif word.startswith(flag + "="):
            value = word[len(flag) + 1 :]
    return value


def named_port(arguments: Sequence[str]) -> Optional[int]:
    """The port that a server's arguments name, None when they name none."""
    value = argument_value(arguments, "--port")
    return int(value) if value is not None and value.isdigit() else None


def gate_port(arguments: Sequence[str]) -> Optional[int]:
    """The port of the gate at which a server with these arguments waits, or has waited; None when it has none."""
    value = argument_value(arguments, GATE_FLAG)
    return int(value) if value is not None and value.isdigit() else None


def without_gate(arguments: Sequence[str]) -> List[str]:
    """Arguments without a gate: with one, a server that nobody activates waits for ever."""
    left: List[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == GATE_FLAG:
            next(rest, None)
        elif not argument.startswith(GATE_FLAG + "="):
            left.append(argument)
    return left


def command_of(launch: wire.Launch, arguments: Optional[List[str]] = None) -> List[str]:
    """The argument vector of a launch, its gate included; `arguments` in place of its own where its secrets are hidden."""
    gate = [] if launch.gate_port is None else [GATE_FLAG, str(launch.gate_port)]
    return [launch.python, *launch.entry, *(launch.arguments if arguments is None else arguments), *gate]


def is_spawned_child(process: Process) -> bool:
    """Whether a process is recognisably a child of SGLang or, before it has its title, of Python's multiprocessing."""
    if process.title.startswith("sglang::"):
        return True
    arguments = process.arguments
    if not arguments or not re.match(_PYTHON, os.path.basename(arguments[0])):
        return False
    return any(re.match(_SPAWNED, word) for word in arguments[1:8])


def is_scheduler(process: Process) -> bool:
    """Whether a process has the title that SGLang gives its schedulers after their imports; they hold what is on the GPUs."""
    return process.title.startswith("sglang::scheduler")


def is_resource_tracker(process: Process) -> bool:
    """Python's resource tracker: it ignores SIGTERM, removes leaked shared memory and ends when its server has gone."""
    return any(word.startswith(_TRACKER) for word in process.arguments)
