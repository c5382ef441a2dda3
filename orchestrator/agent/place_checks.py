"""What a launch needs of the machine itself: an account, a model, a port, room on disks. Each check reads and answers."""

import os
import re
from typing import Any, Mapping, Optional

from orchestrator.agent import procfs
from orchestrator.agent.host_memory import size
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.processes import Server
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire import Outcome, Verdict

STATE_FOLDER_BYTES = 512 << 20
"""For the journal, records and the server's log, which a full disk must never stop."""
STATE_FOLDER_FILES = 1000
SHARED_MEMORY_BYTES = 256 << 20
"""NCCL and SGLang's ranks share buffers there; a full /dev/shm ends them with SIGBUS."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?$")


def check_user(user: Optional[str]) -> Verdict:
    """Whether the service's user exists, and whether we may start something as that user."""
    try:
        account = find_account(user)
    except AgentRefusal as refusal:
        failure = refusal.failure
        return Verdict("rights" if failure.category == "rights" else "user", Outcome.REFUSE, failure.message, next_step=failure.next_step)
    return Verdict("user", Outcome.PASS, f"the server runs as {account.name}" + ("" if account.switch else ", like the agent"))


def check_model(values: Mapping[str, Any], directory: Optional[str]) -> Verdict:
    """Whether the model is where the arguments say. The name of a hub's model can't be checked without the hub."""
    name = str(values.get("model_path") or "")
    path = os.path.join(directory or "/", os.path.expanduser(name))
    if name and os.path.exists(path):
        if os.path.isdir(path) and not os.path.exists(os.path.join(path, "config.json")):
            evidence = [f"in it: {', '.join(sorted(os.listdir(path))[:8]) or 'nothing'}"]
            return Verdict("model", Outcome.WARN, f"{path} has no config.json", evidence, f"ls {path}")
        return Verdict("model", Outcome.PASS, f"{path} exists")
    if "://" in name or (_HUB_NAME.match(name) and not name.startswith(".")):
        return Verdict("model", Outcome.PASS, f"{name} is no path: SGLang will look for it in its cache, then on the hub")
    parent = _existing_parent(path)
    evidence = [f"{parent} exists; in it: {', '.join(sorted(os.listdir(parent))[:8]) or 'nothing'}"] if os.path.isdir(parent) else []
    return Verdict(
        "model", Outcome.REFUSE, f"the model {path} does not exist", evidence, f"ls -d {path}: is its disk mounted in the container?"
    )


def check_port(port: int, old: Optional[Server]) -> Verdict:
    """Whether the port is free, or held by the very server that is to be replaced."""
    holders = procfs.listening_pids(port)
    if old is not None and holders & {member.pid for member in old.members}:
        return Verdict("port", Outcome.PASS, f"port {port} is held by the server that will be replaced, process {old.main.pid}")
    if not procfs.listeners(port):
        return Verdict("port", Outcome.PASS, f"port {port} is free")
    found = [str(process) for process in map(procfs.read_process, sorted(holders)) if process is not None]
    step = f"ss -ltnp 'sport = :{port}'; end what holds it, or give the service another port"
    return Verdict("port", Outcome.REFUSE, f"port {port} is held by something that is not this service's server", found, step)


def check_state_folder(path: str) -> Verdict:
    """Whether the state folder can be written and has room."""
    parent = _existing_parent(path)
    if not os.access(parent, os.W_OK | os.X_OK):
        step = "set `become: sudo` for this place, or another `state_root:`"
        return Verdict("state_folder", Outcome.REFUSE, f"{parent} can't be written", next_step=step)
    room = os.statvfs(parent)
    free, files = room.f_bavail * room.f_frsize, room.f_favail
    if free < STATE_FOLDER_BYTES or (room.f_files and files < STATE_FOLDER_FILES):
        detail = f"{size(free)} and {files} files are free under {path}; {size(STATE_FOLDER_BYTES)} and {STATE_FOLDER_FILES} are needed"
        return Verdict("state_folder", Outcome.REFUSE, detail, next_step=f"df -h {parent}; df -i {parent}")
    return Verdict("state_folder", Outcome.PASS, f"{size(free)} are free under {path}")


def check_shared_memory(path: str = "/dev/shm") -> Verdict:  # noqa: S108 - the mount itself, no file in it
    """Whether POSIX shared memory is there and has room."""
    try:
        room = os.statvfs(path)
    except OSError as error:
        return Verdict("shared_memory", Outcome.REFUSE, f"{path}: {error.strerror}", next_step=f"mount -t tmpfs tmpfs {path}")
    free = room.f_bavail * room.f_frsize
    if free < SHARED_MEMORY_BYTES:
        return Verdict("shared_memory", Outcome.WARN, f"only {size(free)} are free in {path}", next_step=f"ls -l {path}")
    return Verdict("shared_memory", Outcome.PASS, f"{size(free)} are free in {path}")


def _existing_parent(path: str) -> str:
    while not os.path.exists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    return path or "."
