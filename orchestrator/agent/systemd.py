"""systemd as a runner of our own transient units, and how somebody's unit is kept from restarting while we work.

Facts behind the settings were measured on systemd 252 in LXC; where an option is younger than v244 it is not used.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.boot_state import FOLDER as _INSTALLED
from orchestrator.agent.boot_state import is_foreign
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command import Output, run_bounded
from orchestrator.agent.conditions import systemd_settings
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.launch_files import LOG_LIMIT, LaunchFiles
from orchestrator.agent.managers import UNIT_PREFIX, boot_unit_name
from orchestrator.agent.private_files import write_private
from orchestrator.agent.procfs import Process, has_ended, read_process
from orchestrator.agent.refusal import AgentRefusal

_RUNNING = Path("/run/systemd/system")
"""Exists where systemd is PID 1 (sd_booted(3)); also the folder of runtime units and drop-ins."""
_TRANSIENT = Path("/run/systemd/transient")
_SECONDS = 30.0
_STOP_SECONDS = 90
"""TimeoutStopSec of our units: for an administrator's ``systemctl stop``; our own stop has its own deadlines."""
_SETTLED_SECONDS = 5.0
"""For systemd to see that a unit has ended, once its processes have; it is dark meanwhile."""
_DROP_IN = "zzz-orchestrator.conf"
"""Drop-ins apply in the order of their names, so this one has the last word."""

_QUIET = """\
# Written by lxc-gpu-orchestrator while it replaces this server; it is removed when that is done.
[Unit]
FailureAction=none
SuccessAction=none
[Service]
Restart=no
RestartForceExitStatus=
KillMode=mixed
"""

_RECORD_EXIT = """\
#!/bin/sh
# Run by systemd when the server has ended; keeps how, since a finished transient unit is forgotten.
echo "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" >"${0%/*}/exit"
"""


def is_available() -> bool:
    """Whether units can be made here: systemd is PID 1, we are root, and systemd-run is installed."""
    return _RUNNING.is_dir() and os.geteuid() == 0 and shutil.which("systemd-run") is not None


def unit_name(service: str, launch_id: str) -> str:
    """The unit of one launch."""
    return f"{UNIT_PREFIX}{service}-{launch_id}.service"


def systemctl(*words: str, seconds: float = _SECONDS) -> Output:
    """Run systemctl, bounded."""
    return run_bounded(["systemctl", "--no-ask-password", *words], seconds)


def show(unit: str, *properties: str) -> Dict[str, str]:
    """Properties of a unit; an unknown unit has them too (``LoadState=not-found``)."""
    output = systemctl("show", "--property", ",".join(properties), "--", unit)
    pairs = (line.partition("=") for line in output.text.splitlines())
    return {name: value for name, _, value in pairs}


def main_process(unit: str) -> Optional[Process]:
    """The main process of a running unit."""
    return _main_of(show(unit, "MainPID"))


def _main_of(seen: Dict[str, str]) -> Optional[Process]:
    pid = seen.get("MainPID", "0")
    return read_process(int(pid)) if pid.isdigit() and pid != "0" else None


def exec_word(text: str) -> str:
    """One word of a command line in a unit's setting (systemd.service(5), "Command lines")."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def run_arguments(name: str, argv: Sequence[str], properties: Sequence[str], description: str) -> List[str]:
    """The systemd-run command that starts `argv` as a transient unit.

    A failed unit is collected like a finished one: what is to be kept of it lies in the launch's folder. systemd expands ``$``
    in arguments even there, so it is doubled.
    """
    settings = [word for item in properties for word in ("--property", item)]
    command = [word.replace("$", "$$") for word in argv]
    options = ["--quiet", "--collect", "--no-ask-password", "--service-type=exec", f"--unit={name}", f"--description={description}"]
    return ["systemd-run", *options, *settings, "--", *command]


def start_transient(name: str, argv: Sequence[str], properties: Sequence[str], description: str) -> None:
    """Start a transient unit and return once its program has been executed.

    Raises:
        AgentRefusal: systemd would not, or the program could not be executed.
    """
    output = run_bounded(run_arguments(name, argv, properties, description), _SECONDS)
    if not output.good:
        raise AgentRefusal("refused", f"systemd did not start {name}", output.errors.splitlines()[-5:], f"journalctl -u {name}")


def append_to(log: Path) -> List[str]:
    """Settings that send both outputs to the end of a file and nothing in."""
    return ["StandardInput=null", f"StandardOutput=append:{log}", f"StandardError=append:{log}"]


def launch_properties(files: LaunchFiles) -> List[str]:
    """The settings of a launch's unit.

    ExecStopPost= is a plain command, run as the service's user: systemd 252 keeps one with a prefix (``+``) or a ``$`` in a
    transient unit's file in a form that its own daemon-reload rejects, and the exit status would be lost with it.
    """
    record = f"{exec_word('/bin/sh')} {exec_word(str(exit_recorder(files)))}"
    properties = [
        "KillMode=mixed",
        f"TimeoutStopSec={_STOP_SECONDS}",
        *append_to(files.log),
        f"EnvironmentFile={files.environment_file}",
        f"ExecStopPost={record}",
        *systemd_settings(files.launch.conditions, files.account.group_id),
        "TasksMax=infinity",
    ]
    if files.account.switch:
        properties.append(f"User={files.account.name}")
    if files.launch.directory is not None:
        properties.append(f"WorkingDirectory={files.launch.directory}")
    return properties


def exit_recorder(files: LaunchFiles) -> Path:
    """The script that writes the launch's exit status."""
    return files.folder / "record-exit"


def start_launch(files: LaunchFiles, program: Sequence[str]) -> None:
    """Start a launch's unit, and beside it one that keeps its log within its limit and ends with it.

    The log keeper (`program` is its command) stands in a unit of its own: in the server's cgroup it would count as
    one of the server's processes, and a limit or a kill there would be shared.
    """
    launch = files.launch
    write_private(exit_recorder(files), _RECORD_EXIT, 0o644)
    name = unit_name(launch.service, launch.launch_id)
    # A crash starts the persistent unit, which does nothing unless it was written from this launch (boot_unit.py). While a staged
    # launch waits it is written from the one before, which serves: so that crash is to start nothing, until bind_failure().
    boot_unit = boot_unit_name(launch.service)
    comes_back = launch.gate_port is None and not is_foreign(_INSTALLED / boot_unit, launch.service)
    properties = [*launch_properties(files), *([f"OnFailure={boot_unit}"] if comes_back else [])]
    start_transient(name, files.argv, properties, f"SGLang for {launch.service}, launch {launch.launch_id}")
    crash_point("the launch's unit")
    keeper = [*program, "rotate", str(files.log), str(LOG_LIMIT)]
    bound = [f"BindsTo={name}", f"After={name}", "StandardOutput=null", "StandardError=null", "Restart=on-failure"]
    # A server that has ended already leaves nothing to be bound to.
    with contextlib.suppress(AgentRefusal):
        start_transient(name.replace(".service", "-log.service"), keeper, bound, f"keeps the log of {name} small")


def bind_failure(launch: wire.Launch) -> Callable[[], bool]:
    """Have the crash of a launch that was staged start the persistent unit too, from the next daemon-reload on.

    A drop-in beside its transient unit, which systemd removes with it (unit_remove_transient, core/unit.c, v252). Returns what tells,
    after the reload, whether systemd has taken it. Does nothing for a launch that is bound already or does not run in its transient unit.
    """
    name, boot_unit = unit_name(launch.service, launch.launch_id), boot_unit_name(launch.service)
    seen = show(name, "ActiveState", "OnFailure")
    if seen.get("ActiveState") != "active" or boot_unit in seen.get("OnFailure", "").split():
        return lambda: True
    folder = _TRANSIENT / f"{name}.d"
    folder.mkdir(exist_ok=True)
    write_private(folder / _DROP_IN, f"[Unit]\nOnFailure={boot_unit}\n", 0o644)
    crash_point("a crash brings it back")
    return lambda: boot_unit in show(name, "OnFailure").get("OnFailure", "").split()


def quiet_unit(unit: str) -> None:
    """Keep somebody's unit from restarting its server, and from killing its children with it, until :func:`unquiet_unit`.

    A drop-in in /run: a reboot forgets it.

    Raises:
        AgentRefusal: not allowed (``rights``), or systemd does not follow the drop-in (``refused``).
    """
    folder = _RUNNING / f"{unit}.d"
    crash_point("before somebody's unit is quiet")
    try:
        folder.mkdir(exist_ok=True)
        (folder / _DROP_IN).write_text(_QUIET, encoding="utf-8")
    except PermissionError:
        raise AgentRefusal(
            "rights", f"only root can keep {unit} from restarting", next_step="connect as root, or set become: sudo for this place"
        ) from None
    crash_point("the drop-in that keeps it quiet")
    reload = systemctl("daemon-reload")
    crash_point("somebody's unit is quiet")
    seen = show(unit, "Restart", "KillMode")
    if seen != {"Restart": "no", "KillMode": "mixed"}:
        unquiet_unit(unit)
        raise AgentRefusal(
            "refused", f"{unit} could not be kept from restarting", [f"{seen}", reload.errors.strip()], f"systemctl cat {unit}"
        )


def unquiet_unit(unit: str) -> None:
    """Take the drop-in of :func:`quiet_unit` away; does nothing where there is none."""
    folder = _RUNNING / f"{unit}.d"
    try:
        (folder / _DROP_IN).unlink()
    except FileNotFoundError:
        return
    if not any(folder.iterdir()):
        folder.rmdir()
    crash_point("the drop-in is gone")
    systemctl("daemon-reload")
    crash_point("somebody's unit has its own settings again")


def release_unit(unit: str) -> None:
    """Take the drop-in of :func:`quiet_unit` away once systemd does not mean to start the unit's server again.

    That it decides when it has seen the last of the unit end, or its ExecStopPost, by the settings of that moment
    (service_enter_dead, core/service.c, v252): on a busy machine that may be half a second after the processes have gone. To a unit
    that is not there in time a stop is queued, after which it is not restarted whatever its settings (service_stop, forbid_restart).
    """
    if not (_RUNNING / f"{unit}.d" / _DROP_IN).exists():
        return
    if not wait_until(lambda: _is_settled(unit), Deadline(_SETTLED_SECONDS), 0.05):
        stop_unit(unit)
    unquiet_unit(unit)


def _is_settled(unit: str) -> bool:
    """Whether a unit has come to its end, or runs."""
    seen = show(unit, "ActiveState", "SubState", "MainPID")
    if seen.get("ActiveState") != "active":
        return seen.get("ActiveState") in ("inactive", "failed")
    main = _main_of(seen)
    return seen.get("SubState") == "exited" or (main is not None and not has_ended(main))


def stop_unit(unit: str) -> None:
    """Ask systemd to stop what is left of a unit (a wrapper around the server); does not wait."""
    systemctl("stop", "--no-block", "--", unit)


def start_unit(unit: str) -> None:
    """Start somebody's unit again, as it was.

    Raises:
        AgentRefusal: systemd would not.
    """
    unquiet_unit(unit)
    systemctl("reset-failed", "--", unit)
    crash_point("before somebody's unit is started")
    output = systemctl("start", "--no-block", "--", unit)
    if not output.good:
        raise AgentRefusal("refused", f"systemd did not start {unit}", output.errors.splitlines()[-5:], f"systemctl status {unit}")
