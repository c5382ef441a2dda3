"""Proving that a launch serves: this launch, not an old server on its port and not a listener that never answers.

Ready means all of: the listening socket belongs to a process of the launch; every scheduler lives; /server_info shows what
was asked for; the server has left its warm-up; and N real generations in a row came back. The log only tells how far a
load is, and why it failed: a server that could not bind its port logs "ready to roll" too.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from orchestrator.agent import sglang, wire
from orchestrator.agent.clock import steady, wait_set
from orchestrator.agent.failure_signatures import Category
from orchestrator.agent.generation import BadGeneration, generate
from orchestrator.agent.http import Client, HttpError, StatusError, listens
from orchestrator.agent.port_holders import foreign_listener
from orchestrator.agent.procfs import Process, listening_pids
from orchestrator.agent.steps import LaunchFailed
from orchestrator.agent.watch import ExitStatus, LoadWatch

TICK = 0.03
"""How often a load is looked at: a refused connection costs nothing."""

_PAUSE = 0.1
"""After a wrong answer."""
_TOKENS = 4
_ATTEMPTS = 3
_UNOWNED_PATIENCE = 5.0
_COUNT_PATIENCE = 10.0
_PROMPT = "The capital city of France is"


@dataclass(frozen=True)
class ReadyReport:
    """What was proven. `first_answer` and `ready` are monotonic; `phases` seconds; `resolved` what the log tells of the kernels.

    /server_info is no source for `resolved`: it echoes the flag, whatever runs.
    """

    first_answer: float
    ready: float
    version: Optional[str]
    max_total_num_tokens: Optional[int]
    schedulers: int
    requested: Dict[str, str] = field(default_factory=dict)
    resolved: Dict[str, str] = field(default_factory=dict)
    phases: Dict[str, float] = field(default_factory=dict)
    remarks: List[str] = field(default_factory=list)


def wait_ready(
    launch: wire.Launch,
    members: Callable[[], List[Process]],
    log: Optional[Path],
    policy: wire.Policy,
    report: Callable[[str, str], None],
    exit_status: Callable[[], Optional[ExitStatus]],
    *,
    owners: Optional[Callable[[], Set[int]]] = None,
    on_first_answer: Callable[[], None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
    version: Optional[str] = None,
    cold: Sequence[str] = (),
) -> ReadyReport:
    """Follow a load until the launch is proven ready.

    Args:
        launch: what was started.
        members: all live processes of the launch.
        log: the server's output; None where nobody keeps it.
        policy: ``load_total``, ``load_stall``, ``phases`` and ``generations`` are used.
        report: told of each phase and detail.
        exit_status: of the main process, None while it lives or when nobody records it.
        owners: pids that listen on the launch's port; by default from /proc.
        on_first_answer: called at the first good generation.
        pulse: called each tick; what it raises ends the wait.
        version: SGLang's, as installed.
        cold: why the caches of compiled kernels are cold; empty when they are warm.

    Raises:
        LaunchFailed: it died, hung, ran out of time, serves something else, or another process holds its port.
    """
    watch = LoadWatch(launch, members, log, policy, report, exit_status, cold)
    watch.version = version
    kind = _Proof if sglang.node_rank(launch.arguments) == 0 else _RankProof
    proof = kind(launch, policy.generations, watch, owners or (lambda: listening_pids(launch.port)), on_first_answer)
    report(watch.tracker.phase, "")
    try:
        while True:
            pulse()
            watch.look(steady.now())
            proven = proof.advance()
            if proven is not None:
                return proven
    finally:
        watch.close()


class _Question:
    """One question asked in the background, so that a server that dies or hangs meanwhile is still seen to."""

    def __init__(self, ask: Callable[[], Any], take: Callable[[Any], Optional[ReadyReport]]) -> None:
        self.take = take
        self._ask = ask
        self._done = Event()
        self._answer: Any = None
        self._error: Optional[Exception] = None
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:  # noqa: BLE001 - raised again where the answer is taken
            self._error = error
        finally:
            self._done.set()

    def wait(self, seconds: float) -> bool:
        return wait_set(self._done, seconds)

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer


class _Proof:
    """The questions that prove a launch, in their order: /server_info, out of the warm-up, N generations."""

    def __init__(
        self,
        launch: wire.Launch,
        generations: int,
        watch: LoadWatch,
        owners: Callable[[], Set[int]],
        on_first_answer: Callable[[], None],
    ) -> None:
        self._launch = launch
        self._generations = generations
        self._watch = watch
        self._owners = owners
        self._on_first_answer = on_first_answer
        self._client = Client(launch.port, launch.host, _api_key(launch))
        self._question: Optional[_Question] = None
        self._not_before = 0.0
        self._unowned_since: Optional[float] = None
        self._short_since: Optional[float] = None
        self._facts: Optional[sglang.ServerFacts] = None
        self._remarks: List[str] = []
        self._admitted = False
        self._tried_early = False
        self._good = 0
        self._bad: List[str] = []
        self._first_answer = 0.0

    def advance(self) -> Optional[ReadyReport]:
        """Spend at most a tick on the next step of the proof; the report when it is whole.

        Raises:
            LaunchFailed: what answers is not what was launched, or does not answer rightly.
        """
        if self._question is None:
            # Looking whose port it is takes a scan of /proc: at the beginning, at the end, and after a wrong answer.
            seen = self._facts is not None and not self._bad
            if steady.now() < self._not_before or not (seen or self._port_is_ours()):
                time.sleep(TICK)
                return None
            self._question = self._next_question()
        if not self._question.wait(TICK):
            return None
        question, self._question = self._question, None
        try:
            return question.take(question.answer())
        except (HttpError, BadGeneration) as error:
            self._note_bad(error)
            return None
        finally:
            self._watch.standing = ", ".join([f"{self._good} good generations", *self._bad[-1:]])

    def _port_is_ours(self) -> bool:
        """Whether the port's listener is a process of the launch.

        Raises:
            LaunchFailed: it is somebody else's.
        """
        if not listens(self._launch.host, self._launch.port):
            self._unowned_since = None
            return False
        owners = self._owners()
        now = steady.now()
        # Read after the owners: a worker that has just bound the port must be among them.
        self._watch.read_members(now)
        if owners & {process.pid for process in self._watch.members}:
            self._unowned_since = None
            return True
        if not owners:
            self._unowned_since = now if self._unowned_since is None else self._unowned_since
            if now - self._unowned_since < _UNOWNED_PATIENCE:
                return False
        raise LaunchFailed(foreign_listener(self._launch.port, sorted(owners)))

    def _next_question(self) -> _Question:
        if self._facts is None:
            return _Question(lambda: sglang.server_facts(self._client, 30.0), self._take_facts)
        # SGLang answers generations while it still warms up (0.5.9 to 0.5.23), so one is tried before that is waited for.
        if not self._admitted and (self._first_answer or self._tried_early):
            return _Question(lambda: _admits(self._client), self._take_admitted)
        self._tried_early = True
        # As long as it takes: the first one may compile kernels for minutes. The watch ends it when nothing moves.
        return _Question(lambda: generate(self._client, _prompt(self._launch), _TOKENS, 86400.0), self._take_generation)

    def _take_facts(self, facts: sglang.ServerFacts) -> None:
        echo = sglang.compare_echo(facts, self._launch.arguments)
        if echo.wrong:
            summary = f"the server does not show what was asked for: {echo.wrong[0]}"
            advice = "this build maps the flag to something else, or another server answers: see /server_info"
            raise LaunchFailed(wire.Failure(Category.NOT_WHAT_WAS_ASKED, summary, echo.wrong, advice))
        self._facts = facts
        self._watch.version = facts.version or self._watch.version
        self._remarks.extend(echo.changed)
        self._bad.clear()

    def _take_admitted(self, admitted: bool) -> None:
        self._admitted = admitted
        if not admitted:
            self._not_before = steady.now() + TICK

    def _take_generation(self, _generation: Any) -> Optional[ReadyReport]:
        self._bad.clear()
        if not self._first_answer:
            self._first_answer = time.monotonic()
            self._on_first_answer()
        # An answer given while it still warms up is a first answer, but proves less than it will have to.
        self._good += 1 if self._admitted else 0
        return self._finish() if self._good >= self._generations else None

    def _note_bad(self, error: Exception) -> None:
        """Remember a bad answer, and give up on a server that keeps giving one; while it warms up none counts."""
        if self._facts is not None and not self._admitted:
            self._not_before = steady.now() + TICK
            return
        self._good = 0
        self._bad.append(str(error))
        self._not_before = steady.now() + _PAUSE
        if len(self._bad) >= _ATTEMPTS and isinstance(error, (StatusError, BadGeneration)):
            summary = f"it answers, but not rightly: {error}"
            advice = "see the server's log; HTTP 401 means that it does not know the key"
            raise LaunchFailed(wire.Failure(Category.GENERATION_FAILED, summary, self._bad[-1:], advice))

    def _finish(self) -> Optional[ReadyReport]:
        """The last look: the port still ours, and every scheduler there."""
        if not self._port_is_ours() or not self._schedulers_are_there():
            return None
        now = steady.now()
        self._watch.look(now)
        figures = dict(self._watch.tracker.figures)
        logged_capacity = figures.pop("max_total_num_tokens", None)
        capacity = self._facts.max_total_num_tokens if self._facts is not None else None
        return ReadyReport(
            first_answer=self._first_answer,
            ready=time.monotonic(),
            version=self._watch.version,
            max_total_num_tokens=capacity if capacity is not None or logged_capacity is None else int(logged_capacity),
            schedulers=len(self._watch.schedulers),
            requested=sglang.requested(self._launch.arguments),
            resolved=figures,
            phases=self._watch.tracker.seconds(now),
            remarks=self._remarks,
        )

    def _schedulers_are_there(self) -> bool:
        expected = sglang.scheduler_count(self._launch.arguments)
        seen = len(self._watch.schedulers)
        if seen >= expected:
            return self._watch.schedulers_live()
        now = steady.now()
        self._short_since = now if self._short_since is None else self._short_since
        if now - self._short_since > _COUNT_PATIENCE:
            raise LaunchFailed(
                wire.Failure(Category.SCHEDULER_DIED, f"{seen} of {expected} schedulers were seen", [], "see the server's log")
            )
        self._not_before = now + _PAUSE
        return False


class _RankProof(_Proof):
    """Of a node other than rank 0, which answers no request: its port tells that its part is loaded, rank 0 proves the whole."""

    def _next_question(self) -> _Question:
        return _Question(lambda: sglang.rank_is_up(self._client), self._take_up)

    def _take_up(self, up: bool) -> Optional[ReadyReport]:
        if not up:
            self._not_before = steady.now() + _PAUSE
            return None
        self._bad.clear()
        if not self._first_answer:
            self._first_answer = time.monotonic()
            self._on_first_answer()
        return self._finish()


def _admits(client: Client) -> bool:
    admits = sglang.admits_requests(client)
    return not sglang.warms_up(client) if admits is None else admits


def _api_key(launch: wire.Launch) -> Optional[str]:
    values = sglang.argument_values(launch.arguments, ("--api-key",))
    return launch.secrets.get("api-key") or (values[-1] if values else None)


def _prompt(launch: wire.Launch) -> Dict[str, Any]:
    # Without a tokenizer only token ids are taken; 0 lies in every vocabulary, and /health uses it too.
    return {"input_ids": [0]} if "--skip-tokenizer-init" in launch.arguments else {"text": _PROMPT}
