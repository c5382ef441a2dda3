"""How fast a server decodes by its own account, to be laid beside what was timed. Pure.

``Decode batch`` lines come each ``--decode-log-interval`` decode steps (40) and tell the tokens of all requests since the last one over
the time since then, so the first after a pause holds the pause, and one with a prefill in between holds that. ``step_time_dict`` of
/server_info (SGLANG_RECORD_STEP_TIME=1) gets an entry at the same moment: that time over the steps (SGLang 0.5.6 to 0.5.23,
``scheduler_metrics_mixin.py``, ``scheduler_components/metrics_reporter.py``).
"""

import re
import statistics
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from orchestrator.agent.measure_events import TokenStream
from orchestrator.agent.phases import BatchLine, LogLine, parse_batch
from orchestrator.agent.wire_measure import OwnWord, RepeatTiming, Source

_LEAST_INTERVALS = 3
"""A median of fewer says too little to be compared with."""
_RETRACTED = re.compile(r"Retract requests|#retracted_reqs: [1-9]")


@dataclass(frozen=True)
class DecodeLine:
    """One ``Decode batch`` line. `clean`: neither the first after a pause nor one with a prefill since the last.

    `tokens` are those in the KV cache of all that runs, prompts included.
    """

    running: int
    throughput: float
    clean: bool
    tokens: Optional[float] = None
    accept_length: Optional[float] = None


@dataclass(frozen=True)
class BatchLog:
    """What the log says of one repeat."""

    decode: List[DecodeLine] = field(default_factory=list)
    prefills: int = 0
    prompt_tokens: int = 0
    """New and cached ones of all prefills: with others' requests more than ours."""
    cached_tokens: int = 0
    most_running: int = 0
    most_queued: int = 0
    without_graph: bool = False
    retracted: bool = False
    ranks: int = 1
    """Data parallel ranks that wrote: where there are several, none of them tells the whole."""


def read_batches(lines: Sequence[LogLine]) -> BatchLog:
    """Read the lines that one repeat left."""
    batches = [(line, batch) for line in lines for batch in [parse_batch(line.text)] if batch is not None]
    prefills = [batch for _, batch in batches if batch.kind == "prefill"]
    ranks = {rank for line, _ in batches for rank in line.ranks if rank.startswith("DP")}
    return BatchLog(
        decode=_decode_lines([batch for _, batch in batches]),
        prefills=len(prefills),
        prompt_tokens=round(sum((batch.number("#new-token") or 0) + (batch.number("#cached-token") or 0) for batch in prefills)),
        cached_tokens=round(sum(batch.number("#cached-token") or 0 for batch in prefills)),
        most_running=_most(batches, "#running-req"),
        most_queued=_most(batches, "#queue-req"),
        without_graph=any(batch.graph is False for _, batch in batches if batch.kind == "decode" and "cuda graph" in batch.fields),
        retracted=any(_RETRACTED.search(line.text) for line in lines),
        ranks=max(1, len(ranks)),
    )


def _decode_lines(batches: Sequence[BatchLine]) -> List[DecodeLine]:
    found: List[DecodeLine] = []
    clean = False  # the first one averages over the pause before it
    for batch in batches:
        if batch.kind == "prefill":
            clean = False
            continue
        throughput = batch.number("gen throughput (token/s)")
        if throughput is not None:
            tokens = batch.number("#token")
            found.append(DecodeLine(round(batch.number("#running-req") or 0), throughput, clean, tokens, batch.number("accept len")))
        clean = True
    return found


def _most(batches: Sequence[Any], name: str) -> int:
    return round(max((batch.number(name) or 0 for _, batch in batches if batch.kind == "decode"), default=0))


def step_times(info: Any) -> Optional[Dict[int, List[float]]]:
    """``step_time_dict`` of the first rank in /server_info, seconds by batch size; None where the server doesn't record it."""
    states = info.get("internal_states") if isinstance(info, dict) else None
    recorded = states[0].get("step_time_dict") if isinstance(states, list) and states and isinstance(states[0], dict) else None
    if not isinstance(recorded, dict):
        return None
    return {int(size): [float(value) for value in values] for size, values in recorded.items() if str(size).isdigit()}


def counters(text: str) -> Dict[str, float]:
    """Counters and sums of a /metrics answer, without their prefix, over all labels; gauges and buckets are left out."""
    found: Dict[str, float] = {}
    for name, value in _COUNTER.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


_COUNTER = re.compile(r"^sglang:(\w+(?:_total|_sum|_count))(?:\{[^\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> Dict[str, float]:
    """How much each counter has grown."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


@dataclass(frozen=True)
class Repeat:
    """One repeat as it was timed, and what the server left of it. `steps` is what step_time_dict got for this batch size meanwhile."""

    timing: RepeatTiming
    streams: Sequence[TokenStream]
    log: BatchLog = field(default_factory=BatchLog)
    steps: Optional[Sequence[float]] = None


class _Pair(NamedTuple):
    """The time per output token of one repeat, ours and the server's, over as nearly the same tokens as can be told."""

    ours: float
    theirs: float
    intervals: int


def words(batch: int, repeats: Sequence[Repeat], grown: Mapping[str, float], *, whole_pages: bool = False) -> List[OwnWord]:
    """The server's own words on one batch size, each compared with ours repeat by repeat.

    Args:
        batch: the batch size.
        repeats: all that were timed.
        grown: see :func:`growth`, over the repeats.
        whole_pages: the log counts tokens by pages of more than one, so that they don't tell to which of ours a line belongs.
    """
    if any(repeat.log.ranks > 1 for repeat in repeats):
        return []
    by_log = [_by_log(batch, repeat, whole_pages) for repeat in repeats]
    by_steps = [_by_steps(batch, repeat, whole_pages) for repeat in repeats]
    found = [_word(Source.LOG, by_log, "no pause, no prefill"), _word(Source.STEP_TIME, by_steps, "without the first of a repeat")]
    if batch == 1:  # with more, a request's mean holds the prefills of the others
        found += [_word(Source.META_INFO, [_by_meta(repeat) for repeat in repeats], _META), _by_metrics(repeats, grown)]
    return [word for word in found if word is not None]


def _word(source: str, pairs: Sequence[Optional[_Pair]], detail: str) -> Optional[OwnWord]:
    known = [pair for pair in pairs if pair is not None]
    count = sum(pair.intervals for pair in known)
    if not known or (count < _LEAST_INTERVALS and source in (Source.LOG, Source.STEP_TIME)):
        return None
    theirs = statistics.median(pair.theirs for pair in known)
    return OwnWord(source, theirs, count, statistics.median(pair.ours / pair.theirs - 1.0 for pair in known), detail)


def _stretch(batch: int, log: BatchLog) -> List[int]:
    """Where the longest stretch of lines lies that have all requests running; the first of it only marks where it begins."""
    best: List[int] = []
    current: List[int] = []
    for place, line in enumerate(log.decode):
        full = line.running == batch and line.throughput > 0
        current = [*current, place] if full and line.clean and current else [place] if full else []
        best = max(best, current, key=len)
    return best


def _by_log(batch: int, repeat: Repeat, whole_pages: bool) -> Optional[_Pair]:
    places = _stretch(batch, repeat.log)
    if len(places) < 2:
        return None
    times = [batch / repeat.log.decode[place].throughput for place in places[1:]]
    return _Pair(_ours(batch, repeat, places, whole_pages), statistics.fmean(times), len(times))


def _by_steps(batch: int, repeat: Repeat, whole_pages: bool) -> Optional[_Pair]:
    steps = list(repeat.steps or [])
    lines = [place for place, line in enumerate(repeat.log.decode) if line.running == batch]
    places = _stretch(batch, repeat.log)
    accepted = [line.accept_length for line in repeat.log.decode if line.accept_length]
    per_step = statistics.median(accepted) if accepted else 1.0
    if lines and len(lines) == len(steps) and len(places) > 1:
        kept = [steps[lines.index(place)] for place in places[1:]]
        ours = _ours(batch, repeat, places, whole_pages)
    else:
        kept, ours = steps[1:], repeat.timing.time_per_output_token
    return _Pair(ours, statistics.fmean(kept) / per_step, len(kept)) if kept else None


def _ours(batch: int, repeat: Repeat, places: Sequence[int], whole_pages: bool) -> float:
    """Our time per output token over the tokens that lie between two lines, told by the ``#token`` of each; else over the whole window."""
    first, last = repeat.log.decode[places[0]].tokens, repeat.log.decode[places[-1]].tokens
    prompts = sum(stream.prompt_tokens or 0 for stream in repeat.streams)
    if first is None or last is None or whole_pages or last <= first:
        return repeat.timing.time_per_output_token
    begin, end = _moment(repeat.streams, first - prompts), _moment(repeat.streams, last - prompts)
    if begin is None or end is None or end <= begin:
        return repeat.timing.time_per_output_token
    return (end - begin) * batch / (last - first)


def _moment(streams: Sequence[TokenStream], total: float) -> Optional[float]:
    """When all streams together had so many tokens; between two events as if they had come evenly."""
    if total < len(streams):
        return None
    marks = sorted((moment, count - before) for stream in streams for moment, count, before in _increments(stream))
    reached = 0
    previous = marks[0][0] if marks else 0.0
    for moment, more in marks:
        if reached + more >= total:
            return previous + (moment - previous) * (total - reached) / more
        reached += more
        previous = moment
    return None


def _increments(stream: TokenStream) -> Iterator[Tuple[float, int, int]]:
    before = 0
    for moment, count in stream.points:
        yield moment, count, before
        before = count


_META = "request_finished_ts, response_sent_to_client_ts"


def _by_meta(repeat: Repeat) -> Optional[_Pair]:
    """From the first token's leaving to the request's end, by the server's clock (from 0.5.17 on)."""
    [stream] = repeat.streams
    first, end = stream.meta.get("response_sent_to_client_ts"), stream.meta.get("request_finished_ts")
    counted = stream.tokens - (stream.points[0][1] if stream.points else 0)
    if not isinstance(first, (int, float)) or not isinstance(end, (int, float)) or end <= first or counted <= 0:
        return None
    return _Pair(repeat.timing.time_per_output_token, (end - first) / counted, 1)


def _by_metrics(repeats: Sequence[Repeat], grown: Mapping[str, float]) -> Optional[OwnWord]:
    total, count = grown.get("inter_token_latency_seconds_sum", 0.0), grown.get("inter_token_latency_seconds_count", 0.0)
    tokens = sum(repeat.timing.window_tokens for repeat in repeats)
    if count <= 0 or total <= 0 or not tokens:
        return None
    ours = sum(repeat.timing.window for repeat in repeats) / tokens
    return OwnWord(Source.METRICS, total / count, round(count), ours * count / total - 1.0, "inter_token_latency_seconds, the mean")
