"""Streams of one batch size against a server, again and again: which endpoint is timed, warm-up, and what each run left."""

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from orchestrator.agent import measure_validity, sglang
from orchestrator.agent.clock import Deadline, steady, wait_until
from orchestrator.agent.decode import fresh_prompt
from orchestrator.agent.http import Client, HttpError, StatusError
from orchestrator.agent.measure_events import TokenStream, counts_tokens, is_cumulative, read_tokens, request_body, request_path
from orchestrator.agent.measure_window import NoWindowError, time_batch
from orchestrator.agent.phases import LogFollower
from orchestrator.agent.server_word import BatchLog, read_batches
from orchestrator.agent.stream import Exchange, Reading, read_streams
from orchestrator.agent.wire_measure import Endpoint, Reason, RepeatTiming

_PROBE_TOKENS = 32
"""More than speculative decoding makes in one step."""
_PROBE_WORDS = 40
_IDLE_PATIENCE = 5.0
_LOG_PATIENCE = 0.1
"""The scheduler logs before it hands a step's tokens on; only the write itself may be on its way."""

Problem = Tuple[str, str]
"""A :class:`wire_measure.Reason` and its detail."""


class NoEndpointError(Exception):
    """No endpoint of this server can be timed; the message holds what each said."""


@dataclass(frozen=True)
class Load:
    """What each stream asks for."""

    input_tokens: int
    output_tokens: int
    temperature: float
    model: str


@dataclass(frozen=True)
class Run:
    """One run of all streams. `timing` is None where none could be told; `problems` say why, or what else speaks against it."""

    timing: Optional[RepeatTiming]
    streams: List[TokenStream]
    problems: List[Problem]
    log: BatchLog = field(default_factory=BatchLog)
    began: float = 0.0
    seconds: float = 0.0
    steps: Optional[Sequence[float]] = None
    """What step_time_dict got for the batch size meanwhile."""


@dataclass
class BatchRuns:
    """Runs streams against one server. Prompts are fresh each time, so that the radix cache holds none of them.

    `page` is the KV cache's page size, `graphs` whether decode is meant to run from captured graphs.
    """

    client: Client
    load: Load
    log: Optional[Path]
    page: int = 1
    graphs: bool = True
    endpoint: str = Endpoint.COMPLETIONS
    words_per_token: float = 1.0

    def choose_endpoint(self, *, incremental: bool, deadline: Deadline) -> float:
        """Find the endpoint whose events stay small and say how many tokens there are, by asking; how long the first answer took.

        Raises:
            NoEndpointError: none does.
            HttpError: the server can't be asked at all.
        """
        order = [Endpoint.GENERATE, Endpoint.COMPLETIONS] if incremental else [Endpoint.COMPLETIONS, Endpoint.GENERATE]
        said = []
        begun = time.monotonic()
        for endpoint in order:
            try:
                stream = self._probe(endpoint, deadline)
            except StatusError as error:
                said.append(str(error))
                continue
            if counts_tokens(stream, _PROBE_TOKENS) and stream.prompt_tokens:
                self.words_per_token = _PROBE_WORDS / stream.prompt_tokens
                return time.monotonic() - begun
            said.append(f"{self.endpoint}: the events don't say how many tokens there are")
        raise NoEndpointError("; ".join(said))

    def _probe(self, endpoint: str, deadline: Deadline) -> TokenStream:
        self.endpoint = endpoint
        exchange = self._read(1, _PROBE_TOKENS, _PROBE_WORDS, deadline).exchanges[0]
        events = exchange.events()
        if endpoint == Endpoint.GENERATE and is_cumulative(events):
            self.endpoint = Endpoint.CUMULATIVE
        return read_tokens(self.endpoint, events)

    def warm_up(self, size: int, deadline: Deadline) -> float:
        """Run what will be timed once, and learn how many tokens the words make; how long it took.

        Raises:
            HttpError: a stream broke off.
        """
        begun = time.monotonic()
        words = self._words()
        streams = [
            read_tokens(self.endpoint, item.events()) for item in self._read(size, self.load.output_tokens, words, deadline).exchanges
        ]
        known = [stream.prompt_tokens for stream in streams if stream.prompt_tokens]
        if known:
            self.words_per_token = words / statistics.median(known)
        return time.monotonic() - begun

    def run(self, size: int, deadline: Deadline) -> Run:
        """Time all streams once; never raises for what a server does."""
        busy = self._wait_idle()
        problems: List[Problem] = [(Reason.OTHERS, busy)] if busy else []
        gaps = len(steady.gaps())
        follower = LogFollower(self.log, from_end=True) if self.log is not None else None
        began = time.time()
        begun = time.monotonic()
        try:
            reading = self._read(size, self.load.output_tokens, self._words(), deadline)
            ended = time.monotonic()
            log = self._read_log(follower)
        except HttpError as error:
            return Run(None, [], [*problems, (Reason.BROKEN, str(error))], began=began, seconds=time.monotonic() - begun)
        finally:
            if follower is not None:
                follower.close()
        steady.now()
        if steady.gaps(gaps):
            problems.append((Reason.STOOD_STILL, "this place stood still meanwhile"))
        return self._judged(size, reading, log, problems, began, ended - begun)

    def _judged(self, size: int, reading: Reading, log: BatchLog, problems: List[Problem], began: float, seconds: float) -> Run:
        streams: List[TokenStream] = []
        for exchange in reading.exchanges:
            try:
                streams.append(read_tokens(self.endpoint, exchange.events(), exchange.sent))
            except HttpError as error:
                problems.append((Reason.BROKEN, str(error)))
        if len(streams) < size:
            return Run(None, streams, list(dict.fromkeys(problems)), log, began, seconds)
        prompts = [stream.prompt_tokens or 0 for stream in streams]
        problems += measure_validity.against_streams(streams, self.load.output_tokens)
        problems += measure_validity.against_log(log, size, prompts, self.page, graphs=self.graphs)
        timing = None
        try:
            sent = [exchange.sent for exchange in reading.exchanges]
            timing = time_batch(streams, sent, began, _last_byte(reading.exchanges), reading.late, reading.waited)
        except NoWindowError as error:
            problems.append((Reason.COARSE, str(error)))
        return Run(timing, streams, problems, log, began, seconds)

    def _wait_idle(self) -> Optional[str]:
        """Why the server is not ours alone; our own last requests may still be counted for a moment."""
        seen: List[Optional[int]] = []

        def is_idle() -> bool:
            try:
                seen.append(sglang.running_and_queued(self.client))
            except HttpError:
                seen.append(None)
            return not seen[-1]

        wait_until(is_idle, Deadline(_IDLE_PATIENCE), 0.1)
        return f"{seen[-1]} requests of others ran or were queued before it" if seen[-1] else None

    def _read_log(self, follower: Optional[LogFollower]) -> BatchLog:
        if follower is None:
            return BatchLog()
        time.sleep(_LOG_PATIENCE)
        return read_batches(follower.read())

    def _words(self) -> int:
        return max(4, round(self.load.input_tokens * self.words_per_token))

    def _read(self, size: int, tokens: int, words: int, deadline: Deadline) -> Reading:
        load = self.load
        bodies: Sequence[Dict[str, Any]] = [
            request_body(self.endpoint, fresh_prompt(words), tokens, load.temperature, load.model) for _ in range(size)
        ]
        return read_streams(self.client, request_path(self.endpoint), bodies, max(1.0, deadline.left()))


def _last_byte(exchanges: Sequence[Exchange]) -> float:
    return max(exchange.arrivals[-1][0] for exchange in exchanges if exchange.arrivals)
