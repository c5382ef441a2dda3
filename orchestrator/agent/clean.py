"""The gate between a stop and a start: nothing of the stopped server may be left, or the new one is not started.

What a server holds is taken down while it still runs (:func:`take_stock`); afterwards it can't be told any more.
"""

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from orchestrator.agent import gpu, procfs, systemd, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.processes import Server, Ties, remaining_members, ties_from_json, ties_to_json
from orchestrator.agent.wire import ManagerKind, Outcome, Verdict

Report = Callable[[str, str], None]
FileId = Tuple[int, int]
"""Device and inode."""

_SHARED_MEMORY = "/dev/shm/"  # noqa: S108
_GPU_TOLERANCE = 512
"""MiB by which memory may stay above what is expected (contexts of other processes come and go)."""
_GPU_SETTLED_SECONDS = 3.0
"""Where nobody says whose memory it is: how long it must stay the same to count as others'."""
_GPU_INTERVAL = 0.25


@dataclass(frozen=True)
class GpuClaim:
    """One GPU before the stop, MiB. `share` is the server's part of `used`; None when the driver does not tell.

    `staged` is what a launch that waits beside it has taken since.
    """

    index: int
    used: int
    share: Optional[int]
    staged: int = 0


@dataclass(frozen=True)
class Claims:
    """What a server holds. Without `ties` there was none, and only the port is asked for."""

    port: int
    ties: Optional[Ties] = None
    shared_memory: Dict[str, FileId] = field(default_factory=dict)
    gpus: Dict[str, GpuClaim] = field(default_factory=dict)
    unit: Optional[str] = None
    """Somebody's systemd unit, which the stop has kept from restarting."""
    beside: Mapping[str, int] = field(default_factory=dict)
    """GPU memory of a launch that is staged beside it and stays, MiB by UUID; not kept with the rest, as it is measured later."""


def take_stock(server: Server) -> Claims:
    """Take down what a running server holds: shared-memory files and GPU memory."""
    pids = [member.pid for member in server.members]
    shared: Dict[str, FileId] = {}
    for pid in pids:
        shared.update(_shared_memory_of(pid))
    unit = server.manager.name if server.manager.kind == ManagerKind.SYSTEMD_UNIT else None
    return Claims(server.port, server.ties, shared, _gpu_claims(set(pids)), unit)


def claims_to_json(claims: Claims) -> Dict[str, Any]:
    """`claims` as JSON's own types, for a supervisor that may have to go on with the stop."""
    ties = claims.ties
    return {
        "port": claims.port,
        "unit": claims.unit,
        "shared_memory": {path: list(file_id) for path, file_id in claims.shared_memory.items()},
        "gpus": {uuid: [claim.index, claim.used, claim.share] for uuid, claim in claims.gpus.items()},
        "ties": None if ties is None else ties_to_json(ties),
    }


def claims_from_json(data: Mapping[str, Any]) -> Claims:
    """Read :func:`claims_to_json` back.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    return Claims(
        port=int(data["port"]),
        ties=None if data["ties"] is None else ties_from_json(data["ties"]),
        shared_memory={path: (int(device), int(inode)) for path, (device, inode) in data["shared_memory"].items()},
        gpus={uuid: GpuClaim(index, used, share) for uuid, (index, used, share) in data["gpus"].items()},
        unit=data["unit"],
    )


def check_clean(claims: Claims, policy: wire.Policy, report: Report) -> List[Verdict]:
    """Wait, up to `policy.clean` in all, until nothing of the server is left; a ``refuse`` verdict means something is.

    Of /dev/shm only files are removed that the server had open or mapped and that no living process has now. Somebody's unit
    gets its own settings back.
    """
    if claims.unit is not None:
        systemd.release_unit(claims.unit)
    deadline = Deadline(policy.clean)
    verdicts = []
    if claims.ties is not None:
        report("processes", "waiting until no process of it is left")
        verdicts.append(_check_processes(claims.ties, deadline))
    report("port", f"waiting for port {claims.port}")
    verdicts.append(_check_port(claims.port, deadline))
    if claims.ties is not None:
        verdicts.append(_clear_shared_memory(claims.shared_memory))
    if claims.gpus:
        verdicts.append(
            _check_gpus({uuid: _with_staged(claim, claims.beside.get(uuid, 0)) for uuid, claim in claims.gpus.items()}, deadline, report)
        )
    return verdicts


def port_is_free(port: int) -> bool:
    """Whether a server could bind the port on every address now; a connection in TIME_WAIT does not stand in its way."""
    return not procfs.listeners(port) and _can_bind(socket.AF_INET, "0.0.0.0", port) and _can_bind(socket.AF_INET6, "::", port)  # noqa: S104


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError:
        return family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6")
    return True


def _check_processes(ties: Ties, deadline: Deadline) -> Verdict:
    if wait_until(lambda: not remaining_members(ties), deadline, 0.2):
        return Verdict("processes", Outcome.PASS, "no process of it is left")
    left = remaining_members(ties)
    return Verdict(
        "processes",
        Outcome.REFUSE,
        f"{len(left)} processes of it can't be ended",
        [f"{process} (state {process.state})" for process in left],
        "a process in state D hangs in a driver: dmesg on the host, then reboot it",
    )


def _check_port(port: int, deadline: Deadline) -> Verdict:
    if wait_until(lambda: port_is_free(port), deadline, 0.1):
        return Verdict("port", Outcome.PASS, f"port {port} is free")
    holders = [procfs.read_process(pid) for pid in sorted(procfs.listening_pids(port))]
    evidence = [str(process) for process in holders if process is not None] or ["its holder can't be seen from here"]
    return Verdict("port", Outcome.REFUSE, f"port {port} is held by something else now", evidence, f"ss -ltnp sport = :{port}")


def _shared_memory_of(pid: int) -> Dict[str, FileId]:
    """Files under /dev/shm that a process has open or mapped, by name."""
    paths = {target for target in procfs.descriptor_targets(pid) if target.startswith(_SHARED_MEMORY)}
    paths |= {path for _, path in _mapped(pid) if path.startswith(_SHARED_MEMORY)}
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):  # unlinked already ("... (deleted)"), so nothing will be left of it
            status = os.stat(path)
            found[path] = (status.st_dev, status.st_ino)
    return found


def _mapped(pid: int) -> Iterator[Tuple[FileId, str]]:
    """Files that a process has mapped: identity and path (proc(5), /proc/PID/maps)."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/"):
            major, minor = fields[3].split(":")
            yield (os.makedev(int(major, 16), int(minor, 16)), int(fields[4])), fields[5]


def _clear_shared_memory(files: Dict[str, FileId]) -> Verdict:
    left = {path: identity for path, identity in files.items() if _identity(path) == identity}
    if not left:
        return Verdict("shared_memory", Outcome.PASS, "nothing of it is left in /dev/shm")
    in_use, unknown = _files_in_use(set(left.values()))
    if unknown:
        return Verdict("shared_memory", Outcome.WARN, "can't tell who uses what it left in /dev/shm, so it stays", sorted(left))
    removed, kept = [], []
    for path, identity in sorted(left.items()):
        if identity in in_use:
            kept.append(f"{path}: in use by process {in_use[identity]}")
            continue
        crash_point("before shared memory is removed")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        crash_point("shared memory is removed")
        removed.append(f"rm {path}")
    return Verdict("shared_memory", Outcome.PASS, f"{len(removed)} files that it left in /dev/shm were removed", removed + kept)


def _identity(path: str) -> Optional[FileId]:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _files_in_use(wanted: Set[FileId]) -> Tuple[Dict[FileId, int], bool]:
    """Which of the files a living process has mapped or open, and whether there is a process that we may not look at."""
    found: Dict[FileId, int] = {}
    unknown = False
    for pid in procfs.scan():
        if pid != 1 and not procfs.may_inspect(pid):  # an init that outranks root maps none of this
            unknown = True
        for identity, _ in _mapped(pid):
            if identity in wanted:
                found[identity] = pid
        for target in procfs.descriptor_targets(pid):
            identity_of_open = _identity(target) if target.startswith(_SHARED_MEMORY) else None
            if identity_of_open in wanted and identity_of_open is not None:
                found[identity_of_open] = pid
    return found, unknown


def _gpu_claims(pids: Set[int]) -> Dict[str, GpuClaim]:
    """The GPUs that the server uses. Where the driver lists none of its processes although it has devices open, every GPU in use may be."""
    gpus = {found.uuid: found for found in gpu.read_gpus()}
    if not gpus:
        return {}
    opened = {pid for pid in gpu.device_holders() if pid in pids}
    shares = _shares(opened, gpus)
    if opened and not shares:
        shares = {uuid: None for uuid, found in gpus.items() if found.memory_used > _GPU_TOLERANCE}
    return {uuid: GpuClaim(gpus[uuid].index, gpus[uuid].memory_used, share) for uuid, share in shares.items()}


def _shares(opened: Set[int], gpus: Mapping[str, wire.Gpu]) -> Dict[str, Optional[int]]:
    """What the driver says of processes that have a GPU's device open, MiB by UUID; None where it names them and not their memory."""
    shares: Dict[str, Optional[int]] = {}
    for app in gpu.compute_apps():
        if app.pid in opened and app.gpu_uuid in gpus:
            before = shares.get(app.gpu_uuid, 0)
            shares[app.gpu_uuid] = None if before is None or app.memory_used is None else before + app.memory_used
    return shares


def gpu_use(pids: Set[int], before: Mapping[str, int]) -> Dict[str, int]:
    """The GPU memory that processes hold, MiB by UUID. Where the driver does not tell: what is in use more than `before` they came."""
    gpus = {found.uuid: found for found in gpu.read_gpus()}
    opened = {pid for pid in gpu.device_holders() if pid in pids} if gpus else set()
    if not opened:
        return {}
    shares = _shares(opened, gpus)
    grown = {uuid: max(0, found.memory_used - before[uuid]) for uuid, found in gpus.items() if uuid in before}
    if not shares:
        return grown
    return {uuid: grown.get(uuid, 0) if share is None else share for uuid, share in shares.items()}


def gpu_is_back(claim: GpuClaim, used: int) -> bool:
    """Whether a GPU's memory in use (MiB) is down to what it was without the server; without its share only an empty GPU proves it."""
    floor = 0 if claim.share is None else max(0, claim.used - claim.share)
    return used <= floor + claim.staged + _GPU_TOLERANCE


def _with_staged(claim: GpuClaim, staged: int) -> GpuClaim:
    return GpuClaim(claim.index, claim.used, claim.share, staged)


def _check_gpus(claims: Dict[str, GpuClaim], deadline: Deadline, report: Report) -> Verdict:
    last: Dict[str, int] = {}
    settled = time.monotonic()
    while True:
        now = {found.uuid: found.memory_used for found in gpu.read_gpus(min(gpu.SECONDS, max(1.0, deadline.left())))}
        waiting = {uuid: claim for uuid, claim in claims.items() if uuid not in now or not gpu_is_back(claim, now[uuid])}
        if not waiting:
            return Verdict("gpu_memory", Outcome.PASS, f"the memory of {len(claims)} GPUs is back")
        if now != last:
            last, settled = now, time.monotonic()
        if _nobody_tells(claims, waiting, now) and time.monotonic() - settled >= _GPU_SETTLED_SECONDS:
            return _unknown_holders(waiting, now)
        if deadline.passed:
            return _gpu_held(waiting, now)
        report("gpu_memory", ", ".join(f"GPU {claim.index}: {now.get(uuid, '?')} MiB" for uuid, claim in waiting.items()))
        time.sleep(min(_GPU_INTERVAL, deadline.left()))


def _nobody_tells(claims: Dict[str, GpuClaim], waiting: Dict[str, GpuClaim], now: Dict[str, int]) -> bool:
    """Whether the server's memory is seen to have come back somewhere, and what is still in use has no known owner."""
    came_back = any(uuid in now and now[uuid] < claim.used - _GPU_TOLERANCE for uuid, claim in claims.items())
    return came_back and all(claim.share is None and uuid in now for uuid, claim in waiting.items())


def _unknown_holders(waiting: Dict[str, GpuClaim], now: Dict[str, int]) -> Verdict:
    """The rest has not moved since the server ended: others' memory as far as can be seen, unless somebody visible holds it."""
    holders = gpu.memory_holders(gpu.compute_apps())
    detail = "memory is still in use, and the driver does not say by whom: " + _in_use(waiting, now)
    return Verdict("gpu_memory", Outcome.WARN, detail, holders, "nvidia-smi on the host names the holders")


def _gpu_held(waiting: Dict[str, GpuClaim], now: Dict[str, int]) -> Verdict:
    missing = [claim.index for uuid, claim in waiting.items() if uuid not in now]
    if missing:
        return Verdict("gpu_memory", Outcome.REFUSE, f"nvidia-smi no longer reports GPU {missing}", [], "nvidia-smi; dmesg on the host")
    return Verdict(
        "gpu_memory",
        Outcome.REFUSE,
        "GPU memory has not come back: " + _in_use(waiting, now),
        gpu.memory_holders(gpu.compute_apps()),
        "nvidia-smi on the host names the holders",
    )


def _in_use(waiting: Dict[str, GpuClaim], now: Dict[str, int]) -> str:
    return ", ".join(f"GPU {claim.index}: {now[uuid]} MiB (before the stop {claim.used})" for uuid, claim in waiting.items())
