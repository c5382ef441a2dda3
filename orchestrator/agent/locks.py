"""Who keeps changes of a service away: a person, an order at work, an order of another service on the same GPUs.

A person's lock is a file that only a release ends. An order's locks are the kernel's (flock) and end with its supervisor; what they
hold names it, so that a GPU on which an order was cut off half-way is not given away before that order has come to its end.
"""

import contextlib
import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.journal import ServiceLock, lock_holder, order_status, orders_at_work, try_lock
from orchestrator.agent.private_files import sync_folder, write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire import GpuLock, LockAction, LockRequest, LockStatus, PersonLock
from orchestrator.agent.wire_words import at_work, held_by, locked_by

GPU_FOLDER = ".gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_PROBE_SECONDS = 1.0
"""A reader's probe holds a lock for a moment, so a refusal counts only when it lasts for as long as this."""
_FILE_NAME = r"[\w-]+"


def lock(request: LockRequest, emit: Callable[[str, Any], None]) -> LockStatus:
    """Look at the locks of a service, take or release a person's.

    Raises:
        AgentRefusal: ``locked``: somebody has it, or an order is at work. ``interrupted``: one was cut off half-way.
    """
    folder = StateFolder(request.state_root, request.service)
    released = None
    if request.action == LockAction.ACQUIRE:
        acquire(folder, PersonLock(request.operator, request.reason, time.time()))
    elif request.action == LockAction.RELEASE:
        released = release(folder)
    orders = orders_at_work(request.state_root)
    if not request.service:
        return LockStatus(at_work=orders, preparing=HostFolder(request.state_root).preparing())
    return LockStatus(
        person=person_lock(folder),
        order=order_status(folder, request.order_id),
        gpus=_in_the_way(request),
        at_work=orders,
        preparing=HostFolder(request.state_root).preparing(),
        released=released,
    )


def acquire(folder: StateFolder, wanted: PersonLock) -> None:
    """Take a person's lock. Of two at once one gets it.

    The service's own lock is held meanwhile, so that no supervisor begins between the look at the journal and the file.

    Raises:
        AgentRefusal: see :func:`lock`.
    """
    folder.create()
    refuse_when_locked(folder)
    kernels = ServiceLock(folder)
    if not kernels.take(f"lock.acquire by {wanted.operator}", _PROBE_SECONDS):
        refuse_when_held(folder)
        raise AgentRefusal("locked", f"somebody is taking or releasing {folder.path.name} right now", next_step="fab lock.status")
    try:
        refuse_when_interrupted(folder)
        _create(folder.held, json.dumps(wire.to_json(wanted)))
    except FileExistsError:
        refuse_when_locked(folder)
        raise AgentRefusal("locked", f"{folder.path.name} was locked and released meanwhile", next_step="fab lock.status") from None
    finally:
        kernels.release()


def release(folder: StateFolder) -> Optional[PersonLock]:
    """End a person's lock, whoever's it is, and return it; None when there was none."""
    taken = folder.held.with_name(f".{folder.held.name}.released-{os.getpid()}")
    try:
        os.rename(folder.held, taken)
    except FileNotFoundError:
        return None
    held = _read_person(taken)
    taken.unlink()
    sync_folder(folder.path)
    return held


def _create(path: Path, content: str) -> None:
    """Make a file that was not there, whole from its first moment.

    Raises:
        FileExistsError: it is there.
    """
    temporary = path.with_name(f".{path.name}.new-{os.getpid()}")
    write_private(temporary, content)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)


def person_lock(folder: StateFolder) -> Optional[PersonLock]:
    """The person's lock on a service. One that can't be understood stands as well."""
    return _read_person(folder.held) if os.path.lexists(folder.held) else None


def _read_person(path: Path) -> Optional[PersonLock]:
    held = read_record(PersonLock, path)
    if held is not None:
        return held
    try:
        since = path.stat().st_mtime
    except FileNotFoundError:
        return None
    except OSError:
        since = 0.0
    return PersonLock("somebody", f"{path} can't be understood", since)


def refuse_when_locked(folder: StateFolder) -> None:
    """Raise AgentRefusal (``locked``) while a person's lock stands, whoever asks."""
    held = person_lock(folder)
    if held is not None:
        raise AgentRefusal("locked", locked_by(folder.path.name, held), next_step="fab lock.release   # if it is yours, or they agree")


def refuse_when_held(folder: StateFolder) -> None:
    """Raise AgentRefusal (``locked``) when a living supervisor works on this service."""
    holder = lock_holder(folder)
    if holder is None:
        return
    status = order_status(folder, holder)
    what = f"order {holder} is at work on {folder.path.name}" if status is None else at_work(status)
    raise AgentRefusal("locked", what, next_step="fab attach" if status is not None else "fab status")


def refuse_when_interrupted(folder: StateFolder) -> None:
    """Raise AgentRefusal (``interrupted``) while an order that had touched something was cut off: it comes to its end first."""
    status = order_status(folder)
    if status is None or not status.half_done:
        return
    state = status.state.partition("(")[2].rstrip(")")
    what = f"the {status.kind} {status.order_id} by {status.operator} was cut off in {state}, and nobody has brought it to an end"
    raise AgentRefusal("interrupted", what, next_step="fab resume")


def refuse_when_preparing(root: str) -> None:
    """Raise AgentRefusal (``locked``) while somebody changes this machine's knobs."""
    preparing = HostFolder(root).preparing()
    if preparing is not None:
        raise AgentRefusal("locked", f"the knobs of this machine are being changed: {held_by(preparing)}", next_step="fab lock.status")


def wanted_gpus(gpus: Sequence[wire.Gpu], environment: Mapping[str, str]) -> List[str]:
    """The UUIDs of the GPUs that a process with `environment` may use, as CUDA reads it; all where that can't be told.

    CUDA takes what comes before the first entry that names no device (CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES). An index
    counts as nvidia-smi does only by PCI bus, or where all GPUs are alike.
    """
    every = [gpu.uuid for gpu in gpus]
    visible = environment.get(VISIBLE)
    if visible is None:
        return every
    alike = len({gpu.name for gpu in gpus}) <= 1 or environment.get(_ORDER) == "PCI_BUS_ID"
    chosen: List[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.startswith("MIG-") or (word.isdecimal() and not alike):
            return every
        if word.isdecimal():
            named = [gpu.uuid for gpu in gpus if gpu.index == int(word)]
        else:
            named = [gpu.uuid for gpu in gpus if word and gpu.uuid.startswith(word)]
        if len(named) != 1:
            break
        chosen += named
    return list(dict.fromkeys(chosen))


def union_of_gpus(gpus: Sequence[wire.Gpu], environments: Iterable[Mapping[str, str]]) -> List[str]:
    """The GPUs that any of several processes may use, each once."""
    return sorted({uuid for environment in environments for uuid in wanted_gpus(gpus, environment)})


class GpuLocks:
    """The kernel's locks on the GPUs of one order: they end with its supervisor, and no child inherits them (O_CLOEXEC)."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = Path(root) / GPU_FOLDER
        self._held: List[int] = []

    def take(self, order: wire.Order, uuids: Iterable[str], seconds: float = _PROBE_SECONDS) -> Optional[GpuLock]:
        """Take all of them, or none and return who holds one.

        Raises:
            OSError: there is no room for their files, or no right to them.
        """
        for uuid in sorted(set(uuids)):
            holder = self._take_one(order, uuid, seconds)
            if holder is not None:
                self.release()
                return holder
        return None

    def retake(self, order: wire.Order) -> None:
        """Take those again that an earlier supervisor of the same order left. None of them stands in its way."""
        for path, left in _left(self._root):
            if left.order_id == order.order_id:
                with contextlib.suppress(OSError):
                    descriptor = _open_locked(path, _PROBE_SECONDS)
                    self._held += [] if descriptor is None else [descriptor]

    def release(self) -> None:
        """Give them back, as those of an order that is at its end."""
        for descriptor in self._held:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
        self._held = []

    def _take_one(self, order: wire.Order, uuid: str, seconds: float) -> Optional[GpuLock]:
        if not re.fullmatch(_FILE_NAME, uuid):
            return None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / uuid
        descriptor = _open_locked(path, seconds)
        named = read_record(GpuLock, path)
        if descriptor is None:
            return named or GpuLock(uuid, "", "unknown", "order", "somebody", 0.0)
        if named is not None and named.order_id != order.order_id and _is_unfinished(self._root, named):
            os.close(descriptor)  # with what is written there: it is the other's
            return named
        self._held.append(descriptor)
        mine = GpuLock(uuid, order.service, order.order_id, order.kind, order.operator, time.time())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(wire.to_json(mine)).encode(), 0)
        os.fsync(descriptor)  # after a restart of the machine it says what the order holds
        return None


def _open_locked(path: Path, seconds: float) -> Optional[int]:
    """A descriptor that holds the file's lock; None when somebody else has held it for as long as `seconds`."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if wait_until(lambda: try_lock(descriptor, fcntl.LOCK_EX), Deadline(seconds)):
        return descriptor
    os.close(descriptor)
    return None


def held_gpus(root: str) -> List[GpuLock]:
    """The GPUs that an order holds: one at work, or one that was cut off half-way and is to be resumed."""
    return [named for path, named in _left(root) if _is_held(path) or _is_unfinished(root, named)]


def held_by_others(service: str, root: str, gpus: Sequence[wire.Gpu], environment: Mapping[str, str]) -> List[GpuLock]:
    """Of those, what `service` may use and an order of another service holds."""
    wanted = set(wanted_gpus(gpus, environment))
    return [held for held in held_gpus(root) if held.service != service and held.uuid in wanted]


def _in_the_way(request: LockRequest) -> List[GpuLock]:
    held = [one for one in held_gpus(request.state_root) if one.service != request.service]
    if not held:
        return []  # the usual answer, for which no GPU has to be asked
    from orchestrator.agent.gpu import read_gpus

    wanted = set(wanted_gpus(read_gpus(), request.environment))
    return [one for one in held if one.uuid in wanted]


def _left(root: str) -> Iterator["tuple[Path, GpuLock]"]:
    """The files in which an order is named."""
    folder = Path(root) / GPU_FOLDER
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        named = read_record(GpuLock, path)
        if named is not None:
            yield path, named


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _is_unfinished(root: str, named: GpuLock) -> bool:
    status = order_status(StateFolder(root, named.service), named.order_id)
    return status is not None and (status.live or status.half_done)


def environments_of(order: wire.Order) -> List[Dict[str, str]]:
    """What the processes of an order have in their environment: the new server, and the old one, which may be started again."""
    from orchestrator.agent import procfs

    found: List[Dict[str, str]] = [] if order.new is None else [dict(order.new.environment)]
    if order.old is not None and procfs.start_time(order.old.pid) == order.old.start_time:
        found.append(dict(procfs.read_environment(order.old.pid) or {}))
    return found
