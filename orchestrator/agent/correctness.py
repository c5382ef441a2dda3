"""Whether a new server computes what the old one computed: fixed texts scored by both, and greedy output that is no garbage.

Scores are mean log-likelihoods per token over given tokens, which FP4 kernels change little when they are right and a lot
when they are wrong; generated words differ between right kernels too, so they are only looked at for decay, and for what the
service's owner expects of them (:mod:`expectations`). Where no old server says better, thresholds of the policy hold.
"""

import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence

from orchestrator.agent import expectations, wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.generation import BadGeneration, Generation, complete
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

_TEXTS_CHECK = "fixed texts"
_GREEDY_CHECK = "greedy output"
_NOT_THIS_BACKEND = "do not use this backend with this model on this GPU"

_LEAST_TOKENS = 8
_LEAST_LETTERS = 12


@dataclass(frozen=True)
class Scores:
    """What one server said. `likelihoods` and `tokens` by the name of the text; `rejected` says why there are none."""

    likelihoods: Dict[str, float] = field(default_factory=dict)
    tokens: Dict[str, int] = field(default_factory=dict)
    greedy: List[str] = field(default_factory=list)
    decayed: List[str] = field(default_factory=list)
    """What is wrong with each greedy output, an empty text for a good one."""
    rejected: Optional[str] = None
    greedy_rejected: Optional[str] = None
    """Why there is no greedy output."""
    expected: List[expectations.Answer] = field(default_factory=list)
    """One for each of the service's expectations, in their order."""


def score(client: Client, seconds: float, expected: Sequence[wire.Expectation] = ()) -> Scores:
    """Score the fixed texts, generate from the fixed prompts and ask what the owner expects answers to.

    Takes at most `seconds` in all; never raises for what a server does.
    """
    deadline = Deadline(seconds)
    likelihoods: Dict[str, float] = {}
    tokens: Dict[str, int] = {}
    outputs: List[Generation] = []
    rejected = greedy_rejected = None
    try:
        for name, text in TEXTS.items():
            values = _input_logprobs(client, text, _left(deadline))
            likelihoods[name] = sum(values) / len(values)
            tokens[name] = len(values)
    except (HttpError, NotScoredError) as error:
        likelihoods, tokens = {}, {}
        rejected = str(error) if not isinstance(error, StatusError) else f"the server refused to score: {error}"
    try:
        # Side by side: a server that decodes slowly takes a third of the time.
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            outputs = list(pool.map(lambda prompt: complete(client, prompt, GREEDY_TOKENS, _left(deadline)), PROMPTS))
    except (HttpError, BadGeneration) as error:
        greedy_rejected = str(error)
    return Scores(
        likelihoods,
        tokens,
        [output.text for output in outputs],
        [decay(output) or "" for output in outputs],
        rejected,
        greedy_rejected,
        expectations.ask(client, expected, deadline),
    )


def _left(deadline: Deadline) -> float:
    """For one question: a limit that has run out is told by the question itself."""
    return max(0.1, deadline.left())


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


def compare(old: Optional[Scores], new: Scores, policy: wire.Policy) -> List[wire.Verdict]:
    """Judge a new server by the old one (None where there was none) and by what its owner expects: a verdict on each."""
    verdicts = [compare_likelihoods(old, new, policy), compare_greedy(old, new, policy)]
    if new.expected:
        verdicts.append(expectations.judge([] if old is None else old.expected, new.expected))
    return verdicts


def compare_likelihoods(old: Optional[Scores], new: Scores, policy: wire.Policy) -> wire.Verdict:
    """Judge the scores, by the policy's floor where the old server gave none; UNKNOWN when the new one gave none."""
    scored = old is not None and not old.rejected and bool(old.likelihoods)
    if new.rejected or not new.likelihoods:
        outcome = wire.Outcome.WARN if scored else wire.Outcome.UNKNOWN
        told = ", though the old one was" if scored else ""
        return wire.Verdict(_TEXTS_CHECK, outcome, f"not scored by the new server{told}: {new.rejected or 'nothing came back'}")
    broken = [name for name, value in new.likelihoods.items() if not math.isfinite(value)]
    if broken:
        detail = f"the new server's log-likelihoods are no numbers ({', '.join(broken)})"
        return wire.Verdict(_TEXTS_CHECK, wire.Outcome.REFUSE, detail, next_step=_NOT_THIS_BACKEND)
    if old is None or not scored:
        why = "there was no old server" if old is None else f"not scored by the old server: {old.rejected or 'nothing came back'}"
        return _judge_alone(new, policy.likelihood_floor, why)
    shared = [name for name in new.likelihoods if old.tokens.get(name) == new.tokens.get(name) and name in old.likelihoods]
    if not shared:
        return _judge_alone(new, policy.likelihood_floor, "the two servers cut the texts into different tokens: another model")
    changes = {name: new.likelihoods[name] - old.likelihoods[name] for name in shared}
    return _judge(_TEXTS_CHECK, changes, old, new, policy.likelihood_tolerance)


def _judge_alone(new: Scores, floor: float, why: str) -> wire.Verdict:
    """Ordinary models give these texts -1 to -4 nats per token; guessing among 150 000 tokens gives -11.9."""
    evidence = _score_lines({}, new.likelihoods)
    middle, worst = statistics.median(new.likelihoods.values()), min(new.likelihoods.values())
    if middle < floor:
        detail = f"garbage: {middle:.2f} nats per token over the fixed texts, below the floor of {floor:g} ({why})"
        step = f"{_NOT_THIS_BACKEND}; likelihood_floor of the service is the limit"
        return wire.Verdict(_TEXTS_CHECK, wire.Outcome.REFUSE, detail, evidence, step)
    detail = f"{why}; {middle:.2f} nats per token over the fixed texts, the floor is {floor:g}"
    return wire.Verdict(_TEXTS_CHECK, wire.Outcome.PASS if worst >= floor else wire.Outcome.WARN, detail, evidence)


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
    step = f"{_NOT_THIS_BACKEND}; likelihood_tolerance of the service is the limit"
    return wire.Verdict(check, wire.Outcome.REFUSE, detail, evidence, step)


def _score_lines(old: Mapping[str, float], new: Mapping[str, float]) -> List[str]:
    return [f"{name}: {old[name]:.4f} -> {value:.4f}" if name in old else f"{name}: {value:.4f}" for name, value in new.items()]


def compare_greedy(old: Optional[Scores], new: Scores, policy: wire.Policy) -> wire.Verdict:
    """Judge greedy output: decay counts where the old server's output to the same prompt was sound, or where there is none."""
    if not new.decayed:
        reason = new.greedy_rejected or "nothing came back"
        return wire.Verdict(_GREEDY_CHECK, wire.Outcome.UNKNOWN, f"the new server generated nothing to look at: {reason}")
    compared = old is not None and len(old.decayed) == len(new.decayed)
    before = old.decayed if old is not None and compared else [""] * len(new.decayed)
    now = [after for was, after in zip(before, new.decayed) if not was]  # noqa: B905 - equal lengths
    if not now:
        return wire.Verdict(_GREEDY_CHECK, wire.Outcome.UNKNOWN, f"the old server's output was no better: {before[0]}")
    worse = [after for after in now if after]
    if not worse:
        return wire.Verdict(_GREEDY_CHECK, wire.Outcome.PASS, f"no repetition, no garbage in {len(now)} outputs")
    fails = len(worse) * 2 > len(now) and (compared or policy.garbage == wire.Garbage.FAIL)
    evidence = [expectations.shown(text) for text in new.greedy]
    detail = f"{len(worse)} of {len(now)} outputs decayed: {worse[0]}"
    return wire.Verdict(_GREEDY_CHECK, wire.Outcome.REFUSE if fails else wire.Outcome.WARN, detail, evidence, _NOT_THIS_BACKEND)


def decay(output: Generation) -> Optional[str]:
    """What is wrong with a greedy output, None when nothing shows: the same few tokens over and over, or unreadable bytes."""
    units: Sequence[object] = output.token_ids or output.text.split()
    tail = units[len(units) // 2 :]
    if len(tail) >= _LEAST_TOKENS and len(set(tail)) <= max(2, len(tail) // 10):
        return f"the second half repeats {len(set(tail))} tokens"
    letters = "".join(output.text[len(output.text) // 2 :].split())
    if len(letters) >= _LEAST_LETTERS and len(set(letters)) <= 2:
        return f"the second half repeats {letters[-1]!r}"
    unreadable = sum(1 for letter in output.text if letter == "\ufffd" or (not letter.isprintable() and letter not in "\n\t\r"))
    if output.text and unreadable * 5 > len(output.text):
        return f"{unreadable} of {len(output.text)} characters are unreadable"
    return None if output.text.strip() else "it is empty"
