"""What is written so that a profile is applied at boot, and where. Pure but for reading: see :mod:`persistence` for who writes it.

::

    /etc/systemd/system/orchestrator-prep.service      runs the kept code with the kept request
    /etc/sysctl.d/90-orchestrator.conf                 the sysctls, set earlier by systemd-sysctl, and by `sysctl --system`
    ROOT/.host/boot/agent.zip                          the code: what was sent when the profile was made persistent
    ROOT/.host/boot/request.json                       wire_host.TuneRequest
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent.archive import agent_archive
from orchestrator.agent.codec import to_json
from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_host import KnobSetting, PersistenceAction, PlaceKind, TuneAction, TuneRequest

UNIT = "orchestrator-prep.service"
SYSCTL_NAME = "90-orchestrator.conf"
START_SECONDS = 90
"""TimeoutStartSec of the unit. The code ends by itself before: see :mod:`at_boot`."""
STOP_SECONDS = 5
"""TimeoutStopSec of the unit. For a process that SIGKILL does not end, systemd waits this long four times (two for SIGTERM and SIGKILL,
two again for what is left of the unit) before it gives up and starts what comes after: so guests are held for 110 s at worst."""

_SYSTEM = "/etc/systemd/system"
_SYSCTL_FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
"""In the order of sysctl.d(5): a file hides those of its name in later folders."""
_SYSCTL_KEY = re.compile(r"[\w./@:-]+")

_CODE = "import sys; sys.path.insert(0, sys.argv[1] + '/agent.zip'); from orchestrator.agent.at_boot import main; main(*sys.argv[1:])"

_HEADER = """\
# Written by `fab prep --persist`; `fab prep --unpersist` removes it. Not to be edited: a changed file is not overwritten.
# profile: {profile}
"""
_KEPT = re.compile(r"^# kept: ([0-9a-f]{64})$", re.MULTILINE)
_CHECKSUM = re.compile(r"^# checksum: ([0-9a-f]{64})\n", re.MULTILINE)
_PROFILE = re.compile(r"^# profile: (.*)$", re.MULTILINE)
_FOLDER = re.compile(r'^ExecStart=.* "([^"]*)"$', re.MULTILINE)

_UNIT_TEXT = """\
# kept: {kept}
[Unit]
Description=Host tuning profile {profile}
After=systemd-modules-load.service systemd-sysctl.service
Before=pve-guests.service lxc.service incus.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec={start}
TimeoutStopSec={stop}
KillMode=mixed
ExecStart={command}

[Install]
WantedBy=multi-user.target
"""
"""What sets knobs itself (nvidia-persistenced, tuned, cpupower) does not stand in After=: if one of them hung, guests would be held by it,
through us, and without a bound where it is a oneshot. The code waits for them instead, for a while."""

_LATE = re.compile(r"nfs4?|cifs|smb3|9p|ceph|glusterfs|lustre|afs|autofs|fuse(\..*)?")
_VOLATILE = re.compile(r"tmpfs|ramfs")


class Paths(NamedTuple):
    """Where everything lies. `link` is what enables the unit."""

    unit: Path
    link: Path
    sysctl: Path
    folder: Path

    @property
    def agent(self) -> Path:
        return self.folder / "agent.zip"

    @property
    def request(self) -> Path:
        return self.folder / "request.json"

    @property
    def all(self) -> List[Path]:
        """In the order in which they are written: nothing refers to what is not there yet."""
        return [self.agent, self.request, self.sysctl, self.unit, self.link]

    @property
    def present(self) -> List[Path]:
        return [path for path in self.all if os.path.lexists(str(path))]


def find_paths(state_root: str, files: KernelFiles) -> Paths:
    """The paths for a host's state root."""
    unit = Path(files.path(f"{_SYSTEM}/{UNIT}"))
    link = Path(files.path(f"{_SYSTEM}/multi-user.target.wants/{UNIT}"))
    return Paths(unit, link, Path(files.path(f"/etc/sysctl.d/{SYSCTL_NAME}")), Path(HostFolder(state_root).boot))


def written_folder(unit_text: str) -> Optional[Path]:
    """The folder that a unit of ours runs from."""
    found = _FOLDER.search(unit_text)
    return Path(found.group(1).replace("%%", "%").replace("$$", "$")) if found else None


def written_profile(text: str) -> Optional[str]:
    """The profile that a file of ours was written for."""
    found = _PROFILE.search(text)
    return found.group(1) if found else None


def written_digest(unit_text: str) -> Optional[str]:
    """The digest (:func:`digest_of`) of the code and the request that a unit of ours was written for."""
    found = _KEPT.search(unit_text)
    return found.group(1) if found else None


def digest_of(contents: Sequence[bytes]) -> str:
    """One digest of several files."""
    return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()


def is_as_written(text: str) -> bool:
    """Whether a file still is what we wrote."""
    found = _CHECKSUM.search(text)
    return found is not None and found.group(1) == _digest(text[: found.start()] + text[found.end() :])


def contents(request: TuneRequest, paths: Paths, python: str) -> Dict[Path, bytes]:
    """Every file that makes `request`'s profile persistent, the unit last.

    Raises:
        AgentRefusal: a sysctl's name or value can't be written into a file.
    """
    kept = kept_request(request)
    made = {paths.agent: agent_archive(), paths.request: json.dumps(to_json(kept), indent=1).encode() + b"\n"}
    sysctls = [setting for setting in kept.settings if setting.kind == "sysctl"]
    if sysctls:
        made[paths.sysctl] = _with_header("".join(map(_sysctl_line, sysctls)), request.profile)
    command = " ".join(_word(word) for word in boot_command(python, paths.folder))
    kept_digest = digest_of([made[paths.agent], made[paths.request]])
    name = _unit_text(request.profile)
    unit = _UNIT_TEXT.format(kept=kept_digest, profile=name, start=START_SECONDS, stop=STOP_SECONDS, command=command)
    made[paths.unit] = _with_header(unit, request.profile)
    return made


def kept_request(request: TuneRequest) -> TuneRequest:
    """What is asked at each boot: the same for the same profile, whoever made it persistent."""
    return TuneRequest(
        profile=request.profile,
        settings=[setting for setting in request.settings if _persists(setting)],
        action=TuneAction.APPLY,
        write=True,
        persistence=PersistenceAction.KEEP,
        state_root=request.state_root,
        place=PlaceKind.HOST,
        operator="boot",
        reason=UNIT,
    )


def boot_command(python: str, folder: Path) -> List[str]:
    """What the unit runs."""
    return [python, "-I", "-S", "-c", _CODE, str(folder)]


def missing_at_boot(path: str, mounts: str) -> Optional[str]:
    """Why `path` may not be there when the unit starts; None when nothing speaks against it. `mounts` is /proc/self/mountinfo."""
    point, kind = _mount_of(path, mounts)
    if point == "/":
        return None
    if _LATE.fullmatch(kind):
        return f"{point} is a network or user-space file system ({kind}), which may be mounted later"
    if _VOLATILE.fullmatch(kind):
        return f"{point} is in memory only ({kind})"
    return None


def overriding(text: str, files: KernelFiles) -> List[str]:
    """What gives our sysctls (`text` is our file) other values after our file was read, one sentence each.

    Patterns count for nothing: systemd-sysctl doesn't apply one to a key that is named somewhere.
    """
    ours = dict(_assignments(text))
    found = []
    for path in _later_files(files):
        found += [f"{path} sets {key} = {value}" for key, value in _assignments(files.text(path) or "") if ours.get(key, value) != value]
    for word in (files.text("/proc/cmdline") or "").split():
        key, _, value = word.partition("=")
        if key.startswith("sysctl.") and ours.get(_dotted(key[len("sysctl.") :]), value) != value:
            found.append(f"the kernel command line has {word}")
    return found


def _persists(setting: KnobSetting) -> bool:
    return setting.persist and setting.value is not None and setting.place == PlaceKind.HOST


def _with_header(body: str, profile: str) -> bytes:
    """The checksum's own line is no part of what it is taken of."""
    before, after = _HEADER.format(profile=_one_line(profile)), f"\n{body}"
    return f"{before}# checksum: {_digest(before + after)}\n{after}".encode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sysctl_line(setting: KnobSetting) -> str:
    value = setting.value or ""
    if not _SYSCTL_KEY.fullmatch(setting.name) or "\n" in value:
        raise AgentRefusal("refused", f"sysctl {setting.name!r} = {value!r} can't be written into a sysctl.d file")
    return f"{setting.name} = {value}\n"


def _word(text: str) -> str:
    from orchestrator.agent.systemd import exec_word

    return exec_word(_unit_text(text).replace("$", "$$"))


def _unit_text(text: str) -> str:
    """systemd.unit(5): a percent sign begins a specifier."""
    return _one_line(text).replace("%", "%%")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _mount_of(path: str, mounts: str) -> Tuple[str, str]:
    """The mount point that `path` lies below, and its file system. The last of equals is on top."""
    best, kind = "/", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), left.split()[4])
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return best, kind


def _later_files(files: KernelFiles) -> List[str]:
    """The sysctl.d files that are read after ours, in that order."""
    by_name: Dict[str, str] = {}
    for folder in _SYSCTL_FOLDERS:
        for path in files.glob(f"{folder}/*.conf"):
            by_name.setdefault(os.path.basename(path), path)
    return [by_name[name] for name in sorted(by_name) if name > SYSCTL_NAME]


def _assignments(text: str) -> Sequence[Tuple[str, str]]:
    """Key and value of each line; keys with dots."""
    found = []
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            found.append((_dotted(key.strip().lstrip("-")), value.strip()))
    return found


def _dotted(key: str) -> str:
    """sysctl.d(5): where the first separator is a slash, slashes separate and dots are part of names."""
    first = re.search(r"[./]", key)
    return key.translate(str.maketrans("./", "/.")) if first and first.group() == "/" else key
