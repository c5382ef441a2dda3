"""What a notice says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.agent import wire
from orchestrator.agent.notice_text import ending, notice_text
from orchestrator.agent.wire import DecodeTiming, State
from orchestrator.agent.wire_notice import Afterwards, Told

ORDER = wire.Order("O1", wire.OrderKind.RELAUNCH, "glm5", "/state", 30000, wire.Policy(), "ann@laptop", "night shift")
AFTERWARDS = Afterwards("relaunch", "gpu1", "triton", "flashinfer_cutedsl", notice=[Told.FAILURE, Told.SUCCESS])
DONE = wire.OrderResult(
    "O1",
    State.DONE,
    0,
    "launch L1 serves",
    "served by launch L1",
    baseline=DecodeTiming(tokens_per_second=40.0, time_per_output_token=0.025),
    measured=DecodeTiming(tokens_per_second=50.0, time_per_output_token=0.02),
    dark_seconds=44.04,
    lost_requests=0,
)


def test_a_success_tells_who_what_the_cost_and_the_speed() -> None:
    assert notice_text(ORDER, AFTERWARDS, DONE).split("\n") == [
        "relaunch of glm5 on gpu1: DONE, launch L1 serves",
        "by ann@laptop (night shift), triton -&gt; flashinfer_cutedsl, order O1",
        "now: served by launch L1; dark for 44.0 s; no requests lost",
        "decode, batch 1, tokens per second: 40.0 -&gt; 50.0 (1.25 times)",
    ]


def test_a_failure_tells_its_class_and_a_command_that_names_the_service() -> None:
    failure = wire.Failure("out_of_memory", "the KV cache did not fit", ["SECRET LINE OF A LOG"])
    result = replace(
        DONE, state=State.DOWN, exit_code=7, failure=failure, measured=None, next_step="fab status, then fab logs", lost_requests=1
    )
    lines = notice_text(ORDER, AFTERWARDS, result).split("\n")
    assert lines[2] == "now: served by launch L1; dark for 44.0 s so far; 1 request lost"
    assert lines[3] == "decode, batch 1, tokens per second: 40.0 -&gt; not timed"
    assert lines[4:] == [
        "failure: out_of_memory, the KV cache did not fit",
        "next: fab status --host gpu1 --service glm5, then fab logs --host gpu1 --service glm5",
    ]
    assert "SECRET LINE" not in "\n".join(lines)


def test_what_the_first_line_says_is_not_said_twice() -> None:
    failure = wire.Failure("kernel_missing", "there is no kernel for this GPU")
    text = notice_text(ORDER, AFTERWARDS, replace(DONE, exit_code=6, summary="there is no kernel for this GPU", failure=failure))
    assert "\nfailure: kernel_missing\n" in text


def test_a_failure_without_advice_names_attach() -> None:
    text = notice_text(ORDER, AFTERWARDS, replace(DONE, state=State.RESTORED, exit_code=6))
    assert text.endswith("\nnext: fab attach --host gpu1 --service glm5 --order O1")


def test_nobodys_words_wake_a_channel_or_make_a_line_of_their_own() -> None:
    order = replace(ORDER, reason="look\nnow <!channel> & <https://evil|here>")
    text = notice_text(order, AFTERWARDS, DONE)
    assert "<" not in text
    assert "(look now &lt;!channel&gt; &amp; &lt;https://evil|here&gt;)" in text
    assert len(text.split("\n")) == 4


def test_a_text_of_any_length_is_kept_short() -> None:
    order = replace(ORDER, reason="why " * 1000)
    failure = wire.Failure("unknown", "words " * 1000)
    text = notice_text(order, AFTERWARDS, replace(DONE, exit_code=6, summary="s " * 1000, failure=failure))
    assert len(text) < 2000
    assert "..." in text


@pytest.mark.parametrize(
    ("afterwards", "said"),
    [
        (replace(AFTERWARDS, verb="teardown", new_backend=None), "by ann@laptop (night shift), was triton, order O1"),
        (
            replace(AFTERWARDS, verb="launch", old_backend=None),
            "by ann@laptop (night shift), nothing known -&gt; flashinfer_cutedsl, order O1",
        ),
        (replace(AFTERWARDS, old_backend=None, new_backend=None), "by ann@laptop (night shift), order O1"),
    ],
)
def test_what_is_not_known_of_the_backends_is_not_told(afterwards: Afterwards, said: str) -> None:
    assert notice_text(ORDER, afterwards, DONE).split("\n")[1] == said


def test_a_timing_that_was_skipped_is_none() -> None:
    result = replace(DONE, baseline=DecodeTiming(skipped="no room"), measured=DecodeTiming(skipped="no room"))
    assert "decode" not in notice_text(ORDER, AFTERWARDS, result)


@pytest.mark.parametrize(("code", "told"), [(0, Told.SUCCESS), (3, Told.FAILURE), (6, Told.FAILURE), (7, Told.FAILURE)])
def test_what_is_a_success(code: int, told: str) -> None:
    assert ending(replace(DONE, exit_code=code)) == told
