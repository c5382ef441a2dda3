"""What the state machine does to the world: :class:`steps.Steps` on a real box."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from orchestrator.agent import (
    boot_unit,
    capacity,
    clean,
    correctness,
    decode,
    drain,
    gate_firewall,
    http,
    page_cache,
    previous,
    ready,
    sglang,
    stopping,
    survey,
    systemd,
    wire,
)
from orchestrator.agent.box_staging import BoxStaging
from orchestrator.agent.clean import Claims
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import argument_value
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.driver import kept_facts
from orchestrator.agent.kernel_caches import COLD_FACT, why_cold
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.known_launches import never_verified
from orchestrator.agent.launch_files import find_account
from orchestrator.agent.managers import boot_unit_name
from orchestrator.agent.measure_baseline import keep_scores
from orchestrator.agent.phases import FACT_PREFIX
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import Leftover, Server, find_leftovers, find_server, find_servers, remaining_members, scan
from orchestrator.agent.procfs import Process, has_ended, read_process
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.runner import Runner, choose_runner, runner_of
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed, Previous, Ready, Recalled, Report, Staged, Stopped
from orchestrator.agent.usual import read_loads, usual_phases
from orchestrator.agent.wire import OrderKind, State, Verdict
from orchestrator.agent.wire_status import Health

_STILL_SECONDS = 60.0
"""For proving once more that a launch serves."""
_LAST_ANSWER = "last-answer"
_STARTED_SECONDS = 2.0
_REST_SECONDS = 0.1
"""For what is left of the old server when it has done all that matters: main's own end is mostly that of its imports."""


class BoxSteps:
    """One order's steps. It remembers the server that was found from :meth:`find` to :meth:`clean`."""

    def __init__(self, order: wire.Order, folder: StateFolder, order_folder: Path, learn: Callable[[wire.Launch], None]) -> None:
        self._order = order
        self._folder = folder
        self._order_folder = order_folder
        self._learn = learn
        self._server: Optional[Server] = None
        self._previous: Optional[Previous] = None
        self._claims = Claims(order.port)
        self._old_scores: Optional[correctness.Scores] = None
        self._old_version: Optional[str] = None
        self._new_scores: Dict[str, correctness.Scores] = {}
        self._staging = BoxStaging(order, folder, order_folder, self._log, self._why_cold)

    def find(self) -> Optional[wire.ServerInfo]:
        self._server = find_server(self._order.port)
        return None if self._server is None else survey.describe(self._server, self._folder)

    def capture(self) -> Previous:
        captured = previous.capture(self._found(), self._folder, self._order.service, self._order.port)
        self._learn(captured.launch)
        crash_point("before the way back is kept")
        write_private(self._order_folder / "previous.json", json.dumps({"launch": wire.to_json(captured.launch), "unit": captured.unit}))
        if captured.unit is not None:
            boot_unit.keep_rival(self._folder, captured.unit)
        crash_point("the way back is kept")
        self._previous = captured
        return captured

    def observe(self, previous: Previous) -> Observed:
        if self._takes_no_requests():
            return Observed(remark="this node takes no requests: what the server answers is looked at on the node of rank 0")
        health = survey.health_of(self._found(), self._folder)
        if health != Health.SERVING:
            self._old_scores = correctness.Scores(rejected=f"it did not serve, it was {health}")
            return Observed(remark="the old server does not serve, so there is nothing to compare with")
        client = _client(previous.launch)
        self._old_scores = correctness.score(client, self._order.policy.verify, self._order.expectations)
        try:
            facts = sglang.server_facts(client)
            self._old_version = facts.version
            return Observed(facts.max_total_num_tokens)
        except http.HttpError as error:
            return Observed(remark=f"/server_info of the old server: {error}")

    def remember(self, observed: Observed, baseline: Optional[wire.DecodeTiming]) -> None:
        self._claims = clean.take_stock(self._found())
        kept = {
            "observed": wire.to_json(observed),
            "baseline": wire.to_json(baseline),
            "scores": wire.to_json(self._old_scores),
            "claims": clean.claims_to_json(self._claims),
        }
        write_private(self._order_folder / "before.json", json.dumps(kept))
        crash_point("what served is kept")

    def recall(self) -> Optional[Recalled]:
        self._previous = _read_previous(self._order_folder / "previous.json")
        if self._previous is None:
            return None
        self._learn(self._previous.launch)
        try:
            kept = json.loads((self._order_folder / "before.json").read_text(encoding="utf-8"))
            self._claims = clean.claims_from_json(kept["claims"])
            self._old_scores = None if kept["scores"] is None else wire.from_json(correctness.Scores, kept["scores"])
            baseline = None if kept["baseline"] is None else wire.from_json(wire.DecodeTiming, kept["baseline"])
            return Recalled(self._previous, wire.from_json(Observed, kept["observed"]), baseline)
        except (OSError, ValueError, KeyError, TypeError):
            return Recalled(self._previous)

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        log = self._log(launch)
        return decode.time_decode(launch.host, launch.port, previous.api_key(launch), self._order.policy, report, log)

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        told = _TellsStopping(report, enter)
        comes_back = boot_unit.switch_off(self._folder)
        if not self.old_lives():
            self._end_comers(str(self._order.launch_id))
        try:
            return self._stop(told)
        except Exception:
            if comes_back and not told.begun:
                boot_unit.switch_on(self._folder)
            raise

    def _stop(self, told: "_TellsStopping") -> Stopped:
        server = self._server if self._server is not None else self._still_there()
        if server is None:
            return self._end_rest(told)
        launch = None if self._previous is None else self._previous.launch
        client = http.Client(self._order.port, survey.address_of(server), None if launch is None else previous.api_key(launch))
        admin = http.Client(self._order.port, survey.address_of(server), None if launch is None else previous.admin_key(launch))
        with drain.LastAnswer(client, self._order_folder / _LAST_ANSWER) as last:
            stopped = stopping.stop_server(
                server,
                self._order.policy,
                told,
                load=lambda: drain.load_of(client),
                abort=lambda: drain.abort_all(admin),
                exit_status=self._exit_status_of(server),
                version=self._old_version,
                rest=self._rest(launch) if self._staging.waits else None,
            )
        return Stopped(
            stopped.summary,
            last_answer=last.moment,
            answered_at=None if last.moment is None else time.time() - (time.monotonic() - last.moment),
            lost_requests=stopped.requests_lost,
            evidence=[f"{stage.name}: {stage.seconds:.2f} s" for stage in stopped.stages] + stopped.killed + stopped.not_awaited,
        )

    def _rest(self, launch: Optional[wire.Launch]) -> stopping.Rest:
        """Nothing answers while another server waits at its gate, so what only tidies up is not waited for."""
        if launch is None:
            return stopping.Rest(_REST_SECONDS)
        on_gpus = argument_value(launch.arguments, "--device") != "cpu"
        return stopping.Rest(_REST_SECONDS if on_gpus else 0.0, releases=on_gpus, done=drain.SaysItIsDone(self._log(launch)))

    def _still_there(self) -> Optional[Server]:
        """The server that a stop was cut off in, if its main process still lives."""
        return next((server for server in find_servers(scan()) if server.main.id == self._order.old), None)

    def _end_rest(self, report: Report) -> Stopped:
        """End what a stop that was cut off has left of a server whose main process has gone."""
        ties = self._claims.ties
        if ties is None:
            return Stopped("it had ended when the stop was taken up again", drain.read_last_answer(self._order_folder / _LAST_ANSWER))
        ended = stopping.stop_members(lambda: remaining_members(ties), self._order.policy, report)
        last_answer = drain.read_last_answer(self._order_folder / _LAST_ANSWER)
        return Stopped(f"{ended.summary}, in a stop that was taken up again", last_answer, evidence=ended.killed)

    def _exit_status_of(self, server: Server) -> Optional[Callable[[], Any]]:
        record = self._folder.read_launch(server.launch_id) if server.launch_id is not None else None
        return None if record is None else runner_of(self._folder, record).exit_status

    def clean(self, report: Report) -> List[Verdict]:
        if self._order.kind == OrderKind.TEARDOWN:
            boot_unit.remove(self._folder)
            self._staging.end_strays(report)
            gate_firewall.sweep()
        return self._check_clean(self._claims, report)

    def _check_clean(self, claims: Claims, report: Report, stopped: Optional[wire.Launch] = None) -> List[Verdict]:
        """What waits at a gate meanwhile stays, with what it holds."""
        return clean.check_clean(dataclasses.replace(claims, beside=self._staging.beside(stopped)), self._order.policy, report)

    def leftovers(self) -> List[str]:
        return [str(leftover.process) for leftover in self._own_leftovers()]

    def end_leftovers(self, report: Report) -> List[Verdict]:
        boot_unit.switch_off(self._folder)
        stopping.stop_members(lambda: [leftover.process for leftover in self._own_leftovers()], self._order.policy, report)
        return clean.check_clean(Claims(self._order.port), self._order.policy, report)

    def _own_leftovers(self) -> List[Leftover]:
        known = set(self._folder.launch_ids())
        return [leftover for leftover in find_leftovers() if leftover.launch_id in known]

    def warm(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> List[Verdict]:
        return page_cache.warm(launch, self._folder, self._order.policy, report, pulse)

    def room(self, launch: wire.Launch) -> Verdict:
        return self._staging.room(launch)

    def with_gate(self, launch: wire.Launch) -> wire.Launch:
        return self._staging.with_gate(launch)

    def stage(self, launch: wire.Launch) -> Dict[str, Any]:
        return self._staging.stage(launch)

    def wait_gate(self, launch: wire.Launch, report: Report, pulse: Callable[[], None]) -> Staged:
        return self._staging.wait_gate(launch, report, pulse, self.old_lives)

    def still_staged(self, launch: wire.Launch) -> None:
        self._staging.still_staged(launch)

    def old_lives(self) -> bool:
        old = self._order.old if self._server is None else self._server.main.id
        process = None if old is None else read_process(old.pid)
        return process is not None and process.id == old and not has_ended(process)

    def activate(self, launch: wire.Launch, report: Report) -> None:
        if boot_unit.switch_off(self._folder):
            self._end_comers(launch.launch_id)
        self._staging.activate(launch, report)

    def unstage(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        return self._staging.unstage(launch, report)

    def start(self, launch: wire.Launch) -> Dict[str, Any]:
        if boot_unit.switch_off(self._folder):
            self._end_comers(launch.launch_id)
        runner = choose_runner(self._folder, launch)
        back = runner.members()
        if back:  # a verified launch, which a restart of the machine has started before us
            return {"runner": boot_unit_name(launch.service), "main": back[0].id, "limits": []}
        started = runner.start()
        return {"runner": started.name, "main": started.main, "limits": started.facts}

    def _end_comers(self, launch_id: str) -> None:
        """End an earlier launch of the service that systemd has started again after we looked, while it could still do so.

        `launch_id` is the one that takes its place.
        """
        for server in find_servers(scan()):
            record = self._folder.read_launch(server.launch_id) if server.launch_id not in (None, launch_id) else None
            if record is not None and record.service == self._order.service:
                stopping.stop_members(runner_of(self._folder, record).members, self._order.policy, lambda *_: None)

    def start_unit(self, unit: str) -> None:
        systemd.start_unit(unit)

    def is_started(self, target: Previous) -> bool:
        if target.unit is not None:
            return systemd.show(target.unit, "ActiveState").get("ActiveState") in ("active", "activating", "reloading")
        runner = runner_of(self._folder, target.launch)
        # The start may have been handed to systemd, or to the waiter, at the very moment in which this program was ended.
        return wait_until(lambda: bool(runner.members()) or runner.exit_status() is not None, Deadline(_STARTED_SECONDS), 0.1)

    def wait_ready(self, target: Previous, report: Report, enter: Callable[[str, str], None], pulse: Callable[[], None]) -> Ready:
        return self._prove(target, self._order.policy, report, lambda: enter(State.ANSWERING, "first good generation"), pulse)

    def usual(self, launch: wire.Launch) -> Dict[str, wire.UsualPhase]:
        return usual_phases(read_loads(self._folder), launch.backend, cold=bool(self._why_cold(launch)))

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        policy = dataclasses.replace(self._order.policy, generations=1, load_total=_STILL_SECONDS)
        self._prove(Previous(launch), policy, report, lambda: None)

    def _prove(
        self,
        target: Previous,
        policy: wire.Policy,
        report: Report,
        on_first_answer: Callable[[], None],
        pulse: Callable[[], None] = lambda: None,
    ) -> Ready:
        launch = target.launch
        runner: Optional[Runner] = None if target.unit else runner_of(self._folder, launch)
        members = (lambda: _unit_members(str(target.unit))) if runner is None else runner.members
        cold = self._why_cold(launch)
        proven = ready.wait_ready(
            launch,
            members,
            None if runner is None else self._log(launch),
            policy,
            report,
            (lambda: None) if runner is None else runner.exit_status,
            on_first_answer=on_first_answer,
            pulse=pulse,
            cold=cold,
        )
        facts = [wire.Fact(f"{name} (requested)", value, "arguments") for name, value in proven.requested.items()]
        facts += [wire.Fact(f"{name} (resolved)", value, "server log") for name, value in proven.resolved.items()]
        facts += [wire.Fact(f"{FACT_PREFIX}{name}", round(seconds, 2), "server log") for name, seconds in proven.phases.items()]
        facts.append(wire.Fact(COLD_FACT, cold, "folders of the caches"))
        return Ready(proven.first_answer, Observed(proven.max_total_num_tokens, facts))

    def _why_cold(self, launch: wire.Launch) -> List[str]:
        """A backend that was never verified here needs kernels that no cache holds yet."""
        try:
            account = find_account(launch.user)
        except AgentRefusal:
            return []
        reasons = why_cold(launch, account.home, account.name)
        if launch.launch_id == self._order.launch_id and never_verified(self._folder, launch.backend):
            reasons.append(f"{launch.backend or 'this server'} was never verified here")
        return reasons

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> List[Verdict]:
        if self._takes_no_requests():
            return []
        report("scoring", "the fixed texts are scored")
        scores = correctness.score(_client(launch), self._order.policy.verify, self._order.expectations)
        if scores.rejected is not None or scores.greedy_rejected is not None:
            self.still_serves(launch, report)
        self._new_scores[launch.launch_id] = scores
        verdicts = correctness.compare(self._old_scores, scores, self._order.policy)
        return [*verdicts, self._judge_capacity(launch, old, new.capacity)]

    def _takes_no_requests(self) -> bool:
        """Of a server over several nodes only rank 0 does."""
        return self._order.group is not None and self._order.group.rank > 0

    def _judge_capacity(self, launch: wire.Launch, old: Observed, now: Optional[int]) -> Verdict:
        """Against the last verified launch, and against the old server where nothing was ever verified."""
        launch_id = self._folder.verified_launch_id()
        facts = self._folder.verified_facts(launch_id) if launch_id is not None else None
        verified = facts.get("capacity") if isinstance(facts, dict) else None
        record = self._folder.read_launch(launch_id) if launch_id is not None else None
        if isinstance(verified, int):
            known = capacity.Known(verified, f"the last verified launch, {launch_id}")
        else:
            known = capacity.Known(old.capacity, "the old server")
            record = None if self._previous is None else self._previous.launch
        if record is not None:
            known = known._replace(changed=capacity.changed_beyond_backend(record, launch), free=self._free_at_first(record))
        return capacity.verdict(known, now, self._order.policy, self._free_at_first(launch))

    def _free_at_first(self, launch: wire.Launch) -> Optional[float]:
        log = self._log(launch)
        return None if log is None else capacity.free_at_first(capacity.read_head(log))

    def stop_launch(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        boot_unit.switch_off(self._folder)
        runner = runner_of(self._folder, launch)
        server = next((found for found in find_servers(scan()) if found.launch_id == launch.launch_id), None)
        claims = Claims(self._order.port) if server is None else clean.take_stock(server)
        stopping.stop_members(runner.members, self._order.policy, report)
        verdicts = self._check_clean(claims, report, launch)
        self._staging.forget(launch)
        gate_firewall.sweep()
        return verdicts

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        """With kernel and driver, so that a diagnosis can say what has changed since, and with what it answered, for timings of it."""
        kept = dataclasses.replace(observed, facts=[*observed.facts, *kept_facts(KernelFiles())])
        self._folder.mark_verified(launch.launch_id, kept)
        keep_scores(self._folder, launch.launch_id, self._new_scores.get(launch.launch_id))

    def come_back(self, launch: wire.Launch) -> List[Verdict]:
        gate_firewall.sweep()
        if not boot_unit.wanted(self._order.boot):
            boot_unit.remove(self._folder)
            return []
        pids = [member.pid for member in runner_of(self._folder, launch).members()]
        program = boot_unit.waiter_command(self._folder, launch.launch_id)
        return boot_unit.install(self._folder, launch, boot_unit.device_nodes(pids), program)

    def new_launch_id(self) -> str:
        """With chance in it: a clock that is set back comes to the same second twice."""
        return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}-back"

    def _log(self, launch: wire.Launch) -> Optional[Path]:
        path = self._folder.launch_folder(launch.launch_id) / "server.log"
        return path if launch.launch_id and path.exists() else None

    def _found(self) -> Server:
        if self._server is None:
            raise AssertionError("find() has found no server")
        return self._server


def _read_previous(path: Path) -> Optional[Previous]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Previous(wire.from_json(wire.Launch, kept["launch"]), kept["unit"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _client(launch: wire.Launch) -> http.Client:
    return http.Client(launch.port, launch.host, previous.api_key(launch))


def _unit_members(unit: str) -> List[Process]:
    main = systemd.main_process(unit)
    if main is None:
        return []
    table = scan()
    return [process for process in table.values() if process.cgroup == main.cgroup and process.state not in "ZX"]


class _TellsStopping:
    """A stop's report that also enters STOPPING once draining has ended."""

    def __init__(self, report: Report, enter: Callable[[str, str], None]) -> None:
        self._report = report
        self._enter = enter
        self._entered = False
        self.begun = False
        """Whether anything may have been signalled."""

    def __call__(self, phase: str, detail: str) -> None:
        self.begun = True
        if phase != stopping.Phase.DRAINING and not self._entered:
            self._entered = True
            self._enter(State.STOPPING, detail or phase)
        self._report(phase, detail)
