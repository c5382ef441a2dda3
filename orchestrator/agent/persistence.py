"""What applies a profile at boot: made, removed and described on the host. :mod:`persistence_files` holds what is written.

Only files of our own are written. The kernel's command line, modprobe files and firmware are nobody's but a person's.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Dict, List, Optional

from orchestrator.agent.command import run_bounded
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.persistence_files import (
    UNIT,
    Paths,
    boot_command,
    contents,
    digest_of,
    find_paths,
    is_as_written,
    kept_request,
    missing_at_boot,
    overriding,
    written_digest,
    written_folder,
    written_profile,
)
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_host import Persistence, TuneRequest

_SYSTEMD = "/run/systemd/system"
"""Exists where systemd is PID 1 (sd_booted(3))."""
_WHOLE_RANGE = "0 0 4294967295"
"""/proc/self/uid_map outside of user namespaces."""
_TRIAL_SECONDS = 10.0
_SHOW_SECONDS = 5.0
_JOURNAL_LINES = 12


def install(request: TuneRequest, files: Optional[KernelFiles] = None) -> List[str]:
    """Have the profile applied at each boot, and return the files that this made or changed; none when all was there already.

    With `write` False they are only named. Knobs that don't persist, or belong to a container, are left out.

    Raises:
        AgentRefusal: not here, not by this user, not over somebody's changes (see :func:`require`); or systemd has not taken it.
    """
    files = files or KernelFiles()
    require(request, files)
    paths = find_paths(request.state_root, files)
    wanted = contents(request, paths, sys.executable)
    obsolete = [path for path in _former_paths(paths).present if path not in wanted and path != paths.link]
    changed = [path for path, content in wanted.items() if _read(path) != content]
    missing = [] if _is_enabled(paths) else [paths.link]
    changes = [str(path) for path in [*changed, *obsolete, *missing]]
    if not changes or not request.write:
        return changes
    for path in changed:
        _write(path, wanted[path], 0o644 if path in (paths.unit, paths.sysctl) else 0o600)
    _delete(obsolete)
    _try_out(paths)
    _enable(paths)
    return changes


def planned(request: TuneRequest, files: Optional[KernelFiles] = None) -> Dict[str, str]:
    """By path, the text of the unit and of the file in sysctl.d that :func:`install` would write."""
    paths = find_paths(request.state_root, files or KernelFiles())
    made = contents(request, paths, sys.executable)
    return {str(path): content.decode("utf-8") for path, content in made.items() if path in (paths.unit, paths.sysctl)}


def remove(request: TuneRequest, files: Optional[KernelFiles] = None) -> List[str]:
    """Take away what :func:`install` made, also what somebody changed in it, and return the files. The values in force stay as they are.

    With `write` False they are only named.

    Raises:
        AgentRefusal: not by this user, or something is still there afterwards.
    """
    files = files or KernelFiles()
    paths = _former_paths(find_paths(request.state_root, files))
    present = paths.present
    if not present or not request.write:
        return [str(path) for path in present]
    _require_root()
    running = files.exists(_SYSTEMD)
    if running:
        from orchestrator.agent.systemd import systemctl

        systemctl("disable", "--", UNIT)
        systemctl("stop", "--", UNIT)
    _delete(present)
    errors = _forget() if running else ""
    left = [str(path) for path in paths.present] + ([f"systemd: {errors}"] if errors else [])
    if left:
        raise AgentRefusal("refused", f"{UNIT} is not gone", left, f"systemctl status {UNIT}")
    return [str(path) for path in present]


def describe(state_root: str, files: Optional[KernelFiles] = None) -> Optional[Persistence]:
    """What applies a profile at boot, how it went at this boot, and what is wrong with it; None where there is nothing.

    Runs no program where there is nothing, else one, and one more for the lines of a failed one.
    """
    files = files or KernelFiles()
    paths = _former_paths(find_paths(state_root, files))
    present = paths.present
    if not present:
        return None
    unit_text = _text(paths.unit)
    shown = _show(files) if paths.unit in present else {}
    state = shown.get("ActiveState", "unknown")
    problems = _problems(paths, shown)
    return Persistence(
        profile=written_profile(unit_text) or written_profile(_text(paths.sysctl)) or "unknown",
        unit=UNIT,
        enabled=_is_enabled(paths),
        state=state,
        files=[str(path) for path in present],
        said=_last_lines() if state == "failed" else [],
        problem="; ".join(problems) or None,
        notes=[f"{sentence}, after {paths.sysctl}: only {UNIT} puts that right" for sentence in overriding(_text(paths.sysctl), files)],
    )


def require(request: TuneRequest, files: KernelFiles) -> None:
    """See that a profile can be made persistent here, before anything is written.

    Raises:
        AgentRefusal: this is a container, not root, or without systemd; nothing of the profile persists; the code or Python would
            not be there at boot; somebody changed our files.
    """
    from orchestrator.agent.main import container_kind

    if container_kind() is not None or not _has_whole_range(files):
        raise AgentRefusal(
            "refused",
            "what applies a profile at boot belongs to the host, and this is a container",
            [f"container: {container_kind() or 'a user namespace'}"],
            "fab prep --persist --host HOST, with the host's own address in inventory/hosts.yml",
        )
    _require_root()
    if not files.exists(_SYSTEMD):
        step = "run fab prep after each boot, from what this machine starts its services with"
        raise AgentRefusal("refused", "systemd is not running here, and it is what would apply a profile at boot", next_step=step)
    if not kept_request(request).settings:
        step = "give a knob a value and persist: true in inventory/tuning/"
        raise AgentRefusal("refused", f"profile {request.profile} sets nothing on the host that persists", next_step=step)
    paths = find_paths(request.state_root, files)
    _require_there_at_boot(paths, files)
    edited = [str(path) for path in _edited(paths)]
    if edited:
        raise AgentRefusal(
            "refused",
            f"{' and '.join(edited)}: changed since we wrote it, and not overwritten",
            next_step="fab prep --unpersist removes it; what is to stay belongs into `systemctl edit` or a sysctl.d file of its own",
        )


def _require_root() -> None:
    if os.geteuid() != 0:
        step = "connect as root, or set become: sudo for this host"
        raise AgentRefusal("rights", "only root can change what is applied at boot", next_step=step)


def _require_there_at_boot(paths: Paths, files: KernelFiles) -> None:
    mounts = files.text("/proc/self/mountinfo") or ""
    if not os.path.isabs(sys.executable):
        raise AgentRefusal("refused", "this Python does not know where it lies", next_step="name it as python: in inventory/hosts.yml")
    for path, step in ((sys.executable, "name another as python: in inventory/hosts.yml"), (str(paths.folder), "set another state_root:")):
        problem = missing_at_boot(os.path.realpath(path), mounts)
        if problem is not None:
            raise AgentRefusal("refused", f"{path} may not be there at boot: {problem}", ["/proc/self/mountinfo"], step)


def _has_whole_range(files: KernelFiles) -> bool:
    text = files.text("/proc/self/uid_map")
    return text is None or " ".join(text.split()) == _WHOLE_RANGE


def _former_paths(paths: Paths) -> Paths:
    """The paths with the folder that an installed unit really runs from: the state root may have been another one then."""
    text = _text(paths.unit)
    folder = written_folder(text) if is_as_written(text) else None
    return paths._replace(folder=folder) if folder is not None else paths


def _edited(paths: Paths) -> List[Path]:
    return [path for path in (paths.unit, paths.sysctl) if os.path.lexists(str(path)) and not is_as_written(_text(path))]


def _is_enabled(paths: Paths) -> bool:
    return os.path.exists(str(paths.link)) and os.path.realpath(str(paths.link)) == os.path.realpath(str(paths.unit))


def _problems(paths: Paths, shown: Dict[str, str]) -> List[str]:
    problems = [f"{path} was changed by hand" for path in _edited(paths)]
    if not os.path.lexists(str(paths.unit)):
        problems.append(f"{paths.unit} is missing")
    elif not _is_enabled(paths):
        problems.append("the unit is not enabled: nothing is applied at the next boot")
    if shown.get("LoadState", "loaded") != "loaded":
        problems.append(f"systemd can't load the unit: {shown['LoadState']}")
    if os.access(str(paths.folder.parent), os.X_OK) or not os.path.lexists(str(paths.folder.parent)):
        problems += [f"{path} is missing" for path in (paths.agent, paths.request) if not os.path.lexists(str(path))]
    kept, wanted = [_read(path) for path in (paths.agent, paths.request)], written_digest(_text(paths.unit))
    if wanted is not None and None not in kept and digest_of([content or b"" for content in kept]) != wanted:
        problems.append(f"what lies in {paths.folder} is not what {UNIT} was written for")
    return problems


def _show(files: KernelFiles) -> Dict[str, str]:
    if not files.exists(_SYSTEMD):
        return {}
    from orchestrator.agent.systemd import systemctl

    output = systemctl("show", "--property", "LoadState,ActiveState", "--", UNIT, seconds=_SHOW_SECONDS)
    pairs = (line.partition("=") for line in output.text.splitlines())
    return {name: value for name, _, value in pairs}


def _last_lines() -> List[str]:
    """What the unit said at this boot, systemd's own lines about it included."""
    words = ["--boot", f"--unit={UNIT}", f"--lines={_JOURNAL_LINES}", "--output=cat", "--no-pager", "--quiet"]
    output = run_bounded(["journalctl", *words], _SHOW_SECONDS)
    return output.text.splitlines() if output.good else [output.errors.strip() or "the journal can't be read"]


def _write(path: Path, content: bytes, mode: int) -> None:
    """Make the file and the folders above it; ours are for root alone.

    Raises:
        AgentRefusal: it can't be written.
    """
    from orchestrator.agent.private_files import write_private

    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755 if mode == 0o644 else 0o700)
        write_private(path, content, mode)
    except OSError as error:
        where = error.filename or path
        step = f"findmnt -T {path.parent}; df -h {path.parent}; then once more, or fab prep --unpersist"
        raise AgentRefusal("refused", f"{where}: {error.strerror}; the profile is not persistent", next_step=step) from None


def _delete(present: List[Path]) -> None:
    from orchestrator.agent.private_files import sync_folder

    for path in present:
        with contextlib.suppress(OSError):  # what is left is told by who called
            path.unlink()
            sync_folder(path.parent)
    for folder in {path.parent for path in present if path.name == "agent.zip" or path.name == "request.json"}:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _try_out(paths: Paths) -> None:
    """Run what the unit will run up to where it would begin.

    Raises:
        AgentRefusal: it would not come so far.
    """
    output = run_bounded([*boot_command(sys.executable, paths.folder), "--look"], _TRIAL_SECONDS)
    if not output.good:
        said = (output.text + output.errors).splitlines()[-5:]
        raise AgentRefusal("refused", f"what was kept in {paths.folder} does not run; it is not enabled", said, "fab prep --unpersist")


def _enable(paths: Paths) -> None:
    """Enable the unit and see that systemd has it: what systemctl exits with says little.

    Raises:
        AgentRefusal: it has not.
    """
    from orchestrator.agent.systemd import show, systemctl

    systemctl("daemon-reload")
    errors = systemctl("enable", "--", UNIT).errors.strip()
    wanted = {"LoadState": "loaded", "UnitFileState": "enabled", "FragmentPath": str(paths.unit), "NeedDaemonReload": "no"}
    seen = show(UNIT, *wanted)
    if seen != wanted or not _is_enabled(paths):
        evidence = [f"{name}={value}" for name, value in seen.items()] + ([errors] if errors else [])
        raise AgentRefusal("refused", f"{paths.unit} was written, and systemd has not enabled it", evidence, f"systemctl status {UNIT}")


def _forget() -> str:
    """Let systemd look again, and say what it still knows of the unit; empty when nothing."""
    from orchestrator.agent.systemd import show, systemctl

    systemctl("daemon-reload")
    systemctl("reset-failed", "--", UNIT)
    seen = show(UNIT, "LoadState", "ActiveState")
    return "" if seen == {"LoadState": "not-found", "ActiveState": "inactive"} else str(seen)


def _read(path: Path) -> Optional[bytes]:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _text(path: Path) -> str:
    return (_read(path) or b"").decode("utf-8", "replace")
