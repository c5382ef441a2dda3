"""The checkpoint's files in the page cache: whether they are there, and bringing them there while the old server serves.

What is there already is asked of mincore (:mod:`resident_pages`); where that can't be had, all is read, and nobody can tell. Files are read
rather than announced (``POSIX_FADV_WILLNEED``), because only a read tells when it is done and can be held to a rate. All of it is
done in a child (:mod:`bounded_call`), since a disk may hang.

Never is more read than fits beside what the old and the staged server need: the cgroup's limit counts, and nothing must push the machine
into swap. Where the files are larger than that, only those that come first by name are read. Reading all would have the last push out the
first, while the load begins with the first.
"""

import os
import time
from dataclasses import dataclass, replace
from typing import Callable, List, Optional, Sequence, Tuple

from orchestrator.agent import host_memory, model_files, resident_pages, wire
from orchestrator.agent.arguments import read_textually
from orchestrator.agent.bounded_call import call_bounded
from orchestrator.agent.clock import Deadline
from orchestrator.agent.host_memory import GIB, HostMemory, size
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.model_files import ModelFile, ModelFiles
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Report
from orchestrator.agent.wire import Outcome, Verdict

CHECK = "checkpoint_files"
PHASE = "checkpoint files"

LONGEST_SECONDS = 1800.0
"""For reading them all; a slow disk must not keep a relaunch waiting for ever."""
_STUCK_SECONDS = 20.0
_SLICE_SECONDS = 0.25
_PIECE = 4 << 20
_SAMPLES = 512
_SAMPLE_SECONDS = 10.0
_SWAPPED_PAGES = 256
"""1 MiB written to swap is more than chance."""

_OWN_CACHE = {"zfs": "ZFS keeps a cache of its own (ARC)"}
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "glusterfs", "9p", "virtiofs", "gpfs", "wekafs"})


@dataclass(frozen=True)
class Place:
    """Where the files lie and what room there is for them: bytes that may be in the page cache, with the bound in words."""

    files: ModelFiles
    kinds: Sequence[str]
    room: Optional[int]
    bound: str

    @property
    def network(self) -> Optional[str]:
        return next((kind for kind in self.kinds if kind in _NETWORK or kind.startswith("fuse")), None)


@dataclass(frozen=True)
class _Done:
    """How far it came: bytes that were there, that were read, and that were read without knowing whether they were there."""

    there: int = 0
    read: int = 0
    unknown: int = 0
    seconds: float = 0.0
    stopped: str = ""

    @property
    def all(self) -> int:
        return self.there + self.read + self.unknown


def warm(
    launch: wire.Launch, folder: StateFolder, policy: wire.Policy, report: Report, pulse: Callable[[], None] = lambda: None
) -> List[Verdict]:
    """Read the files that the launch will load, at ``policy.warm_rate`` MB/s at most; raises only what `pulse` raises."""
    from orchestrator.agent import room

    values = read_textually(launch.arguments).values
    place = where(find_files(launch), room.needed(folder, values, []).resident)
    known = _settled(place, policy)
    if known is not None:
        return [known]
    began = time.monotonic()
    done = _read(_first(place), policy.warm_rate * 1e6, place, report, pulse)
    return [_told(place, replace(done, seconds=time.monotonic() - began))]


def look(launch: wire.Launch, policy: wire.Policy, beside: int, files: Optional[ModelFiles] = None) -> Verdict:
    """How much of the files is in the page cache, from samples, and how long reading the rest would take.

    Args:
        beside: bytes that a staged server needs.
        files: those of the launch, where they are known already.
    """
    place = where(find_files(launch) if files is None else files, beside)
    known = _settled(place, policy)
    if known is not None:
        return known
    resident_pages.prepare()
    answer = call_bounded(lambda: _sample(place.files.files), _SAMPLE_SECONDS)
    share: Optional[float] = answer.value
    whole, fit = place.files.size, _fits(place)
    there = f"about {share:.0%} of {size(whole)} of weights are in the page cache" if share is not None else _unknown(place, answer.problem)
    if share is not None and share >= 1.0:
        return Verdict(CHECK, Outcome.PASS, there)
    seconds = (whole if share is None else whole * (1 - share)) / (policy.warm_rate * 1e6)
    rest = f"{there}; the rest is read while the old server serves, at {policy.warm_rate:g} MB/s at most: {seconds:.0f} s or more"
    if fit is not None:
        return Verdict(CHECK, Outcome.WARN, f"{there}; {fit}", next_step="free -h; the load reads the rest from the disk")
    return Verdict(CHECK, Outcome.PASS if share is not None else Outcome.UNKNOWN, rest + _told_network(place), next_step=_next(share))


def find_files(launch: wire.Launch) -> ModelFiles:
    """Which files the launch will load."""
    try:
        home = find_account(launch.user).home
    except AgentRefusal:
        home = "/"
    try:
        return model_files.find(read_textually(launch.arguments).values, launch.directory, launch.environment, home)
    except OSError as error:
        return ModelFiles(problem=f"{error.filename}: {error.strerror}")


def where(files: ModelFiles, beside: int, memory: Optional[HostMemory] = None) -> Place:
    """What is known of the files' place before one is read. `beside`: bytes that a staged server needs; `memory` is read by default.

    What is read counts in the cgroup of who reads it, the supervisor, which is run as a launch is.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        kinds = model_files.mounts(files.files, stream.read())
    memory = _memory() if memory is None else memory
    room = None if memory.free is None else memory.free - beside - _margin(memory)
    bound = f"{memory.told()}, {size(beside)} of it for a staged server and {size(_margin(memory))} for others"
    return Place(files, kinds, room, bound)


def _memory() -> HostMemory:
    from orchestrator.agent import systemd

    return host_memory.read(systemd.is_available())


def _margin(memory: HostMemory) -> int:
    return max(GIB, memory.whole // 20)


def _settled(place: Place, policy: wire.Policy) -> Optional[Verdict]:
    """The answer where nothing is to be read or nobody can tell; else None."""
    if place.files.problem is not None:
        step = "nothing: the load reads what it needs"
        return Verdict(CHECK, Outcome.UNKNOWN, f"whether the weights are in the page cache can't be told: {place.files.problem}", [], step)
    if not place.files.files:
        return Verdict(CHECK, Outcome.PASS, "no weights are read (--load-format dummy)")
    if set(place.kinds) <= _IN_MEMORY:
        return Verdict(CHECK, Outcome.PASS, f"{size(place.files.size)} of weights are in memory already ({', '.join(place.kinds)})")
    own = next((_OWN_CACHE[kind] for kind in place.kinds if kind in _OWN_CACHE), None)
    if own is not None:
        detail = f"{size(place.files.size)} of weights: {own}, so nobody can tell what is in memory, and nothing is read before"
        return Verdict(CHECK, Outcome.UNKNOWN, detail, next_step="arc_summary, or /proc/spl/kstat/zfs/arcstats, on the host")
    if policy.warm_rate <= 0:
        return Verdict(CHECK, Outcome.PASS, f"{size(place.files.size)} of weights are not read before the stop: warm_rate is 0")
    if place.room is None or place.room <= 0:
        detail = f"{size(place.files.size)} of weights are not read before the stop: {place.bound}"
        return Verdict(CHECK, Outcome.WARN if place.room is not None else Outcome.UNKNOWN, detail, next_step="free -h")
    return None


def _first(place: Place) -> List[ModelFile]:
    """The files that fit, the last of them perhaps in part."""
    left = place.files.size if place.room is None else place.room
    chosen = []
    for file in place.files.files:
        if left <= 0:
            break
        chosen.append(ModelFile(file.path, min(file.size, left)))
        left -= file.size
    return chosen


def _read(files: Sequence[ModelFile], rate: float, place: Place, report: Report, pulse: Callable[[], None]) -> _Done:
    resident_pages.prepare()
    done, deadline, swapped = _Done(), Deadline(LONGEST_SECONDS), host_memory.swapped_out()
    for file in files:
        pulse()
        # Before any of it is read: then the kernel reads ahead, and what it has read would seem to have been there.
        scan = call_bounded(_scan_of(file), _STUCK_SECONDS)
        if scan.problem is not None:
            return replace(done, stopped=f"{file.path}: {scan.problem}")
        held: Optional[bytes] = scan.value
        done = replace(done, there=done.there + _held_bytes(file, held))
        at = 0
        while at * _PIECE < file.size:
            stop = _must_stop(place, swapped, deadline)
            if stop:
                return replace(done, stopped=stop)
            began = time.monotonic()
            answer = call_bounded(_slice_of(file, held, at, int(rate * _SLICE_SECONDS)), _STUCK_SECONDS)
            if answer.problem is not None:
                return replace(done, stopped=f"{file.path}: {answer.problem}")
            at, read = answer.value
            done = replace(done, unknown=done.unknown + read) if held is None else replace(done, read=done.read + read)
            report(PHASE, f"{size(done.all)} of {size(place.files.size)}, {size(done.read + done.unknown)} of it read")
            _hold(began, read / rate, pulse)
    return done


def _scan_of(file: ModelFile) -> Callable[[], Optional[bytes]]:
    return lambda: _scan(file.path, file.size)


def _slice_of(file: ModelFile, held: Optional[bytes], at: int, most: int) -> Callable[[], Tuple[int, int]]:
    return lambda: _read_slice(file.path, file.size, held, at, max(_PIECE, most))


def _held_bytes(file: ModelFile, held: Optional[bytes]) -> int:
    return sum(min(_PIECE, file.size - at * _PIECE) for at, there in enumerate(held or b"") if there)


def _must_stop(place: Place, swapped: Optional[int], deadline: Deadline) -> str:
    """Why reading ends early; empty while it may go on."""
    now = host_memory.swapped_out()
    if swapped is not None and now is not None and now - swapped > _SWAPPED_PAGES:
        return "the machine has begun to swap"
    memory = _memory()
    if memory.free is not None and memory.free < _margin(memory):
        return f"memory has become short: {memory.told()}"
    return f"it took longer than {LONGEST_SECONDS:g} s" if deadline.passed else ""


def _hold(began: float, seconds: float, pulse: Callable[[], None]) -> None:
    """Wait until `seconds` have passed since `began`. The operator is listened to also where the disk is slower than the rate."""
    while True:
        pulse()
        left = began + seconds - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.1))


def _scan(path: str, end: int) -> Optional[bytes]:
    """Which pieces are in the page cache, one byte each; None where that can't be asked. In a child."""
    if not resident_pages.may_ask(path):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    found = bytearray()
    for offset in range(0, end, _PIECE):
        held = resident_pages.is_resident(descriptor, offset, min(_PIECE, end - offset))
        if held is None:
            return None
        found.append(held)
    return bytes(found)


def _read_slice(path: str, end: int, held: Optional[bytes], at: int, most: int) -> Tuple[int, int]:
    """Read pieces that are not `held` for a moment, from piece `at` on: the next piece, and how many bytes were read. In a child."""
    finished = time.monotonic() + _SLICE_SECONDS
    buffer = memoryview(bytearray(_PIECE))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    read = 0
    while at * _PIECE < end and read < most and time.monotonic() < finished:
        if held is None or not held[at]:
            read += _read_piece(descriptor, buffer[: min(_PIECE, end - at * _PIECE)], at * _PIECE)
        at += 1
    return at, read


def _read_piece(descriptor: int, buffer: memoryview, offset: int) -> int:
    """A piece to its end, or to that of a file that has become shorter."""
    got = 0
    while got < len(buffer):
        more = os.preadv(descriptor, [buffer[got:]], offset + got)
        if not more:
            break
        got += more
    return got


def _sample(files: Sequence[ModelFile]) -> Optional[float]:
    """The share of places, evenly over all files, that are in the page cache; None where that can't be asked. In a child."""
    step = max(1, sum(file.size for file in files) // _SAMPLES)
    asked = held = 0
    for file in files:
        if not resident_pages.may_ask(file.path):
            return None
        descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        for at in range(min(step, file.size) // 2, file.size, step):
            answer = resident_pages.is_resident(descriptor, resident_pages.page_of(at), 1)
            if answer is None:
                return None
            asked, held = asked + 1, held + answer
        os.close(descriptor)
    return held / asked if asked else None


def _told(place: Place, done: _Done) -> Verdict:
    whole = place.files.size
    parts = [
        f"{size(done.there)} were there" if done.there else "",
        f"{size(done.read)} were read in {done.seconds:.0f} s" if done.read else "",
        f"{size(done.unknown)} were read in {done.seconds:.0f} s, and nobody can tell what of it was there" if done.unknown else "",
    ]
    how = ", ".join(part for part in parts if part) or "nothing was read"
    if not done.stopped and done.all >= whole:
        return Verdict(CHECK, Outcome.PASS, f"{size(whole)} of weights are in the page cache: {how}{_told_network(place)}")
    why = done.stopped or _fits(place) or "a file has become shorter"
    detail = f"{size(done.all)} of {size(whole)} of weights are in the page cache: {how}; {why}"
    return Verdict(CHECK, Outcome.WARN, detail, next_step="free -h; the load reads the rest from the disk")


def _fits(place: Place) -> Optional[str]:
    """Why not all of them can be in the page cache; None where they can."""
    if place.room is None or place.files.size <= place.room:
        return None
    return f"more than {size(place.room)} of them do not fit: {place.bound}"


def _told_network(place: Place) -> str:
    return f"; they lie on {place.network}, whose server and cache nobody looked at" if place.network is not None else ""


def _unknown(place: Place, problem: Optional[str]) -> str:
    why = problem or "mincore can't be asked"
    return f"what of {size(place.files.size)} of weights is in the page cache can't be told ({why})"


def _next(share: Optional[float]) -> Optional[str]:
    return None if share is not None else "nothing: reading what is there already costs nothing"
