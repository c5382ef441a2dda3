"""What an answer of the probes means for the GPUs here, and how it goes together with a profile's own table."""

from __future__ import annotations

import pytest

from orchestrator.agent import kernel_probes, wire
from orchestrator.agent.kernel_probes import Limit, Probed
from orchestrator.agent.requirements import check
from orchestrator.agent.wire import Probe, Requirements

PROBE = Probe("flashinfer", "CuteDslMoEWrapper", ["gemm1_mma_tiler_mn"], load=True)
PATH = "/opt/sglang/lib/python3.12/site-packages/flashinfer/fused_moe/cute_dsl/fused_moe.py"
MARKED = Limit("marks", ["10.0", "10.3"], 342)
THERE = Probed(PROBE, True, path=PATH, line=302, values={"gemm1_mma_tiler_mn": "(128, 128)"}, limits=[MARKED])


@pytest.mark.parametrize(
    ("limit", "capability", "expected"),
    [
        (MARKED, "10.3", True),
        (MARKED, "12.0", False),
        (Limit("admits", ["10.x", "11.x"], 1), "10.7", True),
        (Limit("admits", ["10.x", "11.x"], 1), "12.0", False),
        (Limit("blocks", ["11.0"], 1), "11.0", False),
        (Limit("blocks", ["11.0"], 1), "12.0", True),
        (Limit("blocks", ["12.x"], 1), "12.1", False),
    ],
)
def test_what_a_limit_allows(limit: Limit, capability: str, expected: bool) -> None:
    assert limit.allows(capability) is expected


def judge(answer: Probed) -> wire.Verdict | None:
    found = kernel_probes.verdicts([answer], "/opt/sglang/bin/python")
    return found[0] if found else None


def test_what_is_there_is_told_with_its_defaults_and_its_place() -> None:
    verdict = judge(THERE)
    assert verdict is not None
    assert (verdict.outcome, verdict.detail) == ("pass", "CuteDslMoEWrapper is there; gemm1_mma_tiler_mn is (128, 128) by default")
    assert verdict.source == "flashinfer/fused_moe/cute_dsl/fused_moe.py:302"


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (Probed(PROBE, False, "flashinfer:CuteDslMoEWrapper", "/x/flashinfer/__init__.py"), "refuse", "in flashinfer/__init__.py"),
        (Probed(PROBE, False, "flashinfer"), "refuse", "pip show flashinfer-python"),
        (Probed(PROBE, None, "it did not answer within 60 s"), "unknown", "can't be told: it did not answer"),
        (Probed(PROBE, True, path=PATH, unloadable="ImportError: no cutlass", broken=True), "refuse", "can't be imported: ImportError"),
        (Probed(PROBE, True, path=PATH, unloadable="RuntimeError: no GPU"), "unknown", "where no GPU is visible"),
    ],
)
def test_what_is_missing_or_broken(answer: Probed, outcome: str, words: str) -> None:
    verdict = judge(answer)
    assert verdict is not None
    assert verdict.outcome == outcome
    assert words in f"{verdict.detail} {verdict.next_step}"


def test_what_may_be_missing_is_not_told() -> None:
    assert judge(Probed(Probe("cutlass", required=False), False, "cutlass")) is None


def capability(works: list[str], unproven: list[str], here: str, *answers: Probed) -> wire.Verdict:
    needed = Requirements(compute_capability=works, compute_capability_unproven=unproven)
    gpus = [wire.Gpu(0, "GPU-0", "RTX PRO 6000", here, 0, 97887)]
    [verdict] = check(needed, gpus, {}, {}, answers)
    return verdict


UNMARKED = Probed(PROBE, True, path=PATH, line=302)
FOR_12 = Probed(PROBE, True, path=PATH, line=302, limits=[Limit("marks", ["12.0"], 342)])
BLOCKED = Probed(PROBE, True, path=PATH, line=302, limits=[Limit("blocks", ["11.0"], 9)])


@pytest.mark.parametrize(
    ("works", "unproven", "here", "answer", "outcome", "words"),
    [
        (["10.0"], ["12.0"], "10.0", THERE, "pass", "compute capability 10.0"),
        (["10.0"], ["12.0"], "12.0", THERE, "refuse", "CuteDslMoEWrapper, which the backend runs, is not made for compute capability 12.0"),
        # A fork with kernels for this GPU under the same name.
        (["10.0"], ["12.0"], "12.0", FOR_12, "warn", "CuteDslMoEWrapper is made for compute capability 12.0; nobody has shown"),
        (["10.0"], [], "12.0", FOR_12, "warn", "is made for compute capability 12.0"),
        # What was shown to work counts before a marker that only marks.
        (["12.0"], [], "12.0", THERE, "warn", "not marked for compute capability 12.0, where the backend is known to work"),
        # Where the source says nothing, the table does.
        (["10.0"], ["12.0"], "12.0", UNMARKED, "warn", "nobody has shown the backend to work on compute capability 12.0"),
        (["10.0"], [], "12.0", UNMARKED, "refuse", "does not run on compute capability 12.0 (it needs 10.0)"),
        (["10.0"], [], "12.0", BLOCKED, "refuse", "does not run on compute capability 12.0"),
        (["10.0"], ["11.0"], "11.0", BLOCKED, "refuse", "is not made for compute capability 11.0"),
        ([], [], "12.0", THERE, "refuse", "is not made for"),
    ],
)
def test_the_source_counts_before_the_table(
    works: list[str], unproven: list[str], here: str, answer: Probed, outcome: str, words: str
) -> None:
    verdict = capability(works, unproven, here, answer)
    assert verdict.outcome == outcome
    assert words in verdict.detail


def test_a_verdict_says_on_what_it_rests() -> None:
    from_source = capability(["10.0"], ["12.0"], "12.0", THERE)
    assert from_source.source == "flashinfer/fused_moe/cute_dsl/fused_moe.py:302"
    assert "CuteDslMoEWrapper is marked for 10.0, 10.3 (flashinfer/fused_moe/cute_dsl/fused_moe.py:342)" in from_source.evidence
    assert capability(["10.0"], ["12.0"], "12.0", UNMARKED).source == "the backend profile's own table"


def test_the_first_that_says_anything_counts() -> None:
    behind = Probed(Probe("cutlass", "Op", required=False), True, path="/x/cutlass/mma.py", limits=[Limit("admits", ["10.0"], 9)])
    assert capability(["10.0"], ["12.0"], "12.0", FOR_12, behind).outcome == "warn"
    assert capability(["10.0"], ["12.0"], "12.0", UNMARKED, behind).outcome == "refuse"
