"""The gate at which a new server waits beside the old one: whether the installed SGLang has one, and where it may be.

``--gated-launch-port`` (srt/distributed/gated_launch.py, SGLang from 0.5.20): every rank stops when its process groups are set up, before
it takes memory, until ``POST /gate/activate`` comes. The gate binds the service's ``--host``, asks for no key, belongs to the scheduler of
rank 0 and stays for the server's whole life. So each start gets a port of its own, which nobody can know before.
"""

import os
import random
from pathlib import Path
from typing import Iterable, Iterator, List, Optional, Sequence, Set, Tuple

from orchestrator.agent import kernel_probes, procfs, sglang, wire
from orchestrator.agent.clean import port_is_free
from orchestrator.agent.command_lines import argument_value
from orchestrator.agent.installation import find_sglang
from orchestrator.agent.processes import find_servers
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire import Outcome, Verdict

PROBE = wire.Probe("sglang.srt.distributed.gated_launch", "maybe_wait_for_gated_launch", required=False)
"""What of SGLang's source shows that it has a gate."""
CHECK = "gate"
"""The name of the verdicts on it."""

_LOWEST = 10000
_OF_SGLANG = range(22000, 30000)
"""Where SGLang looks for a port for its process groups (srt/utils/network.py, get_free_port_below_ephemeral)."""
_AROUND_HTTP = 1100
"""SGLang derives ports from its HTTP port: up to 1000 above it before 0.5.20, 233 above or below it with attention DP."""
_ATTEMPTS = 200
_ZMQ_DELTA = 233
_DERIVED = 7
"""With attention DP the ports that every server on one HTTP port wants before its gate (srt/server_args.py, PortArgs.init_new, 0.5.23)."""


def find_gate(python: ServicePython) -> Tuple[Optional[bool], str]:
    """Whether the SGLang of the service's Python has a gate, and where that was read; None where nothing tells."""
    answers = kernel_probes.ask(python, [PROBE], kernel_probes.SIGN_SECONDS)
    return told(kernel_probes.is_there(answers, PROBE), answers[0].place(), find_sglang(python).version)


def told(probed: Optional[bool], place: str, version: Optional[str]) -> Tuple[Optional[bool], str]:
    """What the source tells (:func:`kernel_probes.is_there` of :data:`PROBE`), and where it tells nothing the version."""
    if probed is not None:
        return probed, place if probed else f"no {PROBE.module} in the service's Python"
    return sglang.has_gate(version), f"SGLang {version}"


def judge(launch: wire.Launch, python: ServicePython) -> Verdict:
    """Whether the launch can wait at a gate while the server before it still has its ports."""
    found, where = find_gate(python)
    if not found:
        detail = "the installed SGLang has no gate (--gated-launch-port, from 0.5.20)" if found is False else "nothing tells of a gate"
        return Verdict(CHECK, Outcome.WARN, detail, source=where)
    taken = taken_ports(launch.arguments, launch.port)
    if taken:
        detail = f"the new server wants port {taken[0]} before it comes to its gate, and that is in use now"
        return Verdict(
            CHECK, Outcome.WARN, detail, [f"port {port} is listened on" for port in taken], f"ss -ltnp sport = :{taken[0]}", where
        )
    return Verdict(CHECK, Outcome.PASS, "SGLang can wait at a gate beside the old server", source=where)


def taken_ports(arguments: Sequence[str], port: int, sockets: Optional[Sequence[procfs.Listener]] = None) -> List[int]:
    """Ports that a server wants before its gate and that somebody listens on now, most often the server before it."""
    wanted = fixed_ports(arguments, port)
    listened = {listener.port for listener in (procfs.all_listeners() if sockets is None else sockets)} if wanted else set()
    return sorted(wanted & listened)


def fixed_ports(arguments: Sequence[str], port: int) -> Set[int]:
    """The ports that a server's arguments fix besides its HTTP port: for its process groups, and with attention DP for its queues."""
    fixed = {value for value in [_port(argument_value(arguments, "--nccl-port"))] if value is not None}
    address = argument_value(arguments, "--dist-init-addr") or argument_value(arguments, "--nccl-init-addr")
    base = _port(address.rpartition(":")[2]) if address is not None else None
    if "--enable-dp-attention" in arguments and base is None:
        base = port + _ZMQ_DELTA if port + _ZMQ_DELTA <= 65535 else port - _ZMQ_DELTA
    if base is not None:
        fixed |= set(range(base, base + _DERIVED)) if "--enable-dp-attention" in arguments else {base}
    return fixed


def _port(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() else None


def choose_port(launch: wire.Launch, state_root: str) -> int:
    """A port for the launch's gate that is free now and that no other server or known launch has.

    Raises:
        AgentRefusal: there is none.
    """
    servers = find_servers()
    http = {launch.port, *(server.port for server in servers), *_known_ports(state_root)}
    taken = {listener.port for listener in procfs.all_listeners()}
    taken |= {server.gate_port for server in servers if server.gate_port is not None}
    chosen = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        port = chosen.choice(candidates(http, taken, _ephemeral()) or [0])
        if port and port_is_free(port):
            return port
    raise AgentRefusal("refused", "no port is free for the gate of the new server", next_step="ss -ltn; or relaunch with --sequential")


def candidates(http: Iterable[int], taken: Iterable[int], ephemeral: range) -> List[int]:
    """The ports that may be a gate's: where there are any, none that the kernel gives to connections or SGLang chooses by itself."""
    near = {port for chosen in http for port in range(chosen - _AROUND_HTTP, chosen + _AROUND_HTTP + 1)}
    free = sorted(set(range(_LOWEST, 65536)) - near - set(taken))
    quiet = [port for port in free if port not in ephemeral and port not in _OF_SGLANG]
    return quiet or free


def _ephemeral() -> range:
    """The ports that the kernel gives to outgoing connections (Documentation/networking/ip-sysctl.rst, ip_local_port_range)."""
    try:
        lowest, highest = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return range(32768, 61000)
    return range(int(lowest), int(highest) + 1)


def _known_ports(state_root: str) -> Iterator[int]:
    """The HTTP port of each service that has a state folder here, as its newest launch has it."""
    try:
        services = sorted(entry.name for entry in os.scandir(state_root) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for service in services:
        folder = StateFolder(state_root, service)
        launch = next((found for name in reversed(folder.launch_ids()) for found in [folder.read_launch(name)] if found), None)
        if launch is not None:
            yield launch.port
