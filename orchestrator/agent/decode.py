"""Timing decode at batch size 1, next to the server: time to first token and time per output token.

Tokens are counted by differences of ``meta_info.completion_tokens``: a slow reader gets several tokens in one event, and
speculative decoding makes several in one step. Prompts are fresh words each time, so that nothing is cached, and the
server's cache is never flushed. The output is short because each event of a stream repeats the whole text so far.
"""

import dataclasses
import random
import secrets
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from orchestrator.agent import sglang, wire
from orchestrator.agent.clock import Deadline, steady, wait_until
from orchestrator.agent.generation import finish_type
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.phases import LogFollower, parse_batch
from orchestrator.agent.stream import StreamEvent, stream_events

SAMPLING: Dict[str, Any] = {"temperature": 0, "ignore_eos": True}
"""Greedy: the same for the warm-up and for what is timed, so that no kernel is compiled inside a sample."""

MOST_CACHED_TOKENS = 16
"""A start-of-text token and a few common bytes; a cached prompt of our own would have nearly all."""

_WARM_UPS = 2
_FIRST_PROMPT_WORDS = 40
_LEAST_SAMPLES = 2
_WIDE_SPREAD = 0.10
_IDLE_PATIENCE = 2.0

_VOCABULARY = """
    river stone copper window garden seven winter letter bridge yellow market engine silver ocean paper mountain forest candle harbor
    violet ladder pepper signal thunder basket marble cotton falcon island jacket kernel lemon meadow needle orchard pencil quarry ribbon
    saddle timber umbrella valley walnut anchor butter carbon desert ember feather granite hammer indigo jungle kettle lantern magnet
"""


class UnusableSample(Exception):  # noqa: N818
    """A sample that says nothing, and why."""


def time_decode(
    host: str,
    port: int,
    key: Optional[str],
    policy: wire.Policy,
    report: Callable[[str, str], None] = lambda phase, detail: None,
    log: Optional[Path] = None,
) -> wire.DecodeTiming:
    """Time one stream at a time, within ``policy.measure_seconds`` in all; never raises for what a server does.

    Args:
        host, port, key: how the server is reached.
        policy: the ``measure_*`` fields.
        report: told of each sample.
        log: the server's log where there is one: other clients' batches in it, and decode without CUDA graphs, are remarked.
    """
    if not policy.measure:
        return wire.DecodeTiming(skipped="not asked for")
    run = _Run(Client(port, host, key), policy, report)
    follower = LogFollower(log, from_end=True) if log is not None else None
    try:
        timing = run.measure()
        return timing if follower is None else _with_log_remarks(timing, follower)
    except HttpError as error:
        return wire.DecodeTiming(skipped=f"the server did not answer rightly: {error}")
    finally:
        if follower is not None:
            follower.close()


@dataclass
class _Run:
    client: Client
    policy: wire.Policy
    report: Callable[[str, str], None]
    words_per_token: float = 1.0
    samples: List[wire.DecodeSample] = field(default_factory=list)
    input_tokens: List[int] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)

    def measure(self) -> wire.DecodeTiming:
        deadline = Deadline(self.policy.measure_seconds)
        busy = self._busy()
        if busy:
            return wire.DecodeTiming(skipped=busy)
        skipped = self._warm_up(deadline)
        if skipped:
            return wire.DecodeTiming(skipped=skipped)
        for attempt in range(self.policy.measure_repeats * 2):
            if len(self.samples) >= self.policy.measure_repeats or not self._time_for_one_more(deadline):
                break
            self.report("measure", f"sample {len(self.samples) + 1} of {self.policy.measure_repeats}, attempt {attempt + 1}")
            busy = self._sample(deadline) or self._busy()
            if busy:
                self.remarks.append(busy)
        if len(self.samples) < _LEAST_SAMPLES:
            reasons = "; ".join(dict.fromkeys(self.remarks)) or f"the limit of {self.policy.measure_seconds:g} s ran out"
            return wire.DecodeTiming(skipped=f"only {len(self.samples)} good samples: {reasons}")
        return summarize(self.samples, self.input_tokens, self.policy, self.remarks)

    def _busy(self) -> Optional[str]:
        """Why it is not ours alone; our own last request may still be counted for a moment."""
        seen: List[Optional[int]] = []

        def is_idle() -> bool:
            seen.append(sglang.running_and_queued(self.client))
            return not seen[-1]

        wait_until(is_idle, Deadline(_IDLE_PATIENCE), 0.1)
        if seen[-1] is None:
            self._remark("whether others use the server could not be read")
        return f"others use it: {seen[-1]} requests running or queued" if seen[-1] else None

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def _warm_up(self, deadline: Deadline) -> Optional[str]:
        """Compile what is compiled late, and learn how many tokens the words make."""
        words = _FIRST_PROMPT_WORDS
        for number in range(_WARM_UPS):
            self.report("measure", f"warm-up {number + 1} of {_WARM_UPS}")
            if deadline.passed:
                return f"the warm-up took the whole limit of {self.policy.measure_seconds:g} s: kernels may be compiling"
            events = self._stream(words, deadline)
            tokens = int(_meta(events[-1]).get("prompt_tokens") or 0) if events else 0
            if not tokens:
                return "the server does not say how many tokens a prompt has"
            self.words_per_token = words / tokens
            words = self._prompt_words()
        return None

    def _prompt_words(self) -> int:
        return max(4, round(self.policy.measure_input_tokens * self.words_per_token))

    def _time_for_one_more(self, deadline: Deadline) -> bool:
        longest = max((sample.seconds for sample in self.samples), default=0.0)
        return deadline.left() > longest * 1.5

    def _sample(self, deadline: Deadline) -> Optional[str]:
        gaps = len(steady.gaps())
        events = self._stream(self._prompt_words(), deadline)
        if steady.gaps(gaps):
            return "a sample was dropped: this place stood still meanwhile"
        try:
            sample = read_sample(events, self.policy.measure_output_tokens)
        except UnusableSample as reason:
            return f"a sample was dropped: {reason}"
        self.samples.append(sample)
        self.input_tokens.append(int(_meta(events[0]).get("prompt_tokens") or 0))
        return None

    def _stream(self, words: int, deadline: Deadline) -> List[StreamEvent]:
        sampling = {**SAMPLING, "max_new_tokens": self.policy.measure_output_tokens}
        body = {"text": fresh_prompt(words), "sampling_params": sampling, "stream": True}
        return stream_events(self.client, "/generate", body, max(1.0, deadline.left()))


def fresh_prompt(words: int) -> str:
    """A prompt that no cache holds: its first word is random, and so is the order of the others."""
    rng = random.Random(secrets.randbits(64))  # noqa: S311 - not for secrecy
    return " ".join([f"{rng.getrandbits(64):016x}", *rng.choices(_VOCABULARY.split(), k=max(1, words - 1))])


def _meta(event: StreamEvent) -> Dict[str, Any]:
    meta = event.data.get("meta_info")
    return meta if isinstance(meta, dict) else {}


def read_sample(events: List[StreamEvent], tokens: int) -> wire.DecodeSample:
    """Read one stream.

    Raises:
        UnusableSample: it was cached, cut short, retracted, or too coarse to time.
    """
    counted = [(event.moment, int(_meta(event).get("completion_tokens") or 0)) for event in events]
    counted = [(moment, count) for moment, count in counted if count > 0]
    if not counted:
        raise UnusableSample("no tokens came")
    last = _meta(events[-1])
    first_moment, first_count = counted[0]
    last_moment, last_count = counted[-1]
    # Events may repeat the last count: the token came with the first of them.
    last_moment = next(moment for moment, count in counted if count == last_count)
    cached = int(last.get("cached_tokens") or 0)
    problems = (
        (finish_type(last) != "length", f"it ended by {finish_type(last)!r}"),
        (last_count != tokens, f"{last_count} tokens came, {tokens} were asked for"),
        (cached > MOST_CACHED_TOKENS, f"{cached} tokens of its prompt were cached"),
        (bool(last.get("num_retractions") or last.get("total_retractions")), "it was retracted"),
        (last_count <= first_count or last_moment <= first_moment, "all tokens came at once"),
    )
    for wrong, reason in problems:
        if wrong:
            raise UnusableSample(reason)
    per_token = (last_moment - first_moment) / (last_count - first_count)
    return wire.DecodeSample(first_moment, per_token, last_count, last_moment, cached)


def summarize(samples: List[wire.DecodeSample], input_tokens: List[int], policy: wire.Policy, remarks: List[str]) -> wire.DecodeTiming:
    """Medians over the samples, with remarks on what weakens them."""
    per_token = [sample.time_per_output_token for sample in samples]
    median = statistics.median(per_token)
    spread = (max(per_token) - min(per_token)) / median if median else 0.0
    notes = list(remarks)
    if spread > _WIDE_SPREAD:
        notes.append(f"the samples spread by {spread:.0%} of their median")
    if len(samples) < policy.measure_repeats:
        notes.append(f"{len(samples)} of {policy.measure_repeats} samples within {policy.measure_seconds:g} s")
    return wire.DecodeTiming(
        input_tokens=round(statistics.median(input_tokens)),
        output_tokens=policy.measure_output_tokens,
        time_to_first_token=statistics.median(sample.time_to_first_token for sample in samples),
        time_per_output_token=median,
        tokens_per_second=1.0 / median if median else 0.0,
        samples=list(samples),
        remarks=notes,
    )


def _with_log_remarks(timing: wire.DecodeTiming, follower: LogFollower) -> wire.DecodeTiming:
    if timing.skipped:
        return timing
    notes = log_remarks([line.text for line in follower.read()])
    return dataclasses.replace(timing, remarks=[*timing.remarks, *notes])


def log_remarks(lines: List[str]) -> List[str]:
    """What batch lines written meanwhile say against a timing."""
    batches = [batch for batch in map(parse_batch, lines) if batch is not None and batch.kind == "decode"]
    notes = []
    if any((batch.number("#running-req") or 0) > 1 for batch in batches):
        notes.append("the server's log shows requests of others meanwhile")
    graphs = [batch.graph for batch in batches if "cuda graph" in batch.fields]
    if graphs and not all(graphs):
        notes.append("decode ran without CUDA graphs")
    return notes
