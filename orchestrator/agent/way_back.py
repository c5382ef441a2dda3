"""Whether a server could be started again as it is: asked of its own Python, as its own user, before anything is touched."""

import os
from dataclasses import dataclass
from typing import List, Optional, Tuple

from orchestrator.agent import arguments, wire
from orchestrator.agent.launch_files import find_account, refuse_uncarried, server_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython


@dataclass(frozen=True)
class Tried:
    """What came of asking a launch's own Python. `obstacle` is why it could not be started again; `command` what its parser read."""

    obstacle: Optional[str] = None
    command: Optional[arguments.ParsedCommand] = None
    version: Optional[str] = None


def obstacle(launch: wire.Launch) -> Optional[str]:
    """Why the launch could not be started again; None where nothing speaks against it and its own SGLang takes its arguments."""
    return ask(launch).obstacle


def ask(launch: wire.Launch) -> Tried:
    """Have its own SGLang read its arguments, as its user and in its environment. Costs the imports of SGLang."""
    try:
        account = find_account(launch.user)
        environment = server_environment(launch, account)
        refuse_uncarried(environment)
    except AgentRefusal as refusal:
        return Tried(refusal.failure.message)
    if launch.directory is not None and not os.path.isdir(launch.directory):
        return Tried(f"its working folder {launch.directory} is gone")
    python = ServicePython(launch.python, environment, launch.user, launch.directory)
    answer = arguments.parse_commands(python, [arguments.launch_arguments(launch)])
    if answer.problem is not None:
        why = f"SGLang's parser could not be asked by {launch.python} as {account.name}: {answer.problem}"
        return Tried(why, version=answer.sglang_version)
    command = answer.commands[0]
    if not command.accepted:
        why = f"SGLang {answer.sglang_version} of {launch.python} refuses its arguments: {command.message}"
        return Tried(why, command, answer.sglang_version)
    return Tried(None, command, answer.sglang_version)


def has_its_own(old: wire.Launch, new: wire.Launch) -> bool:
    """Whether what the candidate's Python says of the old server's arguments tells nothing of the old one's."""
    return (old.python, old.user, _search(old)) != (new.python, new.user, _search(new))


def _search(launch: wire.Launch) -> List[Tuple[str, str]]:
    """Where its Python looks: variables, and the working folder where that has a checkout of SGLang in it."""
    found = [(name, value) for name, value in sorted(launch.environment.items()) if name.startswith(("PYTHON", "LD_"))]
    checkout = os.path.join(launch.directory or "/", "sglang")
    return [*found, ("checkout", checkout)] if os.path.isdir(checkout) else found
