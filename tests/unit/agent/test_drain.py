"""Counting the requests that a stop costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from orchestrator.agent.drain import Requests
from orchestrator.agent.http import RefusedError
from orchestrator.agent.sglang import Lagging

CLOSED = RefusedError("gone")
Said = int | None | Exception


def says(answers: Sequence[Said]) -> Callable[[], int | None]:
    left = list(answers)

    def load() -> int | None:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return load


def after(answers: Sequence[Said], *, abort: bool = False, killed: bool = False, finished: bool | None = False) -> int | None:
    """Look at each answer in turn (aborting after each, if said); with `killed` the last one is what is seen before SIGKILL."""
    requests = Requests(says(answers), (lambda: True) if abort else None)
    for _ in range(len(answers) - killed):
        requests.read()
        requests.abort()
    if killed:
        requests.cut_off()
    return requests.lost(finished=finished)


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([3, 2, 0], 0),
        ([0], 0),
        ([None, None], None),
        ([ConnectionResetError(), None], None),
        ([3, None, 0], 0),
        ([CLOSED], 0),
        ([2, CLOSED], 2),
        ([2, 0, CLOSED], 0),
        ([2], 2),
        ([Lagging(2), Lagging(0)], None),
    ],
)
def test_when_it_ended_otherwise_what_was_seen_last_is_lost(answers: list[Said], lost: int | None) -> None:
    assert after(answers) == lost


@pytest.mark.parametrize(
    ("answers", "lost"),
    [([3, 2, 0], 0), ([3, CLOSED], None), ([2], None), ([CLOSED], 0), ([2, 0, CLOSED], 0)],
)
def test_without_an_exit_status_what_was_seen_last_may_have_finished(answers: list[Said], lost: int | None) -> None:
    assert after(answers, finished=None) == lost


@pytest.mark.parametrize("answers", [[2], [2, CLOSED], [5, 3]])
def test_a_server_that_ended_of_itself_had_finished(answers: list[Said]) -> None:
    assert after(answers, finished=True) == 0


@pytest.mark.parametrize(
    ("answers", "lost"),
    [([4, 4], 4), ([4, 0], 0), ([0, 2], 2), ([4, None], None), ([4, CLOSED], 4), ([None, 3], None)],
)
def test_what_runs_at_a_sigkill_is_lost(answers: list[Said], lost: int | None) -> None:
    assert after(answers, killed=True) == lost


@pytest.mark.parametrize(
    ("answers", "lost"),
    [
        ([4, 0, 0], 4),
        ([4, 0, 3, 0], 7),
        ([4, 4, 4], 4),
        ([4, 6, 0], 6),
    ],
)
def test_aborted_requests_are_counted_once(answers: list[Said], lost: int) -> None:
    assert after(answers, abort=True, finished=True) == lost


def test_what_was_aborted_is_lost_even_without_an_exit_status() -> None:
    assert after([2, 2], abort=True, finished=None) == 2


def test_an_abort_that_breaks_does_not_stop_the_stop() -> None:
    def broken() -> None:
        raise ConnectionResetError

    requests = Requests(says([2]), broken)
    requests.read()
    requests.abort()

    assert requests.lost(finished=False) == 2
