"""How many requests a second a server ends, by its counter at two moments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.agent.http import HttpError
from orchestrator.agent.request_rate import RequestRate, total_of

METRICS = """# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="m",dp_rank="0"} 30.0
sglang:num_requests_total{model_name="m",dp_rank="1"} 12.0
sglang:num_running_reqs{model_name="m"} 3.0
"""


class FakeClient:
    """Answers with one counter after the other; None: it does not answer."""

    def __init__(self, *totals: float | None) -> None:
        self._totals: Iterator[float | None] = iter(totals)

    def get(self, path: str, timeout: float) -> FakeClient:
        total = next(self._totals)
        if total is None:
            raise HttpError("gone")
        self.status, self.body = 200, f"sglang:num_requests_total {total}\n"
        return self

    def text(self) -> str:
        return self.body


def measured(monkeypatch: pytest.MonkeyPatch, seconds: float, *totals: float | None) -> float | None:
    moments = iter((100.0, 100.0 + seconds))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    return RequestRate(FakeClient(*totals))()  # type: ignore[arg-type]


def test_the_counters_of_all_ranks_are_added() -> None:
    assert total_of(METRICS) == 42.0
    assert total_of("sglang:num_running_reqs 3.0") is None


@pytest.mark.parametrize(
    ("seconds", "totals", "rate"),
    [
        (10.0, (42.0, 62.0), 2.0),
        (10.0, (42.0, 42.0), 0.0),
        (1.0, (42.0, 62.0), None),
        (10.0, (42.0, 3.0), None),
        (10.0, (42.0, None), None),
    ],
)
def test_a_rate_is_told_where_two_looks_tell_it(
    monkeypatch: pytest.MonkeyPatch, seconds: float, totals: tuple[float | None, ...], rate: float | None
) -> None:
    assert measured(monkeypatch, seconds, *totals) == rate


def test_nobody_to_ask_has_no_rate() -> None:
    assert RequestRate(None)() is None
