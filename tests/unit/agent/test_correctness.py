from __future__ import annotations

import dataclasses
import math

import pytest

from orchestrator.agent.correctness import NotScoredError, Scores, compare_greedy, compare_likelihoods, decay, read_input_logprobs
from orchestrator.agent.generation import BadGeneration, Generation, read_generation
from orchestrator.agent.wire import Garbage, Outcome, Policy

TOKENS = {"prose": 60, "code": 50}
POLICY = Policy(likelihood_tolerance=0.05)


def scores(prose: float = -2.0, code: float = -1.0, **more: object) -> Scores:
    return Scores({"prose": prose, "code": code}, dict(TOKENS), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (scores(), scores(), Outcome.PASS),
        (scores(), scores(prose=-2.04, code=-0.97), Outcome.PASS),
        (scores(), scores(prose=-2.06), Outcome.REFUSE),
        (scores(), scores(code=-0.5), Outcome.WARN),
        (scores(), scores(prose=math.nan), Outcome.REFUSE),
        (scores(prose=math.nan), scores(), Outcome.UNKNOWN),
        (scores(prose=-9.0), scores(), Outcome.WARN),
        (scores(prose=-9.0), scores(code=-9.0), Outcome.REFUSE),
        (None, scores(), Outcome.PASS),
        (None, scores(prose=-9.0, code=-8.5), Outcome.REFUSE),
        (None, scores(prose=-9.0), Outcome.WARN),
        (None, scores(prose=-math.inf), Outcome.REFUSE),
        (Scores(rejected="HTTP 400"), scores(), Outcome.PASS),
        (Scores(rejected="it did not serve"), scores(prose=-12.0, code=-11.5), Outcome.REFUSE),
        (scores(), Scores(rejected="HTTP 400"), Outcome.WARN),
        (None, Scores(rejected="HTTP 400"), Outcome.UNKNOWN),
        (scores(), Scores({"prose": -2.0}, {"prose": 99}), Outcome.PASS),
        (scores(), Scores({"prose": -12.0}, {"prose": 99}), Outcome.REFUSE),
    ],
)
def test_likelihoods(old: Scores | None, new: Scores, outcome: str) -> None:
    assert compare_likelihoods(old, new, POLICY).outcome == outcome


def test_a_refusal_names_the_text_and_both_scores() -> None:
    verdict = compare_likelihoods(scores(), scores(prose=-7.5), POLICY)

    assert "-5.5000 nats (prose), tolerance 0.05" in verdict.detail
    assert "prose: -2.0000 -> -7.5000" in verdict.evidence


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (["", "", ""], ["", "", ""], Outcome.PASS),
        (["", "", ""], ["repeats", "", ""], Outcome.WARN),
        (["", "", ""], ["repeats", "repeats", ""], Outcome.REFUSE),
        (["repeats", "", ""], ["repeats", "", ""], Outcome.PASS),
        (["repeats"] * 3, ["repeats"] * 3, Outcome.UNKNOWN),
        ([], ["repeats"] * 3, Outcome.REFUSE),
        ([], ["", "", "repeats"], Outcome.WARN),
        ([], ["", "", ""], Outcome.PASS),
    ],
)
def test_greedy_output_is_held_against_the_old_servers(old: list[str], new: list[str], outcome: str) -> None:
    assert compare_greedy(scores(decayed=old), scores(decayed=new), POLICY).outcome == outcome


def test_a_model_that_is_known_to_write_garbage_may_be_launched() -> None:
    lenient = dataclasses.replace(POLICY, garbage=Garbage.WARN)

    assert compare_greedy(None, scores(decayed=["repeats"] * 3), POLICY).outcome == Outcome.REFUSE
    assert compare_greedy(None, scores(decayed=["repeats"] * 3), lenient).outcome == Outcome.WARN
    assert compare_greedy(scores(decayed=[""] * 3), scores(decayed=["repeats"] * 3), lenient).outcome == Outcome.REFUSE


def test_what_a_model_wrote_is_shown_cut_and_harmless() -> None:
    verdict = compare_greedy(None, scores(decayed=["repeats"] * 3, greedy=["\x1b[2Jx" * 900] * 3), POLICY)

    assert all(len(line) <= 200 and line.isprintable() for line in verdict.evidence)


@pytest.mark.parametrize(
    ("text", "ids", "wrong"),
    [
        ("The sky is blue because of scattering", list(range(64)), None),
        ("a b a b", [1, 2] * 32, "repeats 2 tokens"),
        ("fine then stuck", [*range(32), *[7] * 32], "repeats 1 tokens"),
        ("\ufffd\ufffd\x00ok", list(range(64)), "unreadable"),
        ("   ", list(range(64)), "empty"),
        ("!" * 64, [], "repeats '!'"),
        ("The answer is 1010101010101010101010", list(range(16)), "repeats '0'"),
        ("the the the the the the the the the the the the the the the the", [], "repeats 1 tokens"),
    ],
)
def test_decay(text: str, ids: list[int], wrong: str | None) -> None:
    found = decay(Generation(text, 5, 64, 0, ids))

    assert (found is None) if wrong is None else (wrong in str(found))


def test_the_first_token_has_no_logprob() -> None:
    answer = {"meta_info": {"input_token_logprobs": [[None, 1, None], *[[-0.5, token, None] for token in range(10)]]}}

    assert read_input_logprobs(answer) == [-0.5] * 10


def test_a_logprob_that_is_null_later_is_no_number() -> None:
    answer = {"meta_info": {"input_token_logprobs": [[None, 1, None], *[[None, token, None] for token in range(10)]]}}

    assert all(math.isnan(value) for value in read_input_logprobs(answer))


@pytest.mark.parametrize(
    "answer", [None, {}, {"meta_info": {}}, {"meta_info": {"input_token_logprobs": [[None, 1, None], [-1.0, 2, None]]}}]
)
def test_answers_without_logprobs(answer: object) -> None:
    with pytest.raises(NotScoredError):
        read_input_logprobs(answer)


def good_answer(**meta: object) -> dict[str, object]:
    return {"text": "x", "output_ids": [1, 2, 3, 4], "meta_info": {"finish_reason": {"type": "length"}, "completion_tokens": 4, **meta}}


def test_a_generation_is_read() -> None:
    generation = read_generation(good_answer(prompt_tokens=7, cached_tokens=None), 4)

    assert (generation.completion_tokens, generation.prompt_tokens, generation.cached_tokens) == (4, 7, 0)


@pytest.mark.parametrize(
    "answer",
    [[], {"text": "x"}, good_answer(completion_tokens=3), good_answer(finish_reason={"type": "abort"}), good_answer(finish_reason=None)],
)
def test_bad_generations(answer: object) -> None:
    with pytest.raises(BadGeneration):
        read_generation(answer, 4)


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (good_answer(finish_reason={"type": "stop"}, completion_tokens=2), True),
        (good_answer(), True),
        (good_answer(completion_tokens=3), False),
        (good_answer(finish_reason={"type": "abort"}), False),
    ],
)
def test_a_text_may_end_before_its_limit(answer: object, good: bool) -> None:
    if good:
        assert read_generation(answer, 4, may_end=True).text == "x"
        return
    with pytest.raises(BadGeneration):
        read_generation(answer, 4, may_end=True)
