"""Starting a server where systemd does not run: a session of its own, and beside it a parent that only waits."""

import json
import os
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

from orchestrator.agent.command import run_bounded
from orchestrator.agent.conditions import OUR_LIMITS, OUR_UMASK
from orchestrator.agent.launch_files import LOG_LIMIT, LaunchFiles
from orchestrator.agent.private_files import write_private
from orchestrator.agent.procfs import start_time
from orchestrator.agent.refusal import AgentRefusal

_SECONDS = 30.0


def start_launch(files: LaunchFiles, program: Sequence[str]) -> None:
    """Start a launch through its waiter (`program` is the command that runs it), and keep which session it is.

    Raises:
        AgentRefusal: the program could not be executed.
    """
    output = run_bounded([*program, "wait"], _SECONDS, given=json.dumps(waiter_order(files)).encode())
    answer = _answer(output.text)
    if "pid" not in answer:
        evidence = [str(answer.get("error", "")), *output.errors.splitlines()[-5:]]
        raise AgentRefusal("refused", f"{files.argv[0]} could not be started", [line for line in evidence if line])
    session = {"pid": answer["pid"], "start_time": start_time(answer["pid"]), "waiter": answer["waiter"], "boot": boot_identity()}
    write_private(files.folder / "session", json.dumps(session))


def waiter_order(files: LaunchFiles) -> Dict[str, Any]:
    """What the waiter is told over its standard input, where nobody else can read it."""
    conditions = files.launch.conditions
    account: Optional[Dict[str, Any]] = None
    if files.account.switch or (conditions is not None and files.account.user_id == 0):
        groups = os.getgrouplist(files.account.name, files.account.group_id)
        account = {"user": files.account.user_id, "group": files.account.group_id, "groups": groups}
        account.update({} if conditions is None else {"group": conditions.group, "groups": conditions.groups})
    return {
        "argv": files.argv,
        "environment": files.environment,
        "directory": files.launch.directory or "/",
        "log": str(files.log),
        "log_limit": LOG_LIMIT,
        "exit": str(files.exit),
        "limits": OUR_LIMITS if conditions is None else conditions.limits,
        "umask": OUR_UMASK if conditions is None else conditions.umask,
        "account": account,
    }


def recorded_session(folder: Path) -> Optional[Dict[str, Any]]:
    """The session of a launch (`pid` is its number), None when there is none or it is of another boot."""
    try:
        session = json.loads((folder / "session").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return session if isinstance(session, dict) and session.get("boot") == boot_identity() else None


def boot_identity() -> str:
    """Changes with every boot of the kernel (random(4)) and, for a container, of its PID 1: process ids mean something only within."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {start_time(1)}"


def _answer(text: str) -> Dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
