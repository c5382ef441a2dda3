"""Where our times and the server's own word differ: by how much, and what the likely cause is. Pure.

SGLang's scheduler hands each step's tokens to a detokenizer and to one HTTP process, which writes an event for every stream. Its own word
(:mod:`server_word`) is the scheduler's: what those two can't keep up with is in our times only.
"""

import statistics
from typing import List, Optional, Sequence

from orchestrator.agent.wire_measure import MOST_DIFFERENCE, OwnWord, RepeatTiming, Source

_SCHEDULERS = (Source.LOG, Source.STEP_TIME)
"""What is told before a token leaves the scheduler; metrics and meta_info are the HTTP process's."""
_OURS = 0.5
"""The share of a difference that our reader may have made, from which on it is named as the cause."""


def disagreements(batch: int, own_words: Sequence[OwnWord], timings: Sequence[RepeatTiming]) -> List[str]:
    """A sentence for each word that differs by more than :data:`MOST_DIFFERENCE`; then, where it can be told, one on the likely cause.

    Args:
        batch: the batch size.
        own_words: see :func:`server_word.words`.
        timings: the repeats that the words were compared with.
    """
    differing = [word for word in own_words if abs(word.difference) > MOST_DIFFERENCE]
    said = [
        f"batch {batch}: the time per output token is {abs(word.difference):.1%} {'more' if word.difference > 0 else 'less'} than "
        f"the server's own {word.time_per_output_token * 1000:.3f} ms ({word.source})"
        for word in differing
    ]
    cause = _likely_cause(batch, differing, timings)
    return said if cause is None else [*said, f"batch {batch}: {cause}"]


def _likely_cause(batch: int, differing: Sequence[OwnWord], timings: Sequence[RepeatTiming]) -> Optional[str]:
    """Why tokens came later than the scheduler made them; None where they did not, or nobody can tell."""
    word = max((word for word in differing if word.source in _SCHEDULERS), key=lambda word: word.difference, default=None)
    if word is None or word.difference <= 0 or not timings:
        return None
    excess = word.difference / (1.0 + word.difference)
    ours = reader_share(timings)
    late = max(timing.late for timing in timings) * 1000
    known = [timing.waited for timing in timings if timing.waited is not None]
    waited = f"waited {max(known) * 1000:.1f} ms for a processor" if known else "how long it waited for a processor is not known"
    if ours >= _OURS * excess:
        return (
            f"likely our own reader: it was up to {late:.1f} ms late and {waited}, which can make {ours:.1%} of the window; "
            "measure again on a machine that is less busy"
        )
    made = batch / word.time_per_output_token
    return (
        f"likely the server's way from its scheduler to its clients: the scheduler makes {made:.0f} tokens a second, its detokenizer and "
        f"HTTP process deliver {made / (1.0 + word.difference):.0f}; our own reader was never more than {late:.1f} ms late and {waited}"
    )


def reader_share(timings: Sequence[RepeatTiming]) -> float:
    """The most that our reader can have added to a window, as a share of it; the median of the repeats.

    No stamp is later than the longest time away from reading and all waits for a processor together, and what a window has longer than it
    should is the lateness of its last stamp.
    """
    return statistics.median((timing.late + (timing.waited or 0.0)) / timing.window for timing in timings)
