"""What there is in a place for one service: its server, how that is doing, the installed SGLang, the GPUs, the newest order.

This is what ``fab status`` shows and every change starts from, so it must be quick: nothing is imported in the service's
Python, and health is asked where the answer comes at once (/health takes a second when all is well).
"""

import os
import pwd
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from orchestrator.agent import boot_state, wire
from orchestrator.agent.asking import Asking
from orchestrator.agent.gpu import GpuReading, ask_gpus
from orchestrator.agent.installation import UNKNOWN_VERSION, Installation, find_sglang
from orchestrator.agent.journal import order_status
from orchestrator.agent.locks import held_by_others, person_lock
from orchestrator.agent.processes import Server, find_server, find_servers, scan
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.socket_diag import all_listeners
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_status import Health

if TYPE_CHECKING:
    from orchestrator.agent.scrub import Scrubber

HEALTH_SECONDS = 5.0
"""For a server that does not answer the quick questions; SGLang itself gives up on a wedged scheduler after 20 s."""


def survey(request: wire.SurveyRequest, emit: Callable[[str, Any], None]) -> wire.SurveyReport:
    """Look, change nothing."""
    gpus = Asking(ask_gpus)  # nvidia-smi alone takes as long as the rest, or seconds on GPUs that sleep
    folder = StateFolder(request.state_root, request.service)
    table = scan()
    sockets = all_listeners()
    servers = find_servers(table, sockets)
    server, verdicts = _find(lambda: find_server(request.port, table, servers, sockets))
    others = [other for other in servers if server is None or other.main.id != server.main.id]
    sglang = find_sglang(ServicePython(request.python, request.environment, request.user))
    if sglang.problem is not None:
        verdicts.append(sglang_verdict(sglang))
    described = None if server is None else describe(server, folder)
    health = health_of(server, folder)
    reading = gpus.result()
    return wire.SurveyReport(
        facts=_facts(sglang),
        sglang_version=sglang.version,
        server=described,
        health=health,
        gpus=reading.gpus,
        verdicts=[*verdicts, *_expected(request.expected_gpus, reading)],
        order=order_status(folder),
        others=[describe(other, folder) for other in others],
        boot=boot_state.describe(folder, runs=server is not None),
        lock=person_lock(folder),
        gpu_locks=held_by_others(request.service, request.state_root, reading.gpus, request.environment),
    )


def _find(find: Callable[[], Optional[Server]]) -> Tuple[Optional[Server], List[wire.Verdict]]:
    """The service's server; what keeps us from telling is a verdict here, so that the rest is still shown."""
    try:
        return find(), []
    except AgentRefusal as refusal:
        failure = refusal.failure
        check = "rights" if failure.category == "rights" else "port"
        return None, [wire.Verdict(check, wire.Outcome.REFUSE, failure.message, failure.evidence, failure.next_step)]


def _expected(expected: Optional[int], reading: GpuReading) -> List[wire.Verdict]:
    """What nvidia-smi shows against what the inventory says; nothing where all is well."""
    if expected is None:
        return []
    from orchestrator.agent.requirements import check_expected

    verdict = check_expected(expected, reading)
    return [verdict] if verdict is not None and verdict.outcome != wire.Outcome.PASS else []


def sglang_verdict(sglang: Installation) -> wire.Verdict:
    """Whether the service's Python has SGLang."""
    if sglang.version == UNKNOWN_VERSION:
        detail = "SGLang is there and does not say its version: what it has counts, not what it is called"
        return wire.Verdict("sglang", wire.Outcome.WARN, detail, [sglang.source])
    if sglang.version is not None:
        return wire.Verdict("sglang", wire.Outcome.PASS, f"SGLang {sglang.version}", [sglang.source])
    return wire.Verdict(
        "sglang",
        wire.Outcome.REFUSE,
        f"no SGLang can be found: {sglang.problem}",
        [sglang.source],
        "set `python:` of the service to the interpreter that has SGLang",
    )


def describe(server: Server, folder: StateFolder) -> wire.ServerInfo:
    """A server as the operator may see it: secret values masked."""
    from orchestrator.agent.command_lines import server_arguments
    from orchestrator.agent.scrub import mask_arguments

    command = list(server.main.arguments)
    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    arguments = server_arguments(command)
    return wire.ServerInfo(
        main=server.main.id,
        members=[member.id for member in server.members],
        manager=server.manager,
        port=server.port,
        listening=server.listening,
        python=command[0] if command else "",
        entry=[] if arguments is None else command[1 : len(command) - len(arguments)],
        arguments=mask_arguments(command[1:] if arguments is None else arguments),
        user=user_name(server.main.user_id),
        started=started(server.main.id),
        launch_id=server.launch_id,
        backend=record.backend if record is not None else None,
    )


def user_name(user_id: int) -> str:
    """The account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def started(process: wire.ProcessId) -> float:
    """Unix time of a process's start. Not from /proc/uptime or /proc/stat: lxcfs shows the container's there."""
    ticks = os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.start_time / ticks


def address_of(server: Server) -> str:
    """Where the server can be reached from its own place."""
    from orchestrator.agent.command_lines import argument_value, server_arguments

    return argument_value(server_arguments(server.main.arguments) or [], "--host") or "127.0.0.1"


def api_key_of(server: Server, folder: StateFolder) -> Optional[str]:
    """The key of a server, from its launch record or its command line; None when it has none or keeps it elsewhere."""
    from orchestrator.agent.scrub import split_secrets

    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    if record is not None and "api-key" in record.secrets:
        return record.secrets["api-key"]
    return split_secrets(server.main.arguments)[1].get("api-key")


def health_of(server: Optional[Server], folder: StateFolder) -> str:
    """A value of :class:`wire_status.Health`, as quickly as it can be told."""
    if server is None:
        return Health.DOWN
    if not server.listening:
        return Health.STARTING
    from orchestrator.agent import http, sglang
    from orchestrator.agent.command_lines import server_arguments

    if server.launch_id is None and server_arguments(server.main.arguments) is None:
        return Health.SILENT  # a stranger on the port, which is asked nothing

    client = http.Client(server.port, address_of(server), api_key_of(server, folder))
    try:
        if sglang.admits_requests(client) and _scheduler_answers(client):
            return Health.SERVING
    except http.RefusedError:
        return Health.DOWN
    except http.HttpError:
        pass
    return sglang.health(client, HEALTH_SECONDS)


def _scheduler_answers(client: Any) -> bool:
    """Whether the scheduler is alive: /server_info asks it (0.5.23; /ready and /ping stay 200 when it is stopped).

    Without the key that the server wants nothing can be asked, and /ready has to do.
    """
    return client.get("/server_info", 2.0).status in (200, 401, 403)


def _facts(sglang: Installation) -> List[wire.Fact]:
    from orchestrator.agent.main import container_kind

    system = os.uname()
    return [
        wire.Fact("hostname", system.nodename, "uname"),
        wire.Fact("kernel", system.release, "uname"),
        wire.Fact("container", container_kind(), "/run/systemd/container, /proc/1/environ"),
        wire.Fact("systemd", os.path.isdir("/run/systemd/system"), "/run/systemd/system"),
        wire.Fact("user", user_name(os.geteuid()), "geteuid"),
        wire.Fact("python", sys.version.split()[0], sys.executable),
        wire.Fact("sglang", sglang.version, sglang.source),
    ]


def scrubber_of(server: Optional[Server], folder: StateFolder, *launches: wire.Launch) -> "Scrubber":
    """A scrubber for every secret that can be found of a running server, and of launches."""
    from orchestrator.agent.processes import read_environment
    from orchestrator.agent.scrub import Scrubber, secret_values

    values = set()
    for launch in launches:
        values |= set(launch.secrets.values()) | secret_values(launch.arguments, launch.environment)
    if server is not None:
        values |= secret_values(server.main.arguments, read_environment(server.main.pid))
        record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
        values |= set(record.secrets.values()) if record is not None else set()
    return Scrubber(values)
