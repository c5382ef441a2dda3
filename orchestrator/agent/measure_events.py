"""From the events of one stream to how many tokens there were when: what differs between the endpoints that can be timed.

``/v1/completions`` sends what is new in each event, and with ``continuous_usage_stats`` the count of tokens (SGLang 0.5.23,
``entrypoints/openai/serving_completions.py``). ``/generate`` does so where incremental streaming is on (``--stream-output`` up to 0.5.18,
``--incremental-streaming-output`` from 0.5.20); else each of its events repeats the whole text and all token ids. Its events hold a
meta_info, the other's none.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from orchestrator.agent.generation import finish_type
from orchestrator.agent.stream import StreamEvent
from orchestrator.agent.wire_measure import Endpoint

Point = Tuple[float, int]
"""A moment and how many tokens there were then."""


@dataclass(frozen=True)
class TokenStream:
    """One stream. `points` hold each event that brought tokens; `meta` is the last event's meta_info, empty where there is none.

    `prompt_tokens` and `cached_tokens` are None where the endpoint does not tell.
    """

    points: List[Point]
    finish: Optional[str] = None
    prompt_tokens: Optional[int] = None
    cached_tokens: Optional[int] = None
    retractions: int = 0
    text: str = ""
    meta: Dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.points[-1][1] if self.points else 0


def request_path(endpoint: str) -> str:
    """Where a request for this :class:`Endpoint` goes."""
    return Endpoint.COMPLETIONS if endpoint == Endpoint.COMPLETIONS else Endpoint.GENERATE


def request_body(endpoint: str, prompt: str, tokens: int, temperature: float, model: str = "default") -> Dict[str, Any]:
    """A streamed request for exactly `tokens` tokens."""
    if endpoint == Endpoint.COMPLETIONS:
        options = {"include_usage": True, "continuous_usage_stats": True}
        sampling = {"temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
        return {"model": model, "prompt": prompt, **sampling, "stream": True, "stream_options": options}
    sampling = {"temperature": temperature, "ignore_eos": True, "max_new_tokens": tokens}
    return {"text": prompt, "sampling_params": sampling, "stream": True}


def read_tokens(endpoint: str, events: Sequence[StreamEvent], sent: float = 0.0) -> TokenStream:
    """Read one stream. The moments of its points count from where `sent` does.

    An event that repeats a count, such as the last one, brings no tokens; one that brings several is one point.
    """
    if endpoint == Endpoint.COMPLETIONS:
        return _read_completions(events, sent)
    metas = [_dict(event.data.get("meta_info")) for event in events]
    counts = [_number(meta.get("completion_tokens")) for meta in metas]
    last = metas[-1] if metas else {}
    texts = [str(event.data.get("text") or "") for event in events]
    return TokenStream(
        points=_points(events, counts, sent),
        finish=finish_type(last),
        prompt_tokens=_optional(last.get("prompt_tokens")),
        cached_tokens=_optional(last.get("cached_tokens")),
        retractions=_number(last.get("num_retractions")) or _number(last.get("total_retractions")),
        text="".join(texts) if endpoint == Endpoint.GENERATE else (texts[-1] if texts else ""),
        meta=last,
    )


def _read_completions(events: Sequence[StreamEvent], sent: float) -> TokenStream:
    counts: List[int] = []
    pieces: List[str] = []
    finish: Optional[str] = None
    usage: Dict[str, Any] = {}
    for event in events:
        usage = _dict(event.data.get("usage")) or usage
        choices = event.data.get("choices")
        choice = _dict(choices[0]) if isinstance(choices, list) and choices else {}
        counts.append(_number(_dict(event.data.get("usage")).get("completion_tokens")) if choice else 0)
        pieces.append(str(choice.get("text") or ""))
        finish = choice.get("finish_reason") or finish
    details = _dict(usage.get("prompt_tokens_details"))
    return TokenStream(
        points=_points(events, counts, sent),
        finish=finish,
        prompt_tokens=_optional(usage.get("prompt_tokens")),
        cached_tokens=_optional(details.get("cached_tokens")),
        text="".join(pieces),
    )


def _points(events: Sequence[StreamEvent], counts: Sequence[int], sent: float) -> List[Point]:
    points: List[Point] = []
    for event, count in zip(events, counts):  # noqa: B905 - equal lengths
        if count > (points[-1][1] if points else 0):
            points.append((sent + event.moment, count))
    return points


def counts_tokens(stream: TokenStream, tokens: int) -> bool:
    """Whether the events said how many tokens there were while they came, and not only at the end."""
    return stream.tokens == tokens and (len(stream.points) > 1 or tokens == 1)


def is_cumulative(events: Sequence[StreamEvent]) -> bool:
    """Whether the events of ``/generate`` repeat what earlier ones held: then the last one holds all token ids."""
    ids = [event.data.get("output_ids") for event in events]
    lengths = [len(item) for item in ids if isinstance(item, list)]
    total = _number(_dict(events[-1].data.get("meta_info")).get("completion_tokens")) if events else 0
    if lengths:
        return len(lengths) > 1 and lengths[-1] == total and sum(lengths) > total
    texts = [str(event.data.get("text") or "") for event in events]
    return len(texts) > 1 and texts[-1].startswith(texts[0]) and len(texts[-1]) > len(texts[0])


def _dict(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _optional(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
