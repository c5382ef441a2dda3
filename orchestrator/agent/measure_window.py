"""From the streams of one batch to its figures, and from several repeats to medians with intervals. Pure."""

import math
import statistics
from typing import List, Optional, Sequence

from orchestrator.agent.measure_events import Point, TokenStream
from orchestrator.agent.wire_measure import Gaps, Interval, RepeatTiming

COVERAGE = 0.95


class NoWindowError(Exception):
    """The streams never decoded all at once, or too few events came meanwhile; the message says which."""


def time_batch(
    streams: Sequence[TokenStream], sent: Sequence[float], began: float, ended: float, late: float, waited: Optional[float]
) -> RepeatTiming:
    """The figures of streams that were started together.

    Args:
        streams: with moments on the clock of `sent`.
        sent: when each request was sent.
        began: Unix time at which the first was.
        ended: the last byte, on the clock of `sent`.
        late, waited: see :class:`stream.Reading`.

    Raises:
        NoWindowError: there is no time per output token in them.
    """
    if not all(stream.points for stream in streams):
        raise NoWindowError("no tokens came")
    begin = max(stream.points[0][0] for stream in streams)
    end = min(_last_moment(stream) for stream in streams)
    inside = [[point for point in stream.points if begin <= point[0] <= end] for stream in streams]
    if end <= begin or any(len(points) < 2 for points in inside):
        raise NoWindowError(
            "all tokens came at once"
            if len(streams) == 1
            else "the first stream had ended, or nearly so, when the last began: ask for more"
        )
    per_token = [(points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1]) for points in inside]
    return RepeatTiming(
        began=began,
        seconds=ended - min(sent),
        time_to_first_token=[stream.points[0][0] - moment for stream, moment in zip(streams, sent)],  # noqa: B905 - equal lengths
        time_per_output_token=statistics.fmean(per_token),
        window=end - begin,
        window_tokens=sum(points[-1][1] - points[0][1] for points in inside),
        gaps=_gaps(inside),
        tokens_per_second_per_stream=1.0 / statistics.fmean(per_token),
        tokens_per_second=sum(1.0 / value for value in per_token),
        events=sum(len(stream.points) for stream in streams),
        output_tokens=sum(stream.tokens for stream in streams),
        input_tokens=sum(stream.prompt_tokens or 0 for stream in streams),
        late=late,
        waited=waited,
    )


def _last_moment(stream: TokenStream) -> float:
    return stream.points[-1][0]


def _gaps(streams: Sequence[Sequence[Point]]) -> Gaps:
    gaps = sorted(later[0] - earlier[0] for points in streams for earlier, later in zip(points, points[1:]))  # noqa: B905, RUF007
    return Gaps(quantile(gaps, 0.5), quantile(gaps, 0.9), quantile(gaps, 0.99), gaps[-1], len(gaps))


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of ascending values, between the two nearest (numpy's default)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interval(values: Sequence[float]) -> Optional[Interval]:
    """The median and the interval between two of the values that holds it in 95 % of cases, whatever the distribution; None without values.

    How many of n values lie below the median is binomial, so the k-th from below and from above hold it between them with probability
    1 - 2 P(B(n, 1/2) < k). The narrowest such pair is taken that reaches 95 %; the outermost where none does.
    """
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return None
    rank, coverage = 1, _coverage(count, 1)
    while rank < (count + 1) // 2 and _coverage(count, rank + 1) >= COVERAGE:
        rank += 1
        coverage = _coverage(count, rank)
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[count - rank], coverage, count)


def _coverage(count: int, rank: int) -> float:
    below: List[int] = [math.comb(count, number) for number in range(rank)]
    return max(0.0, 1.0 - sum(below) / float(2 ** (count - 1)))
