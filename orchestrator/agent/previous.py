"""How a running server is brought back: read from its processes and our records before anything is touched."""

import dataclasses
import os
import pwd
import shutil
from typing import Dict, List, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.command_lines import argument_value, server_arguments, without_gate
from orchestrator.agent.conditions import read_conditions
from orchestrator.agent.differences import steers
from orchestrator.agent.launch_files import uncarried
from orchestrator.agent.processes import MARKER, Server, read_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import split_secrets
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Previous

AS_FOUND = "as found"
"""The backend name of a launch that copies a server which somebody started by hand."""

_OURS = (MARKER, "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")


def capture(server: Server, folder: StateFolder, service: str, port: int) -> Previous:
    """Return what starts this server again exactly as it runs now.

    A launch of ours is read from its record; anybody's unit is started by its name; any other server is copied from its
    processes: argument vector, environment, folder and user.

    Raises:
        AgentRefusal: what is needed can't be read.
    """
    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    if record is not None:
        return Previous(dataclasses.replace(record, gate_port=None))
    launch = copy_launch(server, service, port)
    unit = server.manager.name if server.manager.kind == wire.ManagerKind.SYSTEMD_UNIT else None
    return Previous(launch, unit)


def copy_launch(server: Server, service: str, port: int) -> wire.Launch:
    """A launch that repeats what a main process of somebody else's runs with, its groups, umask and limits included; not its gate.

    Raises:
        AgentRefusal: its environment or folder can't be read, or its command line isn't a server's.
    """
    command = list(server.main.arguments)
    environment = read_environment(server.main.pid)
    try:
        directory = os.readlink(f"/proc/{server.main.pid}/cwd")
    except OSError as error:
        raise AgentRefusal("rights", f"the working folder of process {server.main.pid} can't be read: {error.strerror}") from None
    rest = server_arguments(command)
    if environment is None or rest is None:
        raise AgentRefusal("refused", f"process {server.main.pid} can't be copied for a rollback", evidence=[str(server.main)])
    arguments, secrets = split_secrets(without_gate(rest))
    python, entry = split_entry(command[: len(command) - len(rest)], environment, directory)
    return wire.Launch(
        launch_id="",
        service=service,
        backend=AS_FOUND,
        python=python,
        entry=entry,
        arguments=arguments,
        host=argument_value(arguments, "--host") or "127.0.0.1",
        port=port,
        environment={name: value for name, value in environment.items() if name not in _OURS and not _is_lost(name, value)},
        secrets=secrets,
        user=_user_name(server.main.user_id),
        directory=directory,
        conditions=read_conditions(server.main.pid),
    )


def _is_lost(name: str, value: str) -> bool:
    """Whether a variable can't be carried over and nothing depends on it: a shell's functions, a prompt with escape codes.

    One that matters stays, and is a reason why there is no way back.
    """
    return uncarried(name, value) is not None and not steers(name)


def split_entry(words: Sequence[str], environment: Dict[str, str], directory: str) -> Tuple[str, List[str]]:
    """Split what precedes the server's arguments into the interpreter, as an absolute path, and the entry point.

    The interpreter is looked up as the shell that started it did: /proc/PID/exe would follow a virtual environment's link
    out of it.
    """
    first = words[0]
    if os.sep in first:
        return os.path.normpath(os.path.join(directory, first)), list(words[1:])
    return shutil.which(first, path=environment.get("PATH")) or first, list(words[1:])


def api_key(launch: wire.Launch) -> Optional[str]:
    """The key that SGLang's ordinary routes ask for."""
    return launch.secrets.get("api-key")


def admin_key(launch: wire.Launch) -> Optional[str]:
    """The key that SGLang's routes for control ask for: where an admin key is set, the ordinary one is refused there."""
    return launch.secrets.get("admin-api-key") or api_key(launch)


def _user_name(user_id: int) -> Optional[str]:
    if user_id == os.geteuid():
        return None
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
