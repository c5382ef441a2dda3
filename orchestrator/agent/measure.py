"""The verb ``measure``: time the server that runs, by batch size, from next to it, with all that the numbers depend on."""

import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent import correctness, floor_inputs, gpu_samples, measure_validity, server_word, sglang, wire
from orchestrator.agent.batch_runs import BatchRuns, Load, NoEndpointError, Run
from orchestrator.agent.capacity import Known
from orchestrator.agent.clock import Deadline, steady
from orchestrator.agent.covariates import covariates
from orchestrator.agent.disagreement import disagreements
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.journal import order_status
from orchestrator.agent.known_launches import record_of
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.locks import wanted_gpus
from orchestrator.agent.measure_baseline import comparable, kept_capacity, kept_scores
from orchestrator.agent.measure_window import interval
from orchestrator.agent.processes import Server, find_server
from orchestrator.agent.procfs import read_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import address_of, api_key_of, scrubber_of, user_name
from orchestrator.agent.wire_measure import BatchTiming, GpuSeries, Invalid, MeasureReport, MeasureRequest, Reason, RepeatTiming
from orchestrator.agent.wire_words import at_work

Emit = Callable[[str, Any], None]

_STATE = "MEASURE"
_INFO_SECONDS = 20.0
_WIDE_SPREAD = 0.10
_TOLD = ("num_requests_total", "prompt_tokens_total", "generation_tokens_total", "cached_tokens_total", "num_aborted_requests_total")
"""The counters that are kept with a result."""
_OWN_WAIT = 0.01
"""The share of a window for which our own reader may wait for a processor before it is told."""


def measure(request: MeasureRequest, emit: Emit) -> MeasureReport:
    """Time the server on the port. What speaks against a number is in the answer, not an error.

    Raises:
        AgentRefusal: ``locked``: an order is at work on the service. ``refused``: there is no server, or it can't be timed at all.
    """
    folder = StateFolder(request.state_root, request.service)
    order = order_status(folder)
    if order is not None and order.live:
        raise AgentRefusal("locked", at_work(order), next_step="fab attach")
    server = find_server(request.port)
    if server is None or not server.listening:
        raise AgentRefusal("refused", f"no server listens on port {request.port}", next_step="fab status")
    client = Client(request.port, address_of(server), api_key_of(server, folder))
    steady.start()
    try:
        return _Measurement(request, emit, folder, server, client).report()
    except NoEndpointError as error:
        raise AgentRefusal("refused", f"no stream of this server can be timed: {error}", next_step="fab logs") from None
    except HttpError as error:
        raise AgentRefusal("refused", f"the server does not answer rightly: {error}", next_step="fab status; fab logs") from None
    finally:
        steady.stop()


class _Measurement:
    """One measurement under way."""

    def __init__(self, request: MeasureRequest, emit: Emit, folder: StateFolder, server: Server, client: Client) -> None:
        self._request = request
        self._emit = emit
        self._folder = folder
        self._server = server
        self._client = client
        self._began = time.time()
        self._deadline = Deadline(request.seconds)
        self._record = record_of(folder, server)
        self._invalid: List[Invalid] = []
        self._remarks: List[str] = []
        self._windows: List[Tuple[float, float]] = []
        self._warm_up: List[float] = []
        self._grown: Dict[str, float] = {}
        self._prompts: List[int] = []

    def report(self) -> MeasureReport:
        """Do it all.

        Raises:
            HttpError, NoEndpointError: the server can't be timed.
        """
        request = self._request
        info = self._info()
        facts = sglang.read_facts(info)
        log = self._log()
        known = covariates(self._server, self._folder, info, facts, log, request.knobs, scrubber_of(self._server, self._folder))
        before = self._score("before")
        self._judge_answers(None, before, "before the timing")
        kept = kept_scores(self._folder, self._server, self._record)
        if kept is not None:
            self._judge_answers(comparable(kept.scores, before), before, f"against {kept.whose}")
        load = Load(request.input_tokens, request.output_tokens, request.temperature, facts.text("served_model_name") or "default")
        runs = BatchRuns(self._client, load, log, page=_page(facts), graphs=not facts.arguments.get("disable_cuda_graph"))
        self._tell("warm-up", "the first answer")
        incremental = any(facts.arguments.get(name) for name in ("incremental_streaming_output", "stream_output"))
        self._warm_up.append(runs.choose_endpoint(incremental=incremental, deadline=self._deadline))
        with gpu_samples.GpuSampler() as sampler:
            batches = [self._batch(runs, size, facts) for size in request.batch_sizes]
        self._judge_answers(before, self._score("after"), "after the timing")
        self._judge_server()
        gpus = self._gpus(sampler)
        baseline = self._judge_capacity(facts.max_total_num_tokens)
        if log is None:
            self._remarks.append("the server's log is not known here: its own word and others' requests are told by less")
        return MeasureReport(
            endpoint=runs.endpoint,
            input_tokens=round(statistics.median(self._prompts)) if self._prompts else 0,
            output_tokens=request.output_tokens,
            sampling={"temperature": request.temperature, "ignore_eos": True},
            began=self._began,
            seconds=time.time() - self._began,
            batches=batches,
            invalid=self._invalid,
            covariates=dataclasses.replace(
                known, gpus=gpus, gpu_problem=sampler.problem, baseline_capacity=baseline.tokens, metrics=self._grown
            ),
            floor=dataclasses.replace(
                floor_inputs.floor_inputs(info, facts, self._environment(), self._home()), gpu_names=[gpu.name for gpu in gpus]
            ),
            warm_up=self._warm_up,
            remarks=self._remarks,
        )

    def _batch(self, runs: BatchRuns, size: int, facts: sglang.ServerFacts) -> BatchTiming:
        most = facts.arguments.get("max_running_requests")
        if isinstance(most, int) and size > most:
            return self._skipped(size, f"the server runs {most} requests at once (max_running_requests)")
        if self._deadline.passed:
            return self._skipped(size, f"the limit of {self._request.seconds:g} s ran out before it")
        try:
            self._tell("warm-up", f"batch {size}")
            self._warm_up.append(runs.warm_up(size, self._deadline))
            metrics = self._metrics()
            taken = self._repeat(runs, size)
            grown = server_word.growth(metrics, self._metrics())
        except HttpError as error:
            return self._skipped(size, str(error), Reason.BROKEN)
        self._add_up(grown)
        return self._judged(size, taken, grown, facts)

    def _skipped(self, size: int, why: str, reason: str = Reason.INCOMPLETE) -> BatchTiming:
        self._invalid.append(Invalid(reason, why, size))
        return BatchTiming(size, skipped=why)

    def _repeat(self, runs: BatchRuns, size: int) -> List[Run]:
        taken: List[Run] = []
        steps = self._steps(size)
        for number in range(self._request.repeats):
            longest = max((run.seconds for run in taken), default=0.0)
            if self._deadline.left() <= longest * 1.2:
                why = f"{len(taken)} of {self._request.repeats} repeats within the limit of {self._request.seconds:g} s"
                self._invalid.append(Invalid(Reason.INCOMPLETE, why, size))
                break
            self._tell("timing", f"batch {size}, repeat {number + 1} of {self._request.repeats}")
            run = runs.run(size, self._deadline)
            now = self._steps(size)
            taken.append(run if steps is None or now is None else dataclasses.replace(run, steps=now[len(steps) :]))
            steps = now
            self._windows.append((run.began, run.began + run.seconds))
        return taken

    def _judged(self, size: int, taken: Sequence[Run], grown: Mapping[str, float], facts: sglang.ServerFacts) -> BatchTiming:
        repeats: List[RepeatTiming] = []
        good: List[RepeatTiming] = []
        for run in taken:
            place = len(repeats) if run.timing is not None else None
            self._invalid += [Invalid(reason, detail, size, place) for reason, detail in run.problems]
            if run.timing is not None:
                repeats.append(run.timing)
                good += [] if run.problems else [run.timing]
        streams = [stream for run in taken for stream in run.streams]
        self._prompts += [stream.prompt_tokens for stream in streams if stream.prompt_tokens]
        asked = sum(stream.prompt_tokens or 0 for stream in streams)
        if all(len(run.streams) == size for run in taken):
            self._invalid += [Invalid(*found, size) for found in measure_validity.against_metrics(grown, len(streams), asked)]
        if not repeats:
            return BatchTiming(size, skipped="no repeat could be timed")
        counted = good or repeats
        per_token = interval([item.time_per_output_token for item in counted])
        assert per_token is not None
        timed = [server_word.Repeat(run.timing, run.streams, run.log, run.steps) for run in taken if run.timing is not None]
        own = server_word.words(size, timed, grown, whole_pages=_page(facts) > 1)
        return BatchTiming(
            batch_size=size,
            repeats=repeats,
            time_to_first_token=interval([statistics.median(item.time_to_first_token) for item in counted]),
            time_per_output_token=per_token,
            tokens_per_second_per_stream=interval([item.tokens_per_second_per_stream for item in counted]),
            tokens_per_second=interval([item.tokens_per_second for item in counted]),
            own_words=own,
            disagreements=disagreements(size, own, [item.timing for item in timed]),
            remarks=_remarks(counted),
        )

    def _score(self, when: str) -> correctness.Scores:
        self._tell("answers", f"the fixed texts are scored {when} the timing")
        seconds = min(self._request.policy.verify, max(1.0, self._deadline.left()))
        return correctness.score(self._client, seconds, self._request.expectations)

    def _judge_answers(self, old: Optional[correctness.Scores], new: correctness.Scores, when: str) -> None:
        verdicts = correctness.compare(old, new, self._request.policy)
        self._invalid += measure_validity.against_answers(verdicts, when)
        self._remarks += [f"{when}: {item.check}: {item.detail}" for item in verdicts if item.outcome == wire.Outcome.WARN]

    def _judge_server(self) -> None:
        now = find_server(self._request.port)
        if now is None or now.main.id != self._server.main.id:
            self._invalid.append(Invalid(Reason.RESTARTED, f"process {self._server.main.pid} no longer serves"))

    def _judge_capacity(self, now: Optional[int]) -> Known:
        known = self._baseline()
        found = measure_validity.against_capacity(known, now, self._request.policy.capacity_warn)
        self._invalid += [] if found is None else [found]
        return known

    def _baseline(self) -> Known:
        """The room that the baseline has: the operator's, else that of the launch verified before this one."""
        if self._request.baseline_capacity is not None:
            return Known(self._request.baseline_capacity, "the baseline")
        return kept_capacity(self._folder, self._server, self._record)

    def _gpus(self, sampler: gpu_samples.GpuSampler) -> List[GpuSeries]:
        rows = gpu_samples.during(sampler.rows, self._windows)
        named = {row.uuid: wire.Gpu(row.sample.index, row.uuid, row.name, "", 0, 0) for row in rows}
        gpus = gpu_samples.series(rows, wanted_gpus(sorted(named.values(), key=lambda gpu: gpu.index), self._environment()))
        self._invalid += measure_validity.against_gpus(gpus)
        return gpus

    def _info(self) -> Dict[str, Any]:
        info = self._client.get_json("/server_info", _INFO_SECONDS)
        return info if isinstance(info, dict) else {}

    def _steps(self, size: int) -> Optional[List[float]]:
        """All that step_time_dict has of a batch size so far; None where it is not recorded."""
        times = server_word.step_times(self._info())
        return None if times is None else times.get(size, [])

    def _metrics(self) -> Dict[str, float]:
        answer = self._client.get("/metrics", _INFO_SECONDS)
        return server_word.counters(answer.text()) if answer.status == 200 else {}

    def _add_up(self, grown: Mapping[str, float]) -> None:
        for name, value in grown.items():
            if name in _TOLD:
                self._grown[name] = self._grown.get(name, 0.0) + value

    def _log(self) -> Optional[Path]:
        """The launch's log; of a server that somebody else has started, the file that its output goes to."""
        path = self._folder.launch_folder(self._server.launch_id or "") / "server.log"
        if self._server.launch_id is not None and path.exists():
            return path
        try:
            output = Path(os.readlink(f"/proc/{self._server.main.pid}/fd/1"))
        except OSError:
            return None
        return output if output.is_file() else None

    def _environment(self) -> Dict[str, str]:
        return dict(self._record.environment) if self._record is not None else read_environment(self._server.main.pid) or {}

    def _home(self) -> str:
        try:
            return find_account(user_name(self._server.main.user_id)).home
        except AgentRefusal:
            return os.path.expanduser("~")

    def _tell(self, phase: str, detail: str) -> None:
        self._emit(wire.EventKind.PROGRESS, wire.Progress(_STATE, phase, time.time() - self._began, detail))


def _page(facts: sglang.ServerFacts) -> int:
    value = facts.arguments.get("page_size")
    return value if isinstance(value, int) and value > 0 else 1


def _remarks(repeats: Sequence[RepeatTiming]) -> List[str]:
    """What weakens the figures without making them wrong."""
    found = []
    values = [item.time_per_output_token for item in repeats]
    spread = (max(values) - min(values)) / statistics.median(values)
    if spread > _WIDE_SPREAD:
        found.append(f"the repeats spread by {spread:.0%} of their median")
    waited = max((item.waited or 0.0) / item.window for item in repeats)
    if waited > _OWN_WAIT:
        found.append(f"the reader itself waited for a processor for {waited:.1%} of a window: the machine is busy")
    return found
