"""Which deadline holds for a phase, and where its value comes from."""

from __future__ import annotations

import typing

import pytest

from orchestrator.agent.load_limits import LoadLimits, told
from orchestrator.agent.phases import Phase
from orchestrator.agent.wire import PhaseLimits, Policy
from orchestrator.config.models import PhaseName

COLD = ("FlashInfer: /root/.cache/flashinfer is missing or empty",)
PHASES = [value for name, value in vars(Phase).items() if name.isupper()]


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_limits_that_are_no_shorter_with_cold_caches(phase: str) -> None:
    warm, cold = LoadLimits(Policy()), LoadLimits(Policy(), COLD)
    for limits in (warm, cold):
        total = limits.total(phase)
        assert total is not None
        assert limits.stall(phase).seconds <= total.seconds <= limits.whole().seconds
    assert (warm.total(phase) or 0).seconds <= (cold.total(phase) or 0).seconds  # type: ignore[union-attr]
    assert warm.stall(phase).seconds <= cold.stall(phase).seconds


def test_the_inventory_names_the_same_phases() -> None:
    assert list(typing.get_args(PhaseName)) == PHASES


def test_a_services_own_limit_holds_whatever_the_caches_are() -> None:
    policy = Policy(phases={"weights": PhaseLimits(total=60, stall=5)})
    for cold in ((), COLD):
        limits = LoadLimits(policy, cold)
        assert str(limits.total("weights")) == "the limit for one phase (policy: phases: weights: total)"
        assert limits.stall("weights").seconds == 5
        assert limits.stall("autotune").source != "policy: phases: weights: stall"


def test_a_services_limit_for_cold_caches_holds_only_then() -> None:
    policy = Policy(phases={"autotune": PhaseLimits(total=60, cold_total=9000)})
    warm, cold = LoadLimits(policy).total("autotune"), LoadLimits(policy, COLD).total("autotune")

    assert (warm and warm.seconds, cold and cold.seconds) == (60, 9000)
    assert cold is not None
    assert cold.source == "policy: phases: autotune: cold_total"


def test_the_service_can_set_one_limit_for_all_phases() -> None:
    limits = LoadLimits(Policy(load_stall=7, load_total=70, phases={"weights": PhaseLimits(stall=3)}), COLD)

    assert (limits.stall("imports").seconds, limits.stall("weights").seconds, limits.whole().seconds) == (7, 3, 70)
    assert limits.stall("imports").source == "policy: load_stall"


def test_where_no_log_tells_the_phase_only_the_whole_load_is_limited() -> None:
    limits = LoadLimits(Policy())

    assert limits.total(None) is None
    assert limits.stall(None).seconds == max(limits.stall(phase).seconds for phase in PHASES)


def test_a_default_says_whether_the_caches_were_cold_and_why() -> None:
    assert LoadLimits(Policy()).whole().source == "the default with warm caches"
    assert LoadLimits(Policy(), COLD).whole().source == f"the default with cold caches: {COLD[0]}"


def test_limits_are_told_in_short() -> None:
    assert told(Policy()) == ["load 3600 s in all (10800 s with cold caches)", "300 to 1800 s without progress, by phase"]
    assert told(Policy(load_total=60, load_stall=5)) == ["load 60 s in all", "5 s without progress"]
