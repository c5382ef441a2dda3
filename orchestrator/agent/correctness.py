"""Whether a new server computes what the old one computed: fixed texts scored by both, and greedy output that is no garbage.

Scores are mean log-likelihoods per token over given tokens, which FP4 kernels change little when they are right and a lot
when they are wrong; generated words differ between right kernels too, so they are only looked at for decay.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.generation import BadGeneration, Generation, generate
from orchestrator.agent.http import Client, HttpError, StatusError

TEXTS: Mapping[str, str] = {
    "prose": (
        "The lighthouse keeper climbed the narrow stairs every evening, carrying a can of oil and a cloth. Ships passed far out "
        "at sea, and their crews never learned his name, but they knew the light, and they steered by it through the fog."
    ),
    "facts": (
        "Water boils at one hundred degrees Celsius at sea level. Paris is the capital of France, Tokyo is the capital of Japan, "
        "and the Earth takes about three hundred and sixty-five days to travel once around the Sun."
    ),
    "code": (
        "def fibonacci(n):\n    if n < 2:\n        return n\n    a, b = 0, 1\n    for _ in range(n - 1):\n        a, b = b, a + b\n"
        "    return b\n\nprint([fibonacci(i) for i in range(10)])\n"
    ),
    "numbers": "1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096. 7 times 8 is 56, 12 times 12 is 144, and 100 minus 37 is 63.",
}
"""Fixed, ASCII (so that a byte tokenizer makes one token a letter) and short: some 60 tokens each with a usual tokenizer."""

PROMPTS: Sequence[str] = (
    "Question: Why is the sky blue? Answer:",
    "Here is a short recipe for vegetable soup. First,",
    "The three most important inventions of the nineteenth century were",
)

GREEDY_TOKENS = 64

_LEAST_TOKENS = 8


@dataclass(frozen=True)
class Scores:
    """What one server said. `likelihoods` and `tokens` by the name of the text; `rejected` says why there are none."""

    likelihoods: Dict[str, float] = field(default_factory=dict)
    tokens: Dict[str, int] = field(default_factory=dict)
    greedy: List[str] = field(default_factory=list)
    decayed: List[str] = field(default_factory=list)
    """What is wrong with each greedy output, an empty text for a good one."""
    rejected: Optional[str] = None


def score_texts(client: Client, timeout: float = 120.0) -> Scores:
    """Score the fixed texts and generate from the fixed prompts; never raises for what a server does."""
    likelihoods: Dict[str, float] = {}
    tokens: Dict[str, int] = {}
    try:
        for name, text in TEXTS.items():
            values = _input_logprobs(client, text, timeout)
            likelihoods[name] = sum(values) / len(values)
            tokens[name] = len(values)
        # Side by side: a server that decodes slowly takes a third of the time.
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            outputs = list(pool.map(lambda prompt: generate(client, {"text": prompt}, GREEDY_TOKENS, timeout), PROMPTS))
    except (HttpError, BadGeneration, NotScoredError) as error:
        return Scores(rejected=str(error) if not isinstance(error, StatusError) else f"the server refused to score: {error}")
    return Scores(likelihoods, tokens, [output.text for output in outputs], [decay(output) or "" for output in outputs])


class NotScoredError(Exception):
    """The answer holds no log-probabilities of the text."""


def _input_logprobs(client: Client, text: str, timeout: float) -> List[float]:
    body = {
        "text": text,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
        "return_text_in_logprobs": False,
    }
    return read_input_logprobs(client.post_json("/generate", body, timeout))


def read_input_logprobs(answer: Any) -> List[float]:
    """The log-probabilities of a text's tokens: ``meta_info.input_token_logprobs`` holds [logprob, token id, text] each.

    The first token has none (null).

    Raises:
        NotScoredError: there are none, or too few.
    """
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    entries = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
    if not isinstance(entries, list):
        raise NotScoredError("the answer holds no log-probabilities")
    values = [entry[0] for entry in entries if isinstance(entry, list) and entry]
    scored = [math.nan if value is None else float(value) for value in values[1:]]
    if len(scored) < _LEAST_TOKENS:
        raise NotScoredError(f"only {len(scored)} tokens were scored")
    return scored


def compare(old: Optional[Scores], new: Scores, tolerance: float) -> List[wire.Verdict]:
    """Judge a new server by the old one: one verdict on the scores, one on the greedy output.

    Args:
        old: what the old server said; None when there was none.
        new: what the new one says.
        tolerance: largest accepted change of the mean log-likelihood per token of any text, in nats.
    """
    return [compare_likelihoods(old, new, tolerance), compare_greedy(old, new)]


def compare_likelihoods(old: Optional[Scores], new: Scores, tolerance: float) -> wire.Verdict:
    """Judge the scores; UNKNOWN when one of the servers gave none."""
    check = "fixed texts"
    if new.rejected or not new.likelihoods:
        return wire.Verdict(check, wire.Outcome.UNKNOWN, f"not scored by the new server: {new.rejected or 'nothing came back'}")
    broken = [name for name, value in new.likelihoods.items() if not math.isfinite(value)]
    if broken:
        detail = f"the new server's log-likelihoods are no numbers ({', '.join(broken)})"
        return wire.Verdict(check, wire.Outcome.REFUSE, detail, next_step="do not use this backend with this model on this GPU")
    if old is None or old.rejected or not old.likelihoods:
        reason = "there was no old server" if old is None else f"not scored by the old server: {old.rejected or 'nothing came back'}"
        return wire.Verdict(check, wire.Outcome.UNKNOWN, reason, _score_lines({}, new.likelihoods))
    shared = [name for name in new.likelihoods if old.tokens.get(name) == new.tokens.get(name) and name in old.likelihoods]
    if not shared:
        return wire.Verdict(check, wire.Outcome.UNKNOWN, "the two servers cut the texts into different tokens: another model")
    return _judge(check, {name: new.likelihoods[name] - old.likelihoods[name] for name in shared}, old, new, tolerance)


def _judge(check: str, changes: Mapping[str, float], old: Scores, new: Scores, tolerance: float) -> wire.Verdict:
    evidence = _score_lines(old.likelihoods, new.likelihoods)
    if not all(math.isfinite(change) for change in changes.values()):
        return wire.Verdict(check, wire.Outcome.UNKNOWN, "the old server's log-likelihoods were no numbers", evidence)
    # A fall is judged before a rise: text that became likelier speaks against the old server, not against the new one.
    worst = min(changes, key=lambda name: changes[name])
    if changes[worst] >= -tolerance:
        worst = max(changes, key=lambda name: abs(changes[name]))
    detail = f"largest change of the mean log-likelihood per token: {changes[worst]:+.4f} nats ({worst}), tolerance {tolerance:g}"
    if abs(changes[worst]) <= tolerance:
        return wire.Verdict(check, wire.Outcome.PASS, detail, evidence)
    if changes[worst] > 0:
        step = "look at the old server's output: the texts are likelier now, so it may have been wrong"
        return wire.Verdict(check, wire.Outcome.WARN, detail, evidence, step)
    step = "do not use this backend with this model on this GPU; likelihood_tolerance of the service is the limit"
    return wire.Verdict(check, wire.Outcome.REFUSE, detail, evidence, step)


def _score_lines(old: Mapping[str, float], new: Mapping[str, float]) -> List[str]:
    return [f"{name}: {old[name]:.4f} -> {value:.4f}" if name in old else f"{name}: {value:.4f}" for name, value in new.items()]


def compare_greedy(old: Optional[Scores], new: Scores) -> wire.Verdict:
    """Judge greedy output: decay counts only where the old server's output to the same prompt was sound."""
    check = "greedy output"
    if new.rejected or not new.decayed:
        return wire.Verdict(check, wire.Outcome.UNKNOWN, "the new server generated nothing to look at")
    if old is None or len(old.decayed) != len(new.decayed):
        return wire.Verdict(check, wire.Outcome.UNKNOWN, "there is no output of the old server to hold it against")
    pairs = [(before, after) for before, after in zip(old.decayed, new.decayed) if not before]  # noqa: B905 - equal lengths
    if not pairs:
        return wire.Verdict(check, wire.Outcome.UNKNOWN, f"the old server's output was no better: {old.decayed[0]}")
    worse = [after for _, after in pairs if after]
    if not worse:
        return wire.Verdict(check, wire.Outcome.PASS, f"no repetition, no garbage in {len(pairs)} outputs")
    outcome = wire.Outcome.REFUSE if len(worse) * 2 > len(pairs) else wire.Outcome.WARN
    return wire.Verdict(check, outcome, f"{len(worse)} of {len(pairs)} outputs decayed: {worse[0]}", [text[:200] for text in new.greedy])


def decay(output: Generation) -> Optional[str]:
    """What is wrong with a greedy output, None when nothing shows: the same few tokens over and over, or unreadable bytes."""
    units: Sequence[object] = output.token_ids or output.text.split()
    tail = units[len(units) // 2 :]
    if len(tail) >= _LEAST_TOKENS and len(set(tail)) <= max(2, len(tail) // 10):
        return f"the second half repeats {len(set(tail))} tokens"
    unreadable = sum(1 for letter in output.text if letter == "\ufffd" or (not letter.isprintable() and letter not in "\n\t\r"))
    if output.text and unreadable * 5 > len(output.text):
        return f"{unreadable} of {len(output.text)} characters are unreadable"
    return None if output.text.strip() else "it is empty"
