"""Which processes are an SGLang server: from its socket or its command line to all that belongs to it.

A name proves nothing here: during the first half minute a server's children are called ``python -c from multiprocessing.spawn
...`` (SGLang 0.5.3 to 0.5.23), and an editor or a client may have ``sglang`` anywhere in its arguments. What counts is descent, our
marker in the environment, our unit's cgroup and, for servers that somebody else started, being recognisably SGLang's *and* tied
to that server by session, output file or unit.
"""

import functools
import os
import pwd
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from orchestrator.agent import managers, procfs, wire
from orchestrator.agent.codec import record
from orchestrator.agent.command_lines import DEFAULT_PORT, argument_value, gate_port, is_spawned_child, named_port, server_arguments
from orchestrator.agent.held import HeldProcesses
from orchestrator.agent.procfs import Listener, Process, Table, listening_pids, read_environment, read_process, scan
from orchestrator.agent.refusal import AgentRefusal

__all__ = [
    "MARKER",
    "HeldProcesses",
    "Leftover",
    "Process",
    "Server",
    "Ties",
    "find_leftovers",
    "find_server",
    "find_servers",
    "launch_members",
    "listening_pids",
    "members_of",
    "read_environment",
    "read_process",
    "remaining_members",
    "scan",
]

MARKER = "ORCHESTRATOR_LAUNCH"
"""Environment variable that holds the launch id in every process of a launch of ours."""


@record(frozen=True)
class Ties:
    """What ties a process to one server, kept from while its main process lived, so that it still tells afterwards."""

    main: wire.ProcessId
    session: int
    group: int
    outputs: FrozenSet[Tuple[int, int]] = frozenset()
    """Device and inode of main's stdout and stderr, where these are files or pipes."""
    executable: Optional[Tuple[int, int]] = None
    unit_cgroup: Optional[str] = None
    """Main's cgroup when it is a unit's own, None when it is a shared one (a login session, ssh.service)."""
    reapers: FrozenSet[int] = frozenset({0, 1})
    """Who may have inherited main's orphans: PID 1 and main's own ancestors (one may be a subreaper)."""
    launch_id: Optional[str] = None


def ties_to_json(ties: Ties) -> Dict[str, Any]:
    """`ties` as JSON's own types."""
    return {
        "main": wire.to_json(ties.main),
        "session": ties.session,
        "group": ties.group,
        "outputs": sorted(list(output) for output in ties.outputs),
        "executable": None if ties.executable is None else list(ties.executable),
        "unit_cgroup": ties.unit_cgroup,
        "reapers": sorted(ties.reapers),
        "launch_id": ties.launch_id,
    }


def ties_from_json(data: Mapping[str, Any]) -> Ties:
    """Read :func:`ties_to_json` back.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    executable = data["executable"]
    return Ties(
        main=wire.from_json(wire.ProcessId, data["main"]),
        session=int(data["session"]),
        group=int(data["group"]),
        outputs=frozenset((int(device), int(inode)) for device, inode in data["outputs"]),
        executable=None if executable is None else (int(executable[0]), int(executable[1])),
        unit_cgroup=data["unit_cgroup"],
        reapers=frozenset(int(pid) for pid in data["reapers"]),
        launch_id=data["launch_id"],
    )


@record(frozen=True)
class Server:
    """One SGLang server. `members` includes `main`; `launch_id` is None for a server that we didn't start."""

    main: Process
    members: List[Process]
    manager: wire.Manager
    port: int
    listening: bool
    launch_id: Optional[str]
    ties: Ties

    @property
    def gate_port(self) -> Optional[int]:
        """The port of the gate that it was started with: it may still wait there."""
        return gate_port(self.main.arguments)


@record(frozen=True)
class Leftover:
    """A process of a server whose main process has gone. Only those with a `launch_id` are ours to end."""

    process: Process
    launch_id: Optional[str]


def find_servers(table: Optional[Table] = None, sockets: Optional[Sequence[Listener]] = None) -> List[Server]:
    """All SGLang servers that are visible here, ours and others', also those that still load.

    `table` and `sockets` are the processes and the listening sockets, where they were read already.
    """
    table = scan() if table is None else table
    mains = _main_processes(table)
    ties = {main.pid: _ties(main, table) for main in mains}
    if sockets is None:
        sockets = procfs.all_listeners() if mains else []
    marker = functools.lru_cache(maxsize=None)(_marker)  # asked of every process for each of the servers
    return [_server(main, ties, table, sockets, marker) for main in mains]


def find_server(
    port: int,
    table: Optional[Table] = None,
    servers: Optional[Sequence[Server]] = None,
    sockets: Optional[Sequence[Listener]] = None,
) -> Optional[Server]:
    """The server on `port`: the owner of its listening socket, else one that still loads and whose arguments name the port.

    One that was started with a gate is not the server as long as another one for the port lives; of several such the oldest is.

    `servers` are those that :func:`find_servers` has found, where that was asked already; the rest as there.

    What holds the port without being an SGLang server for it comes back with the manager ``unsupported``, which no step touches.

    Raises:
        AgentRefusal: another user's process, whose files this user may not look at (``rights``), or two servers for one port
            (``refused``).
    """
    table = scan() if table is None else table
    servers = find_servers(table) if servers is None else servers
    listeners = procfs.listeners(port, sockets)
    if not listeners:
        return _inspectable(
            _only(_without_staged([server for server in servers if server.port == port and _shares_network(server.main)]), port)
        )
    holders = listening_pids(port, listeners)
    if not holders:
        raise _hidden_holder(port, listeners[0].user_id)
    owners = [server for server in servers if holders & {member.pid for member in server.members}]
    owner = _only(owners, port)
    if owner is None:
        return _stranger(port, table, holders)
    named = named_port(server_arguments(owner.main.arguments) or ())
    if named is not None and named != port:
        return _stranger(port, table, holders)
    return _inspectable(Server(owner.main, owner.members, owner.manager, port, listening=True, launch_id=owner.launch_id, ties=owner.ties))


def launch_members(
    launch_id: str, unit: Optional[str] = None, session: Optional[int] = None, table: Optional[Table] = None
) -> List[Process]:
    """The living processes of one launch of ours, whether or not its main process still lives.

    By our marker, by the launch's unit, or by the session that its main process led (`session`: pass it only while its number
    can't mean another session, that is, from the same boot).
    """
    table = scan() if table is None else table
    untouchable = _ourselves(table)
    found = [
        process
        for process in table.values()
        if process.pid not in untouchable
        and not procfs.has_ended(process)
        and (
            (unit is not None and managers.unit_of(process.cgroup) == unit)
            or (session is not None and process.session == session)
            or _marker(process.pid) == launch_id
        )
    ]
    return sorted(found, key=lambda process: (process.id.start_time, process.pid))


def members_of(
    ties: Ties,
    table: Table,
    roots: Optional[Set[int]] = None,
    others: Sequence[Ties] = (),
    marker: Optional[Callable[[int], Optional[str]]] = None,
) -> List[Process]:
    """All living processes of the server that `ties` describe, oldest first.

    `roots` are further processes known to be its own, whose descendants count too; `others` the ties of the other
    living servers: their descendants are never taken, and an orphan that fits more than one server is nobody's. `marker` gives the launch
    that a process is marked with, where whoever asks keeps what was read.
    """
    mine = (roots or set()) | ({ties.main.pid} if _is_alive(ties.main, table) else set())
    found = mine & set(table) | procfs.descendants(table, mine)
    theirs = {other.main.pid for other in others} | procfs.descendants(table, {other.main.pid for other in others})
    untouchable = _ourselves(table) | theirs
    for process in table.values():
        if process.pid in found or process.pid in untouchable:
            continue
        if _is_ours(process, ties, marker or _marker) or (
            _is_tied(process, ties) and not any(_is_tied(process, other) for other in others)
        ):
            found.add(process.pid)
    found |= procfs.descendants(table, found)
    members = [table[pid] for pid in found - untouchable if not procfs.has_ended(table[pid])]
    return sorted(members, key=lambda process: (process.id.start_time, process.pid))


def remaining_members(ties: Ties, held: Sequence[Process] = ()) -> List[Process]:
    """What of a server lives now, by a fresh scan: also what it has forked since, and what was left when its main process ended.

    `held` are processes proven to be its own earlier.
    """
    table = scan()
    known = {process.pid for process in held if _is_alive(process.id, table)}
    mains = [main for main in _main_processes(table) if main.id != ties.main and main.pid not in known]
    others = [_ties(main, table) for main in mains if not _is_ours(main, ties, _marker)]
    return members_of(ties, table, known, others)


def find_leftovers(table: Optional[Table] = None, servers: Optional[Sequence[Server]] = None) -> List[Leftover]:
    """What is left of servers whose main process has gone and that may still hold a GPU."""
    table = scan() if table is None else table
    servers = find_servers(table) if servers is None else servers
    known = {member.pid for server in servers for member in server.members} | _ourselves(table)
    found = []
    for process in table.values():
        if process.pid in known or procfs.has_ended(process):
            continue
        environment = read_environment(process.pid) or {}
        launch_id = environment.get(MARKER)
        if launch_id is not None or _is_orphan_of_sglang(process, environment):
            found.append(Leftover(process, launch_id))
    return found


def _is_orphan_of_sglang(process: Process, environment: Dict[str, str]) -> bool:
    if process.title.startswith("sglang::"):
        return True
    return process.parent == 1 and is_spawned_child(process) and any(name.startswith("SGLANG_") for name in environment)


def _main_processes(table: Table) -> List[Process]:
    """The topmost process of each server: its forked workers carry the same command line for a while."""
    candidates = {
        process.pid: process
        for process in table.values()
        if not procfs.has_ended(process) and (server_arguments(process.arguments) is not None or _leads_our_session(process))
    }
    return [
        process for process in candidates.values() if not any(parent.pid in candidates for parent in procfs.ancestors(table, process.pid))
    ]


def _leads_our_session(process: Process) -> bool:
    """A launch of ours with an unusual entry point: our runners make its main process the leader of a session."""
    return process.pid == process.session and not is_spawned_child(process) and _marker(process.pid) is not None


def _ties(main: Process, table: Table) -> Ties:
    return Ties(
        main=main.id,
        session=main.session,
        group=main.group,
        outputs=procfs.output_files(main.pid),
        executable=_executable(main.pid),
        unit_cgroup=main.cgroup if managers.unit_is_exclusive(main.cgroup) else None,
        reapers=frozenset({0, 1} | {parent.pid for parent in procfs.ancestors(table, main.pid)}),
        launch_id=_marker(main.pid),
    )


def _server(
    main: Process, ties: Dict[int, Ties], table: Table, sockets: Sequence[Listener], marker: Callable[[int], Optional[str]]
) -> Server:
    own = ties[main.pid]
    members = members_of(own, table, others=[other for pid, other in ties.items() if pid != main.pid], marker=marker)
    arguments = server_arguments(main.arguments) or []
    port = named_port(arguments) or DEFAULT_PORT
    wanted = {f"socket:[{listener.inode}]" for listener in sockets if listener.port == port}
    listening = bool(wanted) and any(target in wanted for member in members for target in procfs.descriptor_targets(member.pid))
    manager = managers.manager_of(main, table, own.launch_id, argument_value(arguments, "--nnodes"))
    return Server(main, members, manager, port, listening, own.launch_id, own)


def _is_ours(process: Process, ties: Ties, marker: "Callable[[int], Optional[str]]") -> bool:
    if ties.launch_id is None:
        return False
    if ties.unit_cgroup is not None and _is_inside(process.cgroup, ties.unit_cgroup):
        return True
    led_by_main = ties.session == ties.main.pid and process.session == ties.session
    return led_by_main or marker(process.pid) == ties.launch_id


def _is_tied(process: Process, ties: Ties) -> bool:
    """An orphan that is recognisably a server's child and tied to this server by something that strangers don't share."""
    if process.parent not in ties.reapers or process.id.start_time < ties.main.start_time or not is_spawned_child(process):
        return False
    if ties.executable is not None and _executable(process.pid) != ties.executable:
        return False
    if (process.session, process.group) == (ties.session, ties.group):
        return True
    if ties.unit_cgroup is not None and _is_inside(process.cgroup, ties.unit_cgroup):
        return True
    return bool(ties.outputs & procfs.output_files(process.pid))


def _is_inside(cgroup: str, unit_cgroup: str) -> bool:
    return cgroup == unit_cgroup or cgroup.startswith(unit_cgroup + "/")


def _executable(pid: int) -> Optional[Tuple[int, int]]:
    try:
        status = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _marker(pid: int) -> Optional[str]:
    return procfs.read_variable(pid, MARKER)


def _is_alive(process: wire.ProcessId, table: Table) -> bool:
    return process.pid in table and table[process.pid].id == process


def _ourselves(table: Table) -> Set[int]:
    """This process and whoever started it: never a member of anything."""
    own = os.getpid()
    return {own} | {parent.pid for parent in procfs.ancestors(table, own)}


def _shares_network(process: Process) -> bool:
    """Whether a process listens in this network namespace; where that may not be read it is taken to."""
    theirs = procfs.namespace(process.pid, "net")
    return theirs is None or theirs == procfs.namespace("self", "net")


def _without_staged(servers: List[Server]) -> List[Server]:
    """Servers for one port that none of them holds, without those that were started with a gate, beside another one."""
    plain = [server for server in servers if server.gate_port is None]
    return plain or sorted(servers, key=lambda server: server.main.id.start_time)[:1]


def _only(servers: List[Server], port: int) -> Optional[Server]:
    if len(servers) > 1:
        evidence = [str(server.main) for server in servers]
        raise AgentRefusal("refused", f"{len(servers)} SGLang servers are meant for port {port}", evidence, "stop the wrong one by hand")
    return servers[0] if servers else None


def _inspectable(server: Optional[Server]) -> Optional[Server]:
    """Refuse a server of which nothing could be proven, before anything is touched."""
    if server is None:
        return None
    for member in server.members:
        if not procfs.may_inspect(member.pid):
            raise _rights(f"process {member.pid} of the server on port {server.port} belongs to {_user(member.user_id)}", [str(member)])
    return server


def _stranger(port: int, table: Table, holders: Set[int]) -> Server:
    """What holds the port and is no SGLang server for it, in a form that every step refuses."""
    process = table.get(min(holders)) or read_process(min(holders))
    if process is None:
        raise AgentRefusal("refused", f"the process that held port {port} has just ended; look again")
    if process.name == "docker-proxy":
        manager = wire.Manager(wire.ManagerKind.UNSUPPORTED, "docker", f"port {port} is published by docker-proxy")
    else:
        manager = wire.Manager(wire.ManagerKind.UNSUPPORTED, "not the SGLang server for this port", f"port {port} is held by {process}")
    return Server(process, [process], manager, port, listening=True, launch_id=None, ties=Ties(process.id, process.session, process.group))


def _hidden_holder(port: int, user_id: int) -> AgentRefusal:
    if os.geteuid() != 0:
        return _rights(f"port {port} is held by a process of {_user(user_id)}", [])
    return AgentRefusal(
        "refused",
        f"port {port} is held by a process that can't be seen from here (another PID namespace, or the kernel)",
        next_step=f"on the host: ss -ltnp sport = :{port}",
    )


def _rights(what: str, evidence: List[str]) -> AgentRefusal:
    return AgentRefusal(
        "rights",
        f"{what}, whose files and environment {_user(os.geteuid())} may not read: nothing can be proven",
        evidence,
        "connect as root, or set become: sudo for this place",
    )


def _user(user_id: int) -> str:
    try:
        return f"user {pwd.getpwuid(user_id).pw_name}"
    except KeyError:
        return f"user {user_id}"
