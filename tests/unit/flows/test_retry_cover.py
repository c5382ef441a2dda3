"""Whether a router's retries cover a switch, by experiments with the real routers and by arithmetic."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.router_settings import read_flags
from orchestrator.agent.wire_router import RouterSettings
from orchestrator.flows.retry_cover import Dark, Kind, Way, covered, held_for, suggested, waits

CASES = yaml.safe_load((Path(__file__).parent / "data/retry_cover.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_switch_is_covered_or_not(case: dict[str, Any]) -> None:
    settings = read_flags(case["flags"].split(), "the case")
    dark = Dark(case["dark"], case.get("around", 0.0), case.get("unwell", case["dark"]))
    found = covered(settings, case["kind"], case["way"], dark)
    expected = case["expect"]
    assert {name: getattr(found, name) for name in expected} == {
        name: value if value is None or isinstance(value, bool) else pytest.approx(value, abs=0.06) for name, value in expected.items()
    }
    for words in case.get("against", []):
        assert any(words in line for line in found.against), found.against
    assert found.flags == case.get("set", found.flags)


def test_waits_grow_to_the_longest() -> None:
    assert list(waits(RouterSettings(attempts=5))) == pytest.approx([0.05, 0.075, 0.1125, 0.16875])
    assert list(waits(RouterSettings(attempts=6, first=1.0, multiplier=3.0, longest=5.0))) == [1.0, 3.0, 5.0, 5.0, 5.0]
    assert list(waits(RouterSettings(attempts=1))) == []
    assert sum(itertools.islice(waits(RouterSettings(attempts=10**9, longest=1.0)), 5000)) > 4000


@given(
    st.integers(1, 400),
    st.floats(0.01, 5.0),
    st.floats(1.0, 3.0),
    st.floats(0.01, 60.0),
    st.floats(0.0, 1.0),
    st.floats(0.1, 600.0),
    st.sampled_from([Kind.SGLANG_ROUTER, Kind.SMG]),
    st.booleans(),
)
def test_what_is_suggested_covers_it(
    attempts: int, first: float, multiplier: float, longest: float, jitter: float, dark: float, kind: str, breaks: bool
) -> None:
    settings = RouterSettings(attempts, first, multiplier, longest, min(jitter, 0.9), 10 if breaks else None)
    way = Way.REMOVED if kind == Kind.SGLANG_ROUTER else Way.KEPT
    seconds = Dark(dark, 5.0, dark + 10.0)
    words = " ".join(suggested(settings, kind, way, seconds)).split()
    before = [f"--retry-max-retries={attempts}", f"--retry-initial-backoff-ms={first * 1000}", f"--retry-jitter-factor={settings.jitter}"]
    before += [f"--retry-backoff-multiplier={multiplier}", f"--retry-max-backoff-ms={longest * 1000}"]
    before += [] if breaks else ["--disable-circuit-breaker"]
    assert covered(read_flags([*before, *words], "both"), kind, way, seconds).against == []


def test_a_request_that_comes_at_any_moment_of_a_covered_span_is_answered_and_waits_no_longer_than_told() -> None:
    settings = RouterSettings(attempts=80, first=0.1, longest=1.0, jitter=0.2)
    dark = Dark(20.0, 5.0, 20.0)
    found = covered(settings, Kind.SGLANG_ROUTER, Way.REMOVED, dark)
    assert found.covered
    assert held_for(settings) > found.span
    for began, factor in itertools.product((0.0, 0.3, 7.0, 24.9), (0.8, 1.0, 1.2)):
        moment = began
        for wait in waits(settings):
            if moment >= found.span:
                break
            moment += wait * factor
        assert moment >= found.span
        assert moment - began <= (found.longest_wait or 0.0)
