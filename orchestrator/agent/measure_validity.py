"""Why a timing is not to be believed. Pure: each function looks at one kind of evidence and names what speaks against it."""

import math
from typing import List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent.capacity import Known
from orchestrator.agent.decode import MOST_CACHED_TOKENS
from orchestrator.agent.gpu_samples import THROTTLED
from orchestrator.agent.measure_events import TokenStream
from orchestrator.agent.server_word import BatchLog
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_measure import GpuSeries, Invalid, Reason

_FOREIGN_METRICS = ("num_requests_total", "prompt_tokens_total")


def against_streams(streams: Sequence[TokenStream], tokens: int) -> List[Tuple[str, str]]:
    """What the answers themselves show: reasons with details."""
    aborted = sum(1 for stream in streams if stream.finish == "abort")
    short = [stream.tokens for stream in streams if stream.tokens != tokens]
    other = sorted({str(stream.finish) for stream in streams if stream.finish not in ("length", "abort")})
    cached = [stream.cached_tokens or 0 for stream in streams]
    retracted = sum(1 for stream in streams if stream.retractions)
    found = []
    if aborted:
        found.append((Reason.ABORTED, f"{aborted} of {len(streams)} streams were aborted"))
    if short or other:
        ended = f", ended by {', '.join(other)}" if other else ""
        counts = f"{', '.join(map(str, sorted(set(short))))} tokens came" if short else "all tokens came"
        found.append((Reason.SHORT, f"{counts}, {tokens} were asked for{ended}"))
    if max(cached, default=0) > MOST_CACHED_TOKENS:
        found.append((Reason.CACHED, f"{max(cached)} tokens of a prompt were cached"))
    if retracted:
        found.append((Reason.RETRACTED, f"{retracted} of {len(streams)} streams were retracted"))
    return found


def against_log(log: BatchLog, batch: int, prompts: Sequence[int], page: int, *, graphs: bool) -> List[Tuple[str, str]]:
    """What the server's log shows of one repeat.

    Args:
        log: its lines.
        batch: how many streams were ours.
        prompts: tokens of each of our prompts, as the server counts them.
        page: the KV cache's page size: the log counts whole pages.
        graphs: whether the server is meant to decode from captured graphs.
    """
    found = []
    if log.most_running > batch:
        found.append((Reason.OTHERS, f"{log.most_running} requests ran at once, {batch} were ours"))
    elif log.ranks == 1 and log.prefills and log.prompt_tokens > _most_prompt_tokens(prompts, page, log.prefills):
        found.append((Reason.OTHERS, f"{log.prompt_tokens} prompt tokens were computed, {sum(prompts)} were ours"))
    if log.cached_tokens > MOST_CACHED_TOKENS * batch:
        found.append((Reason.CACHED, f"{log.cached_tokens} tokens of the prompts were cached"))
    if log.without_graph and graphs:
        found.append((Reason.NO_GRAPH, "decode batches ran with cuda graph: False"))
    if log.retracted:
        found.append((Reason.RETRACTED, "the server retracted requests: its KV cache was full"))
    return found


def _most_prompt_tokens(prompts: Sequence[int], page: int, lines: int) -> int:
    whole = sum(math.ceil(tokens / page) * page for tokens in prompts)
    return whole + (lines - 1) * (page - 1)


def against_metrics(grown: Mapping[str, float], requests: int, prompt_tokens: int) -> List[Tuple[str, str]]:
    """What the server's counters show over all repeats of a batch size: they count a request when it has ended."""
    ours = dict(zip(_FOREIGN_METRICS, (requests, prompt_tokens)))  # noqa: B905 - equal lengths
    more = {name: grown[name] for name in _FOREIGN_METRICS if grown.get(name, 0.0) > ours[name]}
    found = [(Reason.OTHERS, f"{name} grew by {value:.0f}, by ours {ours[name]}") for name, value in list(more.items())[:1]]
    if grown.get("num_aborted_requests_total", 0.0) > 0:
        found.append((Reason.ABORTED, f"{grown['num_aborted_requests_total']:.0f} requests were aborted meanwhile"))
    return found


def against_gpus(gpus: Sequence[GpuSeries]) -> List[Invalid]:
    """What was sampled of the GPUs while streams ran."""
    found = []
    for gpu in gpus:
        held = {name: count for name, count in gpu.reasons.items() if name in THROTTLED}
        if held:
            told = ", ".join(f"{name} in {count} of {gpu.samples} samples" for name, count in sorted(held.items()))
            found.append(Invalid(Reason.THROTTLED, f"GPU {gpu.index}: {told}"))
        if gpu.link_width and gpu.most_link_width and gpu.link_width[0] < gpu.most_link_width:
            found.append(Invalid(Reason.LINK, f"GPU {gpu.index}: PCIe x{gpu.link_width[0]:.0f}, x{gpu.most_link_width} is possible"))
    return found


def against_capacity(known: Known, now: Optional[int], least: float) -> Optional[Invalid]:
    """Whether the KV cache has less room than the baseline's, where nothing but the backend was changed since."""
    if not known.tokens or now is None or now >= known.tokens * least or known.changed:
        return None
    return Invalid(Reason.CAPACITY, f"max_total_num_tokens is {now}, {now / known.tokens:.0%} of the {known.tokens} of {known.whose}")


def against_answers(verdicts: Sequence[Verdict], when: str) -> List[Invalid]:
    """What the checks of correctness refuse."""
    return [Invalid(Reason.OUTPUT, f"{when}: {item.check}: {item.detail}") for item in verdicts if item.outcome == Outcome.REFUSE]
