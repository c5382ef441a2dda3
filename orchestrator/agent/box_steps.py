"""What the state machine does to the world: :class:`steps.Steps` on a real box."""

import dataclasses
import json
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any, Callable, Dict, List, Optional

from orchestrator.agent import capacity, clean, correctness, decode, http, previous, ready, sglang, stopping, survey, systemd, wire
from orchestrator.agent.processes import Leftover, Server, find_leftovers, find_server, find_servers, scan
from orchestrator.agent.procfs import Process
from orchestrator.agent.runner import Runner, choose_runner, runner_of
from orchestrator.agent.state_folder import StateFolder, write_private
from orchestrator.agent.steps import Observed, Previous, Ready, Report, Stopped
from orchestrator.agent.wire import State, Verdict

_SCORE_SECONDS = 60.0
"""For each scored text and each greedy output."""
_ANSWER_EVERY = 0.1
_ANSWER_SECONDS = 1.0


class BoxSteps:
    """One order's steps. It remembers the server that was found from :meth:`find` to :meth:`clean`."""

    def __init__(self, order: wire.Order, folder: StateFolder, order_folder: Path, learn: Callable[[wire.Launch], None]) -> None:
        self._order = order
        self._folder = folder
        self._order_folder = order_folder
        self._learn = learn
        self._server: Optional[Server] = None
        self._previous: Optional[Previous] = None
        self._claims = clean.Claims(order.port)
        self._old_scores: Optional[correctness.Scores] = None

    def find(self) -> Optional[wire.ServerInfo]:
        self._server = find_server(self._order.port)
        return None if self._server is None else survey.describe(self._server, self._folder)

    def capture(self) -> Previous:
        captured = previous.capture(self._found(), self._folder, self._order.service, self._order.port)
        self._learn(captured.launch)
        write_private(self._order_folder / "previous.json", json.dumps({"launch": wire.to_json(captured.launch), "unit": captured.unit}))
        self._previous = captured
        return captured

    def observe(self, previous: Previous) -> Observed:
        health = survey.health_of(self._found(), self._folder)
        if health != sglang.Health.SERVING:
            self._old_scores = correctness.Scores(rejected=f"it did not serve, it was {health}")
            return Observed(remark="the old server does not serve, so there is nothing to compare with")
        client = _client(previous.launch)
        self._old_scores = correctness.score_texts(client, _SCORE_SECONDS)
        try:
            return Observed(sglang.server_facts(client).max_total_num_tokens)
        except http.HttpError as error:
            return Observed(remark=f"/server_info of the old server: {error}")

    def measure(self, launch: wire.Launch, report: Report) -> wire.DecodeTiming:
        log = self._log(launch)
        return decode.time_decode(launch.host, launch.port, previous.api_key(launch), self._order.policy, report, log)

    def stop(self, report: Report, enter: Callable[[str, str], None]) -> Stopped:
        server = self._found()
        launch = None if self._previous is None else self._previous.launch
        client = http.Client(self._order.port, survey.address_of(server), None if launch is None else previous.api_key(launch))
        self._claims = clean.take_stock(server)
        told = _TellsStopping(report, enter)
        with _LastAnswer(client) as last:
            stopped = stopping.stop_server(
                server,
                self._order.policy,
                told,
                load=lambda: _load(client),
                abort=lambda: _abort(client),
                exit_status=self._exit_status_of(server),
            )
        return Stopped(
            stopped.summary,
            last_answer=last.moment,
            lost_requests=stopped.requests_left,
            evidence=[f"{stage.name}: {stage.seconds:.2f} s" for stage in stopped.stages] + stopped.killed,
        )

    def _exit_status_of(self, server: Server) -> Optional[Callable[[], Any]]:
        record = self._folder.read_launch(server.launch_id) if server.launch_id is not None else None
        return None if record is None else runner_of(self._folder, record).exit_status

    def clean(self, report: Report) -> List[Verdict]:
        return clean.check_clean(self._claims, self._order.policy, report)

    def leftovers(self) -> List[str]:
        return [str(leftover.process) for leftover in self._own_leftovers()]

    def end_leftovers(self, report: Report) -> List[Verdict]:
        stopping.stop_members(lambda: [leftover.process for leftover in self._own_leftovers()], self._order.policy, report)
        return clean.check_clean(clean.Claims(self._order.port), self._order.policy, report)

    def _own_leftovers(self) -> List[Leftover]:
        known = set(self._folder.launch_ids())
        return [leftover for leftover in find_leftovers() if leftover.launch_id in known]

    def start(self, launch: wire.Launch) -> Dict[str, Any]:
        started = choose_runner(self._folder, launch).start()
        return {"runner": started.name, "main": started.main, "limits": started.facts}

    def start_unit(self, unit: str) -> None:
        systemd.start_unit(unit)

    def wait_ready(self, target: Previous, report: Report, enter: Callable[[str, str], None]) -> Ready:
        return self._prove(target, self._order.policy, report, lambda: enter(State.ANSWERING, "first good generation"))

    def still_serves(self, launch: wire.Launch, report: Report) -> None:
        policy = dataclasses.replace(self._order.policy, generations=1, load_total=_SCORE_SECONDS)
        self._prove(Previous(launch), policy, report, lambda: None)

    def _prove(self, target: Previous, policy: wire.Policy, report: Report, on_first_answer: Callable[[], None]) -> Ready:
        launch = target.launch
        runner: Optional[Runner] = None if target.unit else runner_of(self._folder, launch)
        members = (lambda: _unit_members(str(target.unit))) if runner is None else runner.members
        proven = ready.wait_ready(
            launch,
            members,
            None if runner is None else self._log(launch),
            policy,
            report,
            (lambda: None) if runner is None else runner.exit_status,
            on_first_answer=on_first_answer,
        )
        facts = [wire.Fact(f"{name} (requested)", value, "arguments") for name, value in proven.requested.items()]
        facts += [wire.Fact(f"{name} (resolved)", value, "server log") for name, value in proven.resolved.items()]
        facts += [wire.Fact(f"phase.{name}", round(seconds, 2), "server log") for name, seconds in proven.phases.items()]
        return Ready(proven.first_answer, Observed(proven.max_total_num_tokens, facts))

    def verify(self, launch: wire.Launch, old: Observed, new: Observed, report: Report) -> List[Verdict]:
        report("scoring", "the fixed texts are scored")
        scores = correctness.score_texts(_client(launch), _SCORE_SECONDS)
        if scores.rejected is not None:
            self.still_serves(launch, report)
        verdicts = correctness.compare(self._old_scores, scores, self._order.policy.likelihood_tolerance)
        return [*verdicts, self._judge_capacity(launch, old, new.capacity)]

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
            known = known._replace(changed=capacity.changed_beyond_backend(record, launch))
        return capacity.verdict(known, now, self._order.policy)

    def stop_launch(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        runner = runner_of(self._folder, launch)
        server = next((found for found in find_servers(scan()) if found.launch_id == launch.launch_id), None)
        claims = clean.Claims(self._order.port) if server is None else clean.take_stock(server)
        stopping.stop_members(runner.members, self._order.policy, report)
        return clean.check_clean(claims, self._order.policy, report)

    def mark_verified(self, launch: wire.Launch, observed: Observed) -> None:
        self._folder.mark_verified(launch.launch_id, observed)

    def new_launch_id(self) -> str:
        return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-back"

    def _log(self, launch: wire.Launch) -> Optional[Path]:
        path = self._folder.launch_folder(launch.launch_id) / "server.log"
        return path if launch.launch_id and path.exists() else None

    def _found(self) -> Server:
        if self._server is None:
            raise AssertionError("find() has found no server")
        return self._server


def _client(launch: wire.Launch) -> http.Client:
    return http.Client(launch.port, launch.host, previous.api_key(launch))


def _load(client: http.Client) -> Optional[int]:
    """Requests on a server that is being stopped: none any more once it has closed its port."""
    try:
        return sglang.running_and_queued(client, _ANSWER_SECONDS)
    except http.RefusedError:
        return 0


def _abort(client: http.Client) -> None:
    sglang.abort_all(client, _ANSWER_SECONDS)


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

    def __call__(self, phase: str, detail: str) -> None:
        if phase != stopping.Phase.DRAINING and not self._entered:
            self._entered = True
            self._enter(State.STOPPING, detail or phase)
        self._report(phase, detail)


class _LastAnswer:
    """Asks a server small questions while it is being stopped, so that the moment of its last good answer is known.

    /v1/models answers at once, and as long as new requests are taken.
    """

    def __init__(self, client: http.Client) -> None:
        self.moment: Optional[float] = None
        self._client = client
        self._ended = Event()
        self._thread = Thread(target=self._ask, name="last-answer", daemon=True)

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                if self._client.get("/v1/models", _ANSWER_SECONDS).status == 200:
                    self.moment = time.monotonic()
            except http.HttpError:
                pass
            self._ended.wait(_ANSWER_EVERY)

    def __enter__(self) -> "_LastAnswer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
