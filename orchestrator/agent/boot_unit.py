"""What brings a service's server back by itself, after it has crashed and after a restart of the machine.

A launch runs in a transient unit that ends with it. Once the launch is verified, the service's persistent unit is written from it: same
command, environment file, account, limits and log. Boot starts that unit, and so does the transient one when it fails (OnFailure=);
a server that runs in the persistent unit is started again by Restart=.

Whatever asks for it, the unit starts only while the service's switch is there, a file in its state folder (ConditionPathExists=).
Taking that away needs no reload of systemd, is seen by a restart that is pending, and outlives a reboot. It is away from before the first
signal to an old server until a launch has been verified.
"""

import contextlib
import os
import re
import shlex
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence

from orchestrator.agent import systemd, wire
from orchestrator.agent.boot_state import FOLDER, HEADER, WANTED_BY, describe, is_foreign, link, read, switch, written_from
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.launch_files import LOG_LIMIT, SYSTEM_PATH, LaunchFiles, started_files
from orchestrator.agent.managers import UNIT_PREFIX, boot_unit_name
from orchestrator.agent.private_files import sync_folder, write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Outcome, Verdict

RUNTIME = Path("/run/systemd/system")
NODE_SECONDS = 120
"""How long a start waits for the GPUs' device nodes: at boot they may come after us."""
_CHECK = "boot unit"
_RIVAL = "somebodys-unit"

_UNIT = """\
{header}
[Unit]
Description=SGLang for {service}, launch {launch_id}, after a crash or at boot
After=local-fs.target remote-fs.target network.target network-online.target nvidia-persistenced.service orchestrator-prep.service
Wants={keeper}
ConditionPathExists={switch}
StartLimitIntervalSec=7200
StartLimitBurst=5
[Service]
Type=exec
ExecCondition={before} running
ExecStartPre=+{before} prepare
ExecStart={command}
TimeoutStartSec={start_seconds}
Restart=on-failure
RestartSec=5
{settings}
[Install]
WantedBy={wanted_by}
"""
"""Five starts in two hours: a load may take twenty minutes before it fails, and a server that can't load is not tried for ever."""

_KEEPER = """\
{header}
[Unit]
Description=Keeps the log of {unit} small
PartOf={unit}
After={unit}
[Service]
ExecStart={command}
StandardOutput=null
StandardError=null
"""
"""It ends by itself with the server, not by BindsTo=: what requires a unit that fails and restarts asks for starts of it, which count
(unit_notify, retroactively_start_dependencies: core/unit.c, v252)."""

_BEFORE = """\
#!/bin/sh
# Run by systemd before it starts this launch again, by itself.
folder=${{0%/*}}
if [ "$1" = running ]; then
    if systemctl is-active --quiet {transient}; then
        echo "orchestrator: the launch runs in {transient}: not started a second time"
        exit 1
    fi
    exit 0
fi
waited=0
for node in {nodes}; do
    until [ -c "$node" ]; do
        if [ "$waited" -ge {seconds} ]; then
            echo "orchestrator: not started again, as $node is not there after {seconds} s (ls -l /dev/nvidia*; fab doctor)"
            exit 1
        fi
        sleep 1
        waited=$((waited + 1))
    done
done
echo "$(date +%s) $(cat "$folder/exit" 2>/dev/null)" >>"$folder/restarts"
: >"$folder/exit"
exit 0
"""


def wanted(boot: Optional[bool]) -> bool:
    """Whether a service that says `boot` is to come back here."""
    return systemd.is_available() if boot is None else boot


def install(folder: StateFolder, launch: wire.Launch, nodes: Sequence[str], program: Sequence[str]) -> List[Verdict]:
    """Have this launch, which runs and serves, come back by itself from now on; what stands in the way is a warning.

    Args:
        nodes: the device nodes that it has open.
        program: the command of waiter.py.
    """
    if not systemd.is_available():
        return [_warning("nothing starts this server again after a crash or a reboot: systemd does not run here, or not for this user")]
    unit = FOLDER / boot_unit_name(launch.service)
    if is_foreign(unit, launch.service):
        return [_warning(f"nothing starts this server again: {unit} was not written for this service", f"systemctl cat {unit.name}")]
    rival = _enabled_rival(folder)
    if rival is not None:
        remove(folder)
        what = f"nothing starts this server again: {rival} is enabled, and starts the server that was replaced at the next boot"
        return [_warning(what, f"systemctl disable {rival}, then fab boot --on")]
    crash_point("before the boot unit")
    try:
        _write(folder, started_files(folder, launch), nodes, program)
    except (OSError, AgentRefusal) as error:
        return [_warning(f"nothing starts this server again: {error}", f"systemctl status {unit.name}")]
    crash_point("the boot unit")
    return []


def keep_rival(folder: StateFolder, unit: str) -> None:
    """Remember that the service's server runs in somebody's `unit`: both would start at boot, on one port."""
    write_private(folder.path / _RIVAL, unit + "\n")


def _enabled_rival(folder: StateFolder) -> Optional[str]:
    unit = read(folder.path / _RIVAL).strip()
    return unit if unit and systemd.show(unit, "UnitFileState").get("UnitFileState", "").startswith("enabled") else None


def switch_off(folder: StateFolder) -> bool:
    """From now on nothing starts the service but we ourselves; whether something would have.

    A start that is under way is ended, unless it has come as far as a process: that is found like any other.
    """
    there = switch(folder).exists()
    crash_point("before the switch")
    with contextlib.suppress(FileNotFoundError):
        switch(folder).unlink()
        sync_folder(folder.path)
    with contextlib.suppress(OSError):
        link(folder.path.name).unlink()
    crash_point("the switch")
    if there and _state(folder.path.name) == "activating":
        systemd.systemctl("stop", "--", boot_unit_name(folder.path.name))
    return there


def switch_on(folder: StateFolder) -> None:
    """Undo :func:`switch_off` where it turned out that nothing is changed; does nothing where no unit was written."""
    launch_id = written_from(FOLDER / boot_unit_name(folder.path.name), folder.path.name)
    if launch_id is not None:
        _enable(folder, launch_id)


def remove(folder: StateFolder) -> bool:
    """Take the unit away; whether there was one. Under a server that runs in it, it stays what it is until that ends."""
    service = folder.path.name
    name = boot_unit_name(service)
    switch_off(folder)
    unit = FOLDER / name
    there = unit.exists() and not is_foreign(unit, service)
    runtime = RUNTIME / name
    if not there and not runtime.exists():
        return False
    running = _state(service) in ("active", "deactivating", "reloading")
    crash_point("before the boot unit is removed")
    if there and running:
        kept = re.sub(r"(?m)^Restart=.*$", "Restart=no", unit.read_text(encoding="utf-8"))
        runtime.write_text(kept, encoding="utf-8")
    elif not running:
        with contextlib.suppress(OSError):
            runtime.unlink()
    if there:
        unit.unlink()
        with contextlib.suppress(OSError):
            (FOLDER / _keeper_name(service)).unlink()
    systemd.systemctl("daemon-reload")
    crash_point("the boot unit is removed")
    return there


def device_nodes(pids: Sequence[int]) -> List[str]:
    """The device nodes without which processes that have GPUs open would not start again; nothing where they have none."""
    from orchestrator.agent.gpu import device_holders

    holders = device_holders()
    gpus = sorted({node for pid in pids for node in holders.get(pid, ())})
    return [*gpus, "/dev/nvidiactl", "/dev/nvidia-uvm"] if gpus else []


def boot(request: Any, emit: Callable[[str, Any], None]) -> Any:
    """Show, write or remove the unit of a service (a :class:`wire_launches.BootRequest`).

    Raises:
        AgentRefusal: an order is at work, or a person has locked the service (``locked``); what serves is not a launch of ours in a unit
            of its own (``refused``).
    """
    from orchestrator.agent.journal import ServiceLock
    from orchestrator.agent.locks import refuse_when_held, refuse_when_interrupted, refuse_when_locked
    from orchestrator.agent.wire_launches import BootAction, BootReport

    folder = StateFolder(request.state_root, request.service)
    if request.action == BootAction.SHOW:
        return BootReport(describe(folder))
    refuse_when_locked(folder)
    refuse_when_held(folder)
    refuse_when_interrupted(folder)
    lock = ServiceLock(folder)
    if folder.path.exists() and not lock.take("boot"):
        refuse_when_held(folder)
    try:
        verdicts = _turn_on(folder, request.port) if request.action == BootAction.ON else []
        changed = remove(folder) if request.action == BootAction.OFF else not verdicts
    finally:
        lock.release()
    return BootReport(describe(folder), verdicts, changed)


def _turn_on(folder: StateFolder, port: int) -> List[Verdict]:
    from orchestrator.agent.processes import find_server

    server = find_server(port)
    if server is None:
        raise AgentRefusal("refused", f"no server runs on port {port}: the unit is written from one", next_step="fab launch")
    launch = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    if launch is None or server.manager.kind != wire.ManagerKind.OWN_UNIT:
        what = f"process {server.main.pid} was not started by this program in a unit of its own ({server.manager.name})"
        raise AgentRefusal("refused", what, [str(server.main)], "the next relaunch or rollback starts one that comes back by itself")
    if folder.verified_facts(launch.launch_id) is None:
        raise AgentRefusal("refused", f"launch {launch.launch_id} was never verified", next_step="fab status")
    return install(folder, launch, device_nodes([member.pid for member in server.members]), waiter_command(folder, launch.launch_id))


def waiter_command(folder: StateFolder, launch_id: str) -> List[str]:
    """The command of the waiter that a launch has in its folder."""
    import sys

    return [sys.executable, "-I", "-S", str(folder.launch_folder(launch_id) / "waiter.py")]


def unit_text(files: LaunchFiles, switch: Path) -> str:
    """The persistent unit of a launch."""
    launch = files.launch
    return _UNIT.format(
        header=HEADER.format(service=launch.service, launch_id=launch.launch_id),
        service=launch.service,
        launch_id=launch.launch_id,
        keeper=_keeper_name(launch.service),
        switch=_plain(str(switch)),
        # Without the server's environment, whose marker would make a server of it.
        before=_command(["/usr/bin/env", "-i", f"PATH={SYSTEM_PATH}", "/bin/sh", str(files.folder / "before-start")]),
        command=_command(files.argv),
        start_seconds=NODE_SECONDS + 60,
        settings="\n".join(_plain(setting) for setting in systemd.launch_properties(files)),
        wanted_by=WANTED_BY,
    )


def before_text(launch: wire.Launch, nodes: Sequence[str]) -> str:
    """The script that looks before a start, and writes down that there is one."""
    words = " ".join(shlex.quote(node) for node in nodes)
    transient = systemd.unit_name(launch.service, launch.launch_id)
    return _BEFORE.format(transient=transient, nodes=words, seconds=NODE_SECONDS)


def _write(folder: StateFolder, files: LaunchFiles, nodes: Sequence[str], program: Sequence[str]) -> None:
    launch = files.launch
    name = boot_unit_name(launch.service)
    with contextlib.suppress(FileNotFoundError):
        (files.folder / "restarts").unlink()
    write_private(files.folder / "before-start", before_text(launch, nodes), 0o644)
    keeper = _KEEPER.format(
        header=HEADER.format(service=launch.service, launch_id=launch.launch_id),
        unit=name,
        command=_command([*program, "rotate", str(files.log), str(LOG_LIMIT), str(files.exit)]),
    )
    write_private(FOLDER / _keeper_name(launch.service), keeper, 0o644)
    write_private(FOLDER / name, unit_text(files, switch(folder)), 0o644)
    bound = systemd.bind_failure(launch)
    reload = systemd.systemctl("daemon-reload")
    if not bound():
        raise AgentRefusal("refused", f"systemd does not take that a crash of this launch starts {name}", [reload.errors.strip()])
    loaded = systemd.show(name, "LoadState", "Restart")
    if loaded != {"LoadState": "loaded", "Restart": "on-failure"}:
        raise AgentRefusal("refused", f"systemd does not take {FOLDER / name}", [f"{loaded}", reload.errors.strip()])
    systemd.systemctl("reset-failed", "--", name)
    _enable(folder, launch.launch_id)


def _enable(folder: StateFolder, launch_id: str) -> None:
    wanted_by = link(folder.path.name)
    wanted_by.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.symlink(str(FOLDER / boot_unit_name(folder.path.name)), str(wanted_by))
    sync_folder(wanted_by.parent)
    write_private(switch(folder), launch_id + "\n")


def _keeper_name(service: str) -> str:
    """No service's name has a colon in it."""
    return f"{UNIT_PREFIX}{service}:log.service"


def _state(service: str) -> str:
    return systemd.show(boot_unit_name(service), "ActiveState").get("ActiveState", "") if systemd.is_available() else ""


def _command(words: Sequence[str]) -> str:
    return " ".join(_plain(systemd.exec_word(word.replace("$", "$$")).replace("\n", "\\n")) for word in words)


def _plain(text: str) -> str:
    """Without specifiers (systemd.unit(5))."""
    return text.replace("%", "%%")


def _warning(detail: str, step: Optional[str] = None) -> Verdict:
    return Verdict(_CHECK, Outcome.WARN, detail, next_step=step)
