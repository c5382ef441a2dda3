"""Taking over a server that somebody started by hand: what there is to write down of it, and a record by which it can be brought back.

The server itself is not touched. Its whole environment stays on the box, in the record (mode 600).
"""

import dataclasses
import json
from typing import Any, Callable, Dict, List, Tuple

from orchestrator.agent import correctness, way_back, wire
from orchestrator.agent.arguments import serve_arguments
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.differences import NOISE, NOISE_PREFIXES, steers
from orchestrator.agent.discovery import own_servers
from orchestrator.agent.http import Client
from orchestrator.agent.journal import ServiceLock
from orchestrator.agent.known_launches import shown
from orchestrator.agent.launch_files import uncarried
from orchestrator.agent.locks import refuse_when_held, refuse_when_interrupted, refuse_when_locked
from orchestrator.agent.measure_baseline import keep_scores
from orchestrator.agent.own_session import boot_identity
from orchestrator.agent.previous import copy_launch
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import Server, find_server, read_environment, remaining_members
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import is_secret_variable, launch_scrubber, secret_values
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import LaunchFailed, Observed
from orchestrator.agent.survey import address_of, api_key_of, describe, health_of
from orchestrator.agent.wire_launches import Adopted, AdoptReport, AdoptRequest

_PROVE_SECONDS = 120.0
_SCORE_SECONDS = 60.0
_MOST_SHOWN = 300
"""Characters of a line about a server that was not meant."""


def adopt(request: AdoptRequest, emit: Callable[[str, Any], None]) -> AdoptReport:
    """Look at the server on a port and, when a launch id is given, prove that it serves and keep a record of it.

    Raises:
        AgentRefusal: there is none, it is ours already (unless `ours` are looked at) or nobody's to take over, another one than was
            shown, or it does not serve. ``locked``: a person or an order has the service.
    """
    folder = StateFolder(request.state_root, request.service)
    refuse_when_held(folder)
    refuse_when_interrupted(folder)
    server = _server(request)
    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    if record is not None and request.ours and request.launch_id is None:
        return _report(server, dataclasses.replace(record, gate_port=None), folder)
    if server.launch_id is not None:
        what = f"process {server.main.pid} is launch {server.launch_id}, which this program has started"
        raise AgentRefusal("refused", what, [str(server.main)], "fab services")
    launch = copy_launch(server, request.service, request.port)
    if request.launch_id is None:
        return _report(server, launch, folder)
    refuse_when_locked(folder)
    report = _reporter(emit)
    observed = _prove(server, launch, report)
    report("answers", "the fixed texts are scored, so that what comes after it can be held against them")
    scores = correctness.score(Client(request.port, address_of(server), api_key_of(server, folder)), _SCORE_SECONDS)
    kept = dataclasses.replace(launch, launch_id=request.launch_id)
    _keep(folder, kept, server, observed)
    return dataclasses.replace(
        _described(server, launch, folder),
        recorded=request.launch_id,
        answers=correctness.compare(None, scores, wire.Policy()),
        answers_kept=keep_scores(folder, request.launch_id, scores),
    )


def _no_server(request: AdoptRequest) -> AgentRefusal:
    """Nothing serves on that port: on which ones servers are, or load."""
    others = [server.info for server in own_servers(request.state_root)]
    what = f"no SGLang server runs on port {request.port}"
    if not others:
        return AgentRefusal("refused", what, ["no process here is one, on any port"], "ss -ltnp; name its port: --port N")
    evidence = [f"--port {other.port}: process {other.main.pid}, {' '.join(other.arguments)}"[:_MOST_SHOWN] for other in others]
    ports = ", ".join(str(other.port) for other in others)
    return AgentRefusal("refused", f"{what}, but on {ports}", evidence, "--port with one of these")


def _server(request: AdoptRequest) -> Server:
    server = find_server(request.port)
    if server is None:
        raise _no_server(request)
    if request.expected is not None and server.main.id != request.expected:
        raise AgentRefusal("refused", f"another server (process {server.main.pid}) is there now than was shown; look again")
    if server.manager.kind == wire.ManagerKind.UNSUPPORTED:
        what = f"process {server.main.pid} on port {server.port} is managed by {server.manager.name}, which is not supported"
        raise AgentRefusal("refused", what, [str(server.main), server.manager.detail])
    return server


def _report(server: Server, launch: wire.Launch, folder: StateFolder) -> AdoptReport:
    """All there is to say; SGLang's own parser is asked for it."""
    tried = way_back.ask(launch)
    return dataclasses.replace(
        _described(server, launch, folder),
        sglang_version=tried.version,
        flags={} if tried.command is None else tried.command.used,
        rollback=tried.obstacle,
    )


def _described(server: Server, launch: wire.Launch, folder: StateFolder) -> AdoptReport:
    steering, kept, secret = split_environment(launch.environment)
    arguments = serve_arguments(launch.arguments) if "serve" in launch.entry else launch.arguments
    lost = sorted(set(read_environment(server.main.pid) or {}) - set(launch.environment))
    masked = shown(dataclasses.replace(launch, arguments=arguments, environment={}), launch_scrubber([launch]))
    return AdoptReport(
        server=describe(server, folder),
        launch=masked,
        health=health_of(server, folder),
        steering=steering,
        kept=kept,
        secret=secret,
        verdicts=_lost(lost) if server.launch_id is None else [],
    )


def split_environment(environment: Dict[str, str]) -> Tuple[Dict[str, str], List[str], List[str]]:
    """What may be written down, the names of what stays on the box, and the names of secrets, which stay there too."""
    steering, kept, secret = {}, [], []
    for name, value in sorted(environment.items()):
        if secret_values((), {name: value}):
            secret.append(name)
        elif steers(name) and not _is_noise(name) and uncarried(name, value) is None and "\n" not in value and "\t" not in value:
            steering[name] = value
        else:
            kept.append(name)
    assert not any(is_secret_variable(name) for name in steering), "a secret is never written down"
    return steering, kept, secret


def _is_noise(name: str) -> bool:
    return name in NOISE or name.startswith(NOISE_PREFIXES)


def _lost(names: List[str]) -> List[wire.Verdict]:
    lost = [name for name in names if name not in ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")]
    if not lost:
        return []
    detail = f"not kept, as no EnvironmentFile carries them and nothing depends on them: {', '.join(lost)}"
    return [wire.Verdict("environment", wire.Outcome.WARN, detail)]


def _reporter(emit: Callable[[str, Any], None]) -> Callable[[str, str], None]:
    return lambda phase, detail: emit(wire.EventKind.PROGRESS, wire.Progress("ADOPT", phase, 0.0, detail))


def _prove(server: Server, launch: wire.Launch, report: Callable[[str, str], None]) -> Observed:
    """Three good answers in a row of this very server."""
    from orchestrator.agent import ready

    policy = wire.Policy(load_total=_PROVE_SECONDS, load_stall=_PROVE_SECONDS)
    try:
        proven = ready.wait_ready(launch, lambda: remaining_members(server.ties), None, policy, report, lambda: None)
    except LaunchFailed as failed:
        what = f"it is not proven to serve, so nothing was recorded: {failed.failure.summary}"
        raise AgentRefusal("refused", what, failed.failure.evidence, "fab status; again when it serves") from None
    facts = [wire.Fact(f"{name} (requested)", value, "arguments") for name, value in proven.requested.items()]
    return Observed(proven.max_total_num_tokens, facts)


def _keep(folder: StateFolder, launch: wire.Launch, server: Server, observed: Observed) -> None:
    from orchestrator.agent.driver import kept_facts
    from orchestrator.agent.kernel_files import KernelFiles

    folder.create()
    lock = ServiceLock(folder)
    if not lock.take(launch.launch_id):
        refuse_when_held(folder)
    try:
        crash_point("before the adopted record")
        path = folder.write_launch(launch)
        write_private(path / "adopted.json", json.dumps(wire.to_json(Adopted(server.main.id, boot_identity()))))
        crash_point("the adopted record")
        folder.mark_verified(launch.launch_id, dataclasses.replace(observed, facts=[*observed.facts, *kept_facts(KernelFiles())]))
    finally:
        lock.release()
