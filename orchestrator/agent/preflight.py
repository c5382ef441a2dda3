"""Everything that can be known about a candidate launch while the old server still serves.

All checks run and all verdicts are collected, so that an operator sees every obstacle at once. Two things end the preflight:
another order at work on the service, and rights without which nothing can be proven.
"""

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import (
    arguments,
    checkpoint,
    copies,
    cuda,
    kernel_probes,
    launch_rules,
    memory_checks,
    place_checks,
    way_back,
    wire,
)
from orchestrator.agent.arguments import ParsedCommand, ParserAnswer
from orchestrator.agent.differences import Side, differences, interpreter_identity, profile_names
from orchestrator.agent.installation import find_interpreter, find_sglang
from orchestrator.agent.journal import order_status
from orchestrator.agent.kernel_probes import Probed
from orchestrator.agent.launch_files import Account, find_account, server_environment
from orchestrator.agent.locks import refuse_when_held
from orchestrator.agent.managers import is_script
from orchestrator.agent.processes import Server, find_server, read_environment, read_process
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.requirements import check, check_expected, check_parallel_size, merged_modules, node_count
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import address_of, describe, scrubber_of, sglang_verdict, user_name
from orchestrator.agent.verdict_sources import sourced, without_repetitions
from orchestrator.agent.wire import Outcome, Probe, Verdict
from orchestrator.agent.wire_words import managed

if TYPE_CHECKING:
    from orchestrator.agent import http
    from orchestrator.agent.gpu import GpuReading
    from orchestrator.agent.request_rate import RequestRate

NEVER_FORCED = frozenset({"rights", "manager", "lock", "user", "python", "multi_node"})
"""Checks whose refusal no operator can override: the job would fail, or do what was never tried."""

_STANDALONE = Probe(launch_rules.STANDALONE_CUTEDSL, required=False)

Emit = Callable[[str, Any], None]


@dataclass(frozen=True)
class _Old:
    """The running server, and what starts it: its launch as it can be read from its processes."""

    server: Server
    launch: wire.Launch
    record: Optional[wire.Launch]


@dataclass(frozen=True)
class _New:
    """The candidate, with the account and the whole environment that its server would have."""

    launch: wire.Launch
    account: Account
    environment: Dict[str, str]

    @property
    def python(self) -> ServicePython:
        return ServicePython(self.launch.python, self.environment, self.launch.user, self.launch.directory)


@dataclass(frozen=True)
class _Measured:
    """What subprocesses said."""

    parser: ParserAnswer
    reading: "GpuReading"
    cuda: Optional[cuda.CudaAnswer]
    obstacle: Optional[str] = None
    """What the old server's own Python has against starting it again, empty for nothing; None where that is the candidate's Python."""
    probed: Sequence[Probed] = ()
    use: memory_checks.GpuUse = field(default_factory=memory_checks.GpuUse)

    @property
    def gpus(self) -> List[wire.Gpu]:
        return self.reading.gpus


def preflight(request: wire.PreflightRequest, emit: Emit) -> wire.PreflightReport:
    """Check a candidate and compare it with what runs. Changes nothing.

    Raises:
        AgentRefusal: ``locked``: a living supervisor works on this service; ``rights``: the server's processes may not be read.
    """
    folder = StateFolder(request.state_root, request.launch.service)
    refuse_when_held(folder)
    launch = _candidate(request, folder)
    server = find_server(launch.port)
    old = _read_old(server, folder, launch)
    rate = _request_rate(old)
    account = _account(launch.user)
    new = _New(launch, account, server_environment(launch, account))
    measured = _measure(new, old, request.requirements, emit)
    parser = measured.parser
    new_command, old_command = _commands(parser, launch, old)
    values = new_command.values
    verdicts = [
        *_server_verdicts(server, folder),
        *_python_verdicts(new.python, parser),
        *_argument_verdicts(parser, new_command),
        *_rollback_verdicts(parser, old, measured.obstacle),
        *_gpu_verdicts(measured, new, values, request.expected_gpus),
        *kernel_probes.verdicts([answer for answer in measured.probed if answer.probe != _STANDALONE], launch.python),
        *(verdict for needed in request.requirements for verdict in _requirement_verdicts(needed, measured, values)),
        *_model_verdicts(measured, new, old, values),
        *_place_verdicts(launch, folder, old, values),
    ]
    report = wire.PreflightReport(
        verdicts=sourced(without_repetitions(verdicts), launch),
        differences=[] if old is None or old_command is None else _compare(old, old_command, new, new_command, parser, str(folder.path)),
        server=None if server is None else describe(server, folder),
        sglang_version=parser.sglang_version or find_sglang(new.python).version,
        load=_load(old),
        request_rate=rate(),
        staging=_staging(request, folder, old, new, values, measured),
    )
    scrubber = scrubber_of(server, folder, launch, *([old.launch] if old is not None else []))
    return wire.from_json(wire.PreflightReport, scrubber.data(wire.to_json(report)))


def _staging(
    request: wire.PreflightRequest, folder: StateFolder, old: Optional[_Old], new: _New, values: Mapping[str, Any], measured: _Measured
) -> Optional[wire.StagingPlan]:
    """How the candidate will take the place of the server that serves now."""
    from orchestrator.agent import staging_plan

    if request.policy is None or old is None or not old.server.listening:
        return None
    candidate = staging_plan.Candidate(new.launch, new.account, new.environment, values)
    found = staging_plan.plan(candidate, folder, request.policy, measured.reading, sequential=request.sequential)
    return replace(found, verdicts=sourced(found.verdicts, new.launch))


def _candidate(request: wire.PreflightRequest, folder: StateFolder) -> wire.Launch:
    """What is to be started; of a launch on the box its own record, secrets included."""
    if request.copy_of is None:
        return request.launch
    launch = copies.copy_of(folder, request.copy_of, request.launch.launch_id)
    if launch is None:
        what = f"there is no record of a launch {request.copy_of} in {folder.launches}"
        raise AgentRefusal("refused", what, next_step="fab rollback --list")
    return launch


def _account(user: Optional[str]) -> Account:
    """Whom the server would run as; where that fails, which is a verdict of its own, whoever runs the agent."""
    try:
        return find_account(user)
    except AgentRefusal:
        return find_account(None)


def _read_old(server: Optional[Server], folder: StateFolder, new: wire.Launch) -> Optional[_Old]:
    """The old server as a launch; None where there is none that could be replaced."""
    from orchestrator.agent.previous import copy_launch

    if server is None or server.manager.kind == wire.ManagerKind.UNSUPPORTED:
        return None
    record = folder.read_launch(server.launch_id) if server.launch_id is not None else None
    return _Old(server, copy_launch(server, new.service, new.port), record)


def _measure(new: _New, old: Optional[_Old], needed: Sequence[wire.Requirements], emit: Emit) -> _Measured:
    """Ask the parser (5 to 10 s of imports), the source of the kernels, the GPUs and CUDA at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    launches = [new.launch, *([old.launch] if old is not None else [])]
    records = [new.launch, *([old.record] if old is not None and old.record is not None else [])]
    commands = [arguments.launch_arguments(launch) for launch in launches]
    flags = [flag for launch in records for flag in (*launch.backend_flags, *launch.swept_flags)]
    began = time.monotonic()
    detail = "SGLang's own parser is asked about the arguments, which takes its imports"
    emit(wire.EventKind.PROGRESS, wire.Progress("PREFLIGHT", "checking", 0.0, detail))
    with ThreadPoolExecutor(max_workers=4) as pool:
        parsing = pool.submit(arguments.parse_commands, new.python, commands, flags=flags, modules=merged_modules(needed))
        back = pool.submit(_obstacle, old, new)
        hardware = pool.submit(_ask_hardware, new.python)
        probing = pool.submit(kernel_probes.ask, new.python, [_STANDALONE, *kernel_probes.merged(needed)])
        reading, answer = hardware.result()
        use = memory_checks.read_use(_members(old)) if reading.gpus else memory_checks.GpuUse()
        parser, obstacle, probed = parsing.result(), back.result(), probing.result()
    emit(wire.EventKind.PROGRESS, wire.Progress("PREFLIGHT", "checked", round(time.monotonic() - began, 3)))
    return _Measured(parser, reading, answer, obstacle, probed, use)


def _obstacle(old: Optional[_Old], new: _New) -> Optional[str]:
    """What keeps the old server from being started again, if its own Python has to be asked for that."""
    launch = None if old is None else old.record or old.launch
    if launch is None or not way_back.has_its_own(launch, new.launch):
        return None
    return way_back.obstacle(launch) or ""


def _ask_hardware(python: ServicePython) -> Tuple["GpuReading", Optional[cuda.CudaAnswer]]:
    """The GPUs, and CUDA's answer where there is a device to be asked for."""
    from orchestrator.agent.gpu import ask_gpus

    reading = ask_gpus()
    return reading, cuda.initialise(python) if cuda.device_nodes() else None


def _commands(parser: ParserAnswer, launch: wire.Launch, old: Optional[_Old]) -> Tuple[ParsedCommand, Optional[ParsedCommand]]:
    """Both command lines as the parser reads them. Both are read textually when it doesn't read one of them."""
    parsed = list(parser.commands)
    if parsed and all(command.accepted for command in parsed):
        return parsed[0], parsed[1] if len(parsed) > 1 else None
    textual_new = arguments.read_textually(arguments.launch_arguments(launch))
    if old is None:
        return textual_new, None
    started_with = old.record if old.record is not None else old.launch
    return textual_new, arguments.read_textually(arguments.launch_arguments(started_with))


def _server_verdicts(server: Optional[Server], folder: StateFolder) -> List[Verdict]:
    verdicts = []
    status = order_status(folder)
    if status is not None and status.state.startswith("INTERRUPTED"):
        detail = f"{status.kind} {status.order_id} by {status.operator} was cut off: {status.state}"
        verdicts.append(Verdict("order", Outcome.WARN, detail, next_step="fab status; the plan starts from what runs now"))
    if server is None:
        return [*verdicts, Verdict("server", Outcome.PASS, "no server runs on the port")]
    verdicts.append(Verdict("rights", Outcome.PASS, f"process {server.main.pid} may be read and signalled"))
    manager = server.manager
    if manager.kind == wire.ManagerKind.UNSUPPORTED:
        detail = f"the server on port {server.port} is managed by {manager.name}, which is not supported"
        step = f"stop it by hand through {manager.name}, then fab launch"
        return [*verdicts, Verdict("manager", Outcome.REFUSE, detail, [str(server.main), manager.detail], step)]
    verdicts.append(Verdict("manager", Outcome.PASS, managed(manager), [manager.detail] if manager.detail else []))
    parent = read_process(server.main.parent)
    if manager.kind == wire.ManagerKind.SESSION and parent is not None and is_script(parent):
        detail = f"a script that still runs started the server, process {parent.pid}: if it does so again, two servers will want the port"
        step = f"ps -fp {parent.pid}; if it is a loop, end it first: it is not ended with the server"
        verdicts.append(Verdict("respawn", Outcome.WARN, detail, next_step=step))
    return verdicts


def _python_verdicts(python: ServicePython, parser: ParserAnswer) -> List[Verdict]:
    user = place_checks.check_user(python.user)
    interpreter = find_interpreter(python)
    if interpreter is None:
        step = f"ls -l {python.path}; correct `python:` of the service"
        return [user, Verdict("python", Outcome.REFUSE, f"there is no {python.path} that can be executed", next_step=step)]
    if parser.problem is not None and parser.problem.startswith("can't start"):
        return [user, Verdict("python", Outcome.REFUSE, parser.problem, next_step=f"ls -l {interpreter}; namei -l {interpreter}")]
    return [user, Verdict("python", Outcome.PASS, interpreter), sglang_verdict(find_sglang(python))]


def _argument_verdicts(parser: ParserAnswer, new: ParsedCommand) -> List[Verdict]:
    if parser.problem is not None:
        detail = f"SGLang's parser could not be asked, so arguments are compared as text: {parser.problem}"
        step = "the lines above say why; once it answers, the arguments are compared as SGLang reads them"
        return [Verdict("arguments", Outcome.UNKNOWN, detail, parser.evidence, step), *_multi_node(new)]
    asked = parser.commands[0]
    if not asked.accepted:
        step = "correct the service's or the backend's arguments; the installed version is " + (parser.sglang_version or "unknown")
        verdict = Verdict("arguments", Outcome.REFUSE, f"SGLang's parser refuses the arguments: {asked.message}", next_step=step)
    else:
        verdict = Verdict("arguments", Outcome.PASS, f"SGLang {parser.sglang_version}'s parser accepts the arguments")
    return [verdict, *_multi_node(new)]


def _multi_node(new: ParsedCommand) -> List[Verdict]:
    count = node_count(new.values)
    if count <= 1 or new.values.get("dist_init_addr"):
        return []
    step = "take --nnodes out of the service, and name its other nodes in `nodes:`"
    return [Verdict("multi_node", Outcome.REFUSE, f"--nnodes is {count}", next_step=step)]


def _gpu_verdicts(measured: _Measured, new: _New, values: Mapping[str, Any], expected: Optional[int]) -> List[Verdict]:
    counts = (check_expected(expected, measured.reading), check_parallel_size(measured.gpus, values, new.environment))
    counted = [count for count in counts if count is not None]
    if measured.cuda is not None:
        return [cuda.verdict(measured.cuda, measured.gpus), *counted]
    problem = measured.reading.problem
    listed = f"{problem}, and there is no" if problem else f"nvidia-smi lists {len(measured.gpus)} GPU(s) without any"
    detail = f"not asked: {listed} /dev/nvidia* device"
    return [Verdict("cuda", Outcome.UNKNOWN, detail, list(measured.reading.said), "ls -l /dev/nvidia*, here and on the host"), *counted]


def _members(old: Optional[_Old]) -> List[int]:
    """The processes that will be gone when the new server starts."""
    return [] if old is None else [member.pid for member in old.server.members]


def _requirement_verdicts(needed: wire.Requirements, measured: _Measured, values: Mapping[str, Any]) -> List[Verdict]:
    own = [answer for answer in measured.probed if answer.probe in needed.probes]
    return check(needed, measured.gpus, values, measured.parser.modules, own)


def _model_verdicts(measured: _Measured, new: _New, old: Optional[_Old], values: Mapping[str, Any]) -> List[Verdict]:
    """Which kernels the arguments mean for this checkpoint on these GPUs, and whether it will fit."""
    found = checkpoint.read(values, new.launch.directory)
    standalone = kernel_probes.is_there(measured.probed, _STANDALONE)
    asked = launch_rules.question(values, measured.gpus, found, measured.parser.sglang_version, standalone)
    fits = memory_checks.check_gpu_memory(measured.gpus, measured.use, values, new.environment, found, replaces=old is not None)
    return [*launch_rules.check(asked), *([fits] if fits is not None else [])]


def _place_verdicts(launch: wire.Launch, folder: StateFolder, old: Optional[_Old], values: Mapping[str, Any]) -> List[Verdict]:
    server = old.server if old is not None else None
    return [
        place_checks.check_model(values, launch.directory),
        place_checks.check_port(launch.port, server),
        place_checks.check_state_folder(str(folder.path)),
        place_checks.check_shared_memory(),
        memory_checks.check_host_memory(values, _members(old)),
    ]


def _rollback_verdicts(parser: ParserAnswer, old: Optional[_Old], obstacle: Optional[str]) -> List[Verdict]:
    """Whether there is a way back: SGLang may have been replaced under the running server."""
    if obstacle:
        step = "mend it, or accept with --force that there is no way back"
        return [Verdict("rollback", Outcome.REFUSE, f"none: the running server could not be started again: {obstacle}", next_step=step)]
    if old is not None and parser.problem is not None:
        detail = f"none is promised: nobody could try the running server's arguments ({parser.problem})"
        step = "fab preflight, once SGLang's parser answers"
        return [Verdict("rollback", Outcome.WARN, detail, next_step=step)] if obstacle is None else []
    if obstacle is not None:
        return []
    refused = len(parser.commands) > 1 and not parser.commands[1].accepted
    if refused:
        detail = f"none: the installed SGLang refuses the running server's own arguments: {parser.commands[1].message}"
        step = "install the version that the running server was started with, or accept that there is no way back"
        return [Verdict("rollback", Outcome.REFUSE, detail, next_step=step)]
    running = _running_version(old)
    if running is None or parser.sglang_version is None or running == parser.sglang_version:
        return []
    detail = f"the running server is SGLang {running}; what starts next, on a rollback too, is {parser.sglang_version}"
    return [
        Verdict("rollback", Outcome.WARN, detail, next_step="nothing if it was replaced on purpose: both servers are then of that version")
    ]


def _running_version(old: Optional[_Old]) -> Optional[str]:
    from orchestrator.agent import http, sglang

    client = _client(old)
    try:
        return None if client is None else sglang.server_facts(client).version
    except http.HttpError:
        return None


def _load(old: Optional[_Old]) -> Optional[int]:
    from orchestrator.agent import http, sglang

    client = _client(old)
    try:
        return None if client is None else sglang.running_and_queued(client)
    except http.HttpError:
        return None


def _request_rate(old: Optional[_Old]) -> "RequestRate":
    from orchestrator.agent.request_rate import RequestRate

    return RequestRate(_client(old))


def _client(old: Optional[_Old]) -> Optional["http.Client"]:
    """To ask the old server, with its key; None when there is none that answers."""
    from orchestrator.agent import http

    if old is None or not old.server.listening:
        return None
    launch = old.record if old.record is not None else old.launch
    return http.Client(old.server.port, address_of(old.server), launch.secrets.get("api-key"))


def _compare(
    old: _Old, old_command: ParsedCommand, new: _New, new_command: ParsedCommand, parser: ParserAnswer, own_folder: str
) -> List[wire.Difference]:
    before = Side(
        old_command,
        read_environment(old.server.main.pid) or {},
        interpreter_identity(old.launch.python, old.launch.environment.get("PATH", "")),
        user_name(old.server.main.user_id),
        from_login=old.record is None and old.server.manager.kind == wire.ManagerKind.SESSION,
    )
    python = interpreter_identity(new.launch.python, new.environment["PATH"])
    after = Side(new_command, new.environment, python, user_name(new.account.user_id))
    return differences(before, after, profile_names(new.launch, old.record, parser.destinations), own_folder)
