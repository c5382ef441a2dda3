"""What the kernel says about processes and sockets: readers of /proc, and the pure parsers behind them."""

import os
import stat
from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from orchestrator.agent import wire
from orchestrator.agent.codec import record

_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD (include/linux/sched.h), a bit of field 9 of /proc/PID/stat."""
_PIECE = 1 << 16
"""Bytes."""
_LISTEN = "0A"
"""TCP_LISTEN (include/net/tcp_states.h) as /proc/net/tcp prints it."""


@record(frozen=True)
class Process:
    """One process at the time of the scan.

    `name` is the kernel's (comm, at most 15 bytes); `title` what ps shows; `state` is field 3 of /proc/PID/stat; `user_id`
    the effective one; `cgroup` the path of systemd's hierarchy.
    """

    id: wire.ProcessId
    parent: int
    group: int
    session: int
    user_id: int
    state: str
    title: str
    arguments: Tuple[str, ...]
    cgroup: str
    name: str = ""

    @property
    def pid(self) -> int:
        return self.id.pid

    def __str__(self) -> str:
        return f"{self.pid} {self.title[:80]}"


Table = Dict[int, Process]


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that are used here (proc(5))."""

    name: str
    state: str
    parent: int
    group: int
    session: int
    flags: int
    start_time: int


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat; the name in it may hold spaces, parentheses and line breaks."""
    opening, closing = text.index("("), text.rindex(")")
    fields = text[closing + 2 :].split()
    return Stat(
        name=text[opening + 1 : closing],
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        flags=int(fields[6]),
        start_time=int(fields[19]),
    )


def parse_cgroup(text: str) -> str:
    """The path that systemd gave a process, from /proc/PID/cgroup: its own v1 hierarchy where there is one, else v2's."""
    unified = "/"
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "name=systemd" and path != "/":
            return path
        if not controllers:
            unified = path
    return unified


class Listener(NamedTuple):
    """One listening TCP socket of this network namespace."""

    port: int
    inode: int
    user_id: int


def parse_listeners(text: str) -> List[Listener]:
    """The listening sockets in the text of /proc/net/tcp or tcp6 (Documentation/networking/proc_net_tcp.rst)."""
    rows = (line.split() for line in text.splitlines()[1:])
    return [Listener(int(row[1].rpartition(":")[2], 16), int(row[9]), int(row[7])) for row in rows if len(row) > 9 and row[3] == _LISTEN]


def parse_environment(data: bytes) -> Dict[str, str]:
    """The variables in /proc/PID/environ; bytes that are no UTF-8 come back the way os.fsencode undoes."""
    pairs = (os.fsdecode(item).partition("=") for item in data.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def read_process(pid: int) -> Optional[Process]:
    """One process, or None when there is none of this number or it is a kernel thread."""
    try:
        found = parse_stat(_read(pid, "stat").decode("utf-8", "surrogateescape"))
        if found.flags & _KERNEL_THREAD:
            return None
        command = _read(pid, "cmdline")
        cgroup = parse_cgroup(_read(pid, "cgroup").decode("utf-8", "surrogateescape"))
        user_id = os.stat(f"/proc/{pid}").st_uid
    except (FileNotFoundError, ProcessLookupError):
        return None
    arguments = tuple(os.fsdecode(command).rstrip("\0").split("\0")) if command.strip(b"\0") else ()
    return Process(
        id=wire.ProcessId(pid, found.start_time),
        parent=found.parent,
        group=found.group,
        session=found.session,
        user_id=user_id,
        state=found.state,
        title=" ".join(arguments) or f"[{found.name}]",
        arguments=arguments,
        cgroup=cgroup,
        name=found.name,
    )


def scan() -> Table:
    """All processes that are visible here, kernel threads left out."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def start_time(pid: int) -> Optional[int]:
    """Field 22 of /proc/PID/stat, None when there is no such process."""
    try:
        return parse_stat(_read(pid, "stat").decode("utf-8", "surrogateescape")).start_time
    except (FileNotFoundError, ProcessLookupError):
        return None


def has_ended(process: Process) -> bool:
    """Whether a process only waits to be reaped. A main thread that has ended while other threads run looks the same in stat."""
    if process.state not in "ZX":
        return False
    try:
        return len(os.listdir(f"/proc/{process.pid}/task")) <= 1
    except OSError:
        return True


def read_environment(pid: int) -> Optional[Dict[str, str]]:
    """The environment a process was started with; None when it has gone or may not be read."""
    try:
        return parse_environment(_read(pid, "environ"))
    except OSError:
        return None


def read_variable(pid: int, name: str) -> Optional[str]:
    """One variable of :func:`read_environment`, without taking all of them apart; None also where it is not set."""
    try:
        data = b"\0" + _read(pid, "environ")
    except OSError:
        return None
    _, found, rest = data.rpartition(f"\0{name}=".encode())
    return os.fsdecode(rest.partition(b"\0")[0]) if found else None


def may_inspect(pid: int) -> bool:
    """Whether this user may read the environment, files and maps of a process (ptrace access)."""
    try:
        _read(pid, "environ")
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def read_limits(pid: int) -> Dict[str, str]:
    """The soft limits in force (/proc/PID/limits), by name; a unit's settings may have been clamped silently."""
    try:
        lines = _read(pid, "limits").decode().splitlines()[1:]
    except OSError:
        return {}
    return {line[:26].strip(): line[26:47].strip() for line in lines}


def namespace(pid: Union[int, str], kind: str) -> Optional[str]:
    """The identity of a process's namespace (``pid``, ``net``, ``mnt``); None when it may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def all_listeners() -> List[Listener]:
    """The listening TCP sockets of this network namespace, IPv4 and IPv6."""
    from orchestrator.agent import socket_diag

    return socket_diag.all_listeners()


def proc_listeners() -> List[Listener]:
    """The same from /proc. Costly: the kernel walks its whole table for each read."""
    found: List[Listener] = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as stream:
                found += parse_listeners(stream.read())
        except FileNotFoundError:  # a kernel without IPv6
            continue
    return found


def listeners(port: int, sockets: Optional[Sequence[Listener]] = None) -> List[Listener]:
    """The sockets that listen on a port of this network namespace; `sockets` are all of them, where they were read already."""
    return [listener for listener in (all_listeners() if sockets is None else sockets) if listener.port == port]


def listening_pids(port: int, sockets: Optional[Sequence[Listener]] = None) -> Set[int]:
    """The processes that hold a socket listening on `port`, as far as this user may look; `sockets` as for :func:`listeners`."""
    wanted = {f"socket:[{listener.inode}]" for listener in listeners(port, sockets)}
    if not wanted:
        return set()
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if any(target in wanted for target in descriptor_targets(pid))}


def descriptor_targets(pid: int) -> Iterator[str]:
    """What the open files of a process point at (``/path``, ``socket:[N]``, ``pipe:[N]``); nothing when not allowed."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue


def output_files(pid: int) -> FrozenSet[Tuple[int, int]]:
    """Device and inode of stdout and stderr where these are files or pipes; terminals and /dev/null tie nobody to anything."""
    found = set()
    for descriptor in (1, 2):
        try:
            status = os.stat(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def descendants(table: Table, roots: Set[int]) -> Set[int]:
    """The children of `roots`, their children and so on; not the roots themselves."""
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: Set[int] = set()
    waiting = list(roots)
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in found and pid not in roots:
                found.add(pid)
                waiting.append(pid)
    return found


def ancestors(table: Table, pid: int) -> List[Process]:
    """Parent, grandparent and so on, nearest first, as far as they are visible."""
    found: List[Process] = []
    process = table.get(pid)
    while process is not None and process.parent in table and len(found) < len(table):
        process = table[process.parent]
        found.append(process)
    return found


def _read(pid: int, name: str) -> bytes:
    """The file as it is; by the bare calls, since a survey reads some thousand of them."""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, _PIECE)
        while piece:  # the kernel may give less than there is
            piece = os.read(descriptor, _PIECE)
            data += piece
        return data
    finally:
        os.close(descriptor)
