"""Comparing kept decode timings: what differs, launches, findings and their words."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.wire_base import Fact, to_json
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting
from orchestrator.agent.wire_measure import (
    SCHEMA,
    BatchTiming,
    Covariates,
    FloorInputs,
    Gaps,
    GpuSeries,
    Invalid,
    MeasureReport,
    Reason,
    RepeatTiming,
)
from orchestrator.errors import InvalidTimingError, UsageError
from orchestrator.flows.compare import compare
from orchestrator.results.comparison import compare_sides, contrast_sentences, finding_words, launches, percent
from orchestrator.results.differing import Differing, Varying, differing, varying
from orchestrator.results.measurements import FILE, Measurement, batch_sizes, load, load_side
from orchestrator.results.statistics import Finding

SIX = (1.000, 1.002, 0.999, 1.001, 1.000, 0.998)
GPU = GpuSeries(
    0,
    "GPU-0",
    "NVIDIA B200",
    9,
    sm_clock=[1900.0, 1980.0, 1980.0],
    temperature=[50.0, 55.0, 60.0],
    reasons={"gpu_idle": 2},
    power_limit=600.0,
)
COVARIATES = Covariates(
    sglang="0.5.23",
    packages={"torch": "2.9.1"},
    driver="580.159.04",
    backend="flashinfer_cutlass",
    requested_kernels={"moe_runner_backend": "flashinfer_cutlass"},
    arguments=["--model-path", "/m", "--moe-runner-backend", "flashinfer_cutlass", "--tp-size", "8", "--trust-remote-code"],
    knobs=[KnobResult(KnobSetting("sysctl", "kernel.numa_balancing"), KnobOutcome.OBSERVED, {"": "0"}, {"": "0"})],
    gpus=[GPU],
    launch_id="one",
    age=100.0,
    cold_caches=[],
    facts=[Fact("mps", False, "/tmp/nvidia-mps/control")],
)


def repeat(seconds: float) -> RepeatTiming:
    gaps = Gaps(seconds, seconds, seconds, seconds, 255)
    return RepeatTiming(1000.0, 3.0, [0.05], seconds, 2.55, 255, gaps, 1 / seconds, 1 / seconds, 256, 256, 256)


def measurement(
    launch: str = "one",
    step: float = 0.01,
    sizes: Sequence[int] = (1, 4),
    began: float = 1000.0,
    invalid: Sequence[Invalid] = (),
    **covariates: Any,
) -> Measurement:
    batches = [BatchTiming(size, [repeat(step * size**0.5 * share) for share in SIX]) for size in sizes]
    found = dataclasses.replace(COVARIATES, launch_id=launch, **covariates)
    floor = FloorInputs(model_path="/models/glm5")
    report = MeasureReport("/v1/completions", 256, 256, {"temperature": 0.0}, began, 60.0, batches, list(invalid), found, floor)
    return Measurement(f"run-{launch}-{began:g}", "gpu1/101", "glm5", report)


def asked(item: Measurement, **changes: Any) -> Measurement:
    return dataclasses.replace(item, report=dataclasses.replace(item.report, **changes))


def test_each_batch_size_that_both_have_timed_is_compared() -> None:
    compared = compare_sides([measurement("one", sizes=(1, 4, 16))], [measurement("two", 0.0105, sizes=(1, 4, 64))])
    assert [batch.batch_size for batch in compared.batches] == [1, 4]
    first = compared.batches[0]
    assert (first.first, first.second) == pytest.approx((0.01, 0.0105))
    assert first.contrast.ratio == pytest.approx(1.05)
    assert first.contrast.finding is Finding.SLOWER
    assert "timed on one side only: batch 16, 64" in compared.remarks


def test_runs_of_one_launch_are_one_launch() -> None:
    side = [measurement("one", began=2000.0, step=0.011), measurement("one"), measurement("two", began=3000.0)]
    found = launches(side, 1)
    assert [(len(launch.values), launch.started) for launch in found] == [(12, 1000.0), (6, 3000.0)]
    assert found[0].values[0] < found[0].values[6], "in the order in which they were timed"


def test_a_server_that_is_not_ours_is_told_by_its_process() -> None:
    one, again, other = (measurement("x", main_pid=pid, started=1.0) for pid in (7, 7, 8))
    foreign = [asked(item, covariates=dataclasses.replace(item.report.covariates, launch_id=None)) for item in (one, again, other)]
    assert len(launches(foreign, 1)) == 2


def test_the_same_launch_on_both_sides_is_remarked() -> None:
    assert any("same launch" in remark for remark in compare_sides([measurement()], [measurement(began=2000.0)]).remarks)


def test_repeats_that_something_speaks_against_are_left_out_while_there_are_others() -> None:
    item = measurement(invalid=[Invalid(Reason.OTHERS, "", 1, 0), Invalid(Reason.LINK, "GPU 0")])
    assert [len(launches([item], size)[0].values) for size in (1, 4)] == [5, 6]
    doubted = measurement(invalid=[Invalid(Reason.OTHERS, "", 1, place) for place in range(6)])
    assert len(launches([doubted], 1)[0].values) == 6


def test_what_is_not_to_be_believed_is_compared_only_when_told() -> None:
    sides = [measurement("one")], [measurement("two", invalid=[Invalid(Reason.OTHERS, "3 requests ran", 4, 1)])]
    with pytest.raises(InvalidTimingError) as refused:
        compare(*sides)
    assert refused.value.exit_code == 9
    assert refused.value.evidence == ["run-two-1000: others: 3 requests ran [batch 4]"]
    assert len(compare(*sides, invalid=True).batches) == 2


def test_without_a_common_batch_size_there_is_nothing_to_compare() -> None:
    with pytest.raises(UsageError, match="no batch size"):
        compare([measurement(sizes=(1,))], [measurement(sizes=(4,))])


def test_what_is_alike_does_not_differ() -> None:
    assert differing([measurement("one")], [measurement("two", age=150.0)]) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sglang": "0.5.20"}, Differing("SGLang", "0.5.23", "0.5.20")),
        ({"sglang": None}, Differing("SGLang", "0.5.23", "-")),
        ({"backend": "cutedsl"}, Differing("backend", "flashinfer_cutlass", "cutedsl")),
        ({"requested_kernels": {"moe_runner_backend": "triton"}}, Differing("moe_runner_backend", "flashinfer_cutlass", "triton")),
        ({"resolved_kernels": {"attention_backend": "fa3"}}, Differing("attention_backend by the log", "-", "fa3")),
        ({"packages": {"torch": "2.10"}}, Differing("torch", "2.9.1", "2.10")),
        ({"arguments": COVARIATES.arguments[:-1]}, Differing("--trust-remote-code", "", "-")),
        ({"arguments": [*COVARIATES.arguments[:5], "4", "--trust-remote-code"]}, Differing("--tp-size", "8", "4")),
        ({"knobs": [KnobResult(KnobSetting("sysctl", "kernel.numa_balancing"), KnobOutcome.OBSERVED, {"": "1"}, {"": "1"})]},
         Differing("kernel.numa_balancing", "0", "1")),
        ({"gpus": [dataclasses.replace(GPU, sm_clock=[1500.0, 1600.0, 1980.0])]}, Differing("GPU clock, median", "1980 MHz", "1600 MHz")),
        ({"gpus": [dataclasses.replace(GPU, temperature=[50.0, 75.0, 80.0])]}, Differing("GPU temperature, median", "55 °C", "75 °C")),
        ({"gpus": [dataclasses.replace(GPU, reasons={"sw_power_cap": 9})]}, Differing("clocks held down by", "-", "sw_power_cap")),
        ({"gpus": [dataclasses.replace(GPU, power_limit=450.0)]}, Differing("power limit", "600 W", "450 W")),
        ({"gpus": [GPU, dataclasses.replace(GPU, index=1)]}, Differing("GPUs", "1 x NVIDIA B200", "2 x NVIDIA B200", asked=True)),
        ({"cold_caches": ["never verified"]}, Differing("caches of compiled kernels", "warm", "cold")),
        ({"facts": [Fact("mps", True, "")]}, Differing("mps", "False", "True")),
        ({"age": 5000.0}, Differing("time since start", "100 s", "5000 s")),
    ],
)  # fmt: skip
def test_what_differs_is_named(changes: dict[str, Any], expected: Differing) -> None:
    assert differing([measurement("one")], [measurement("two", **changes)]) == [expected]


def test_the_port_of_a_staged_starts_gate_is_no_difference() -> None:
    gated = [*COVARIATES.arguments, "--gated-launch-port", "12703"]
    assert differing([measurement("one")], [measurement("two", arguments=gated)]) == []


def test_any_number_of_timings_may_differ() -> None:
    items = [measurement("one"), measurement("two", driver="590.1"), measurement("three", age=5000.0)]
    assert varying([[item] for item in items]) == [
        Varying("driver", ("580.159.04", "590.1", "580.159.04")),
        Varying("time since start", ("100 s", "100 s", "5000 s")),
    ]
    assert varying([[items[0]]]) == varying([]) == []


def test_what_is_not_known_of_one_timing_does_not_hide_a_difference_of_others() -> None:
    items = [measurement("one"), measurement("two", gpus=[dataclasses.replace(GPU, sm_clock=None)]), slow_clock()]
    assert varying([[item] for item in items]) == [Varying("GPU clock, median", ("1980 MHz", "-", "1600 MHz"))]


def slow_clock() -> Measurement:
    return measurement("three", gpus=[dataclasses.replace(GPU, sm_clock=[1500.0, 1600.0, 1980.0])])


def test_what_was_timed_itself_comes_first() -> None:
    second = asked(measurement("two", sglang="0.5.20"), output_tokens=512, sampling={"temperature": 0.8}, input_tokens=258)
    found = differing([measurement("one")], [second])
    assert [(item.name, item.asked) for item in found] == [("output tokens", True), ("sampling", True), ("SGLang", False)]


def test_a_side_with_several_values_shows_them_all() -> None:
    first = [measurement("one"), measurement("two", driver="590.1")]
    assert differing(first, [measurement("three")]) == [Differing("driver", "580.159.04 | 590.1", "580.159.04")]


def test_a_single_launch_a_side_says_what_it_is_blind_to() -> None:
    (batch, _) = compare_sides([measurement("one")], [measurement("two", 0.0105)]).batches
    spread, reach = contrast_sentences(batch.contrast)
    assert spread.startswith("one launch a side: blind to how launches differ among themselves; 0.6 % is assumed, and 1.8 % or more would")
    assert reach.startswith("a slowdown of 2.")
    assert reach.endswith("one of 3.0 %, seen without that assumption, takes 3 launches a side")
    assert finding_words(batch.contrast.finding, batch.contrast.ratio) == "slower by 5.0 %"


def test_several_launches_say_how_they_differ_and_what_could_have_been_seen() -> None:
    sides = [[measurement(f"{side}{step}", step) for step in steps] for side, steps in (("a", (0.01, 0.0103)), ("b", (0.0101, 0.0104)))]
    contrast = compare_sides(*sides).batches[0].contrast
    spread, reach = contrast_sentences(contrast)
    assert spread == "2 and 2 launches, which differ among themselves by 2.1 % (standard deviation)"
    assert contrast.finding is Finding.NOT_SHOWN
    assert "in nine of ten" in reach
    assert reach.endswith(f"one of 3.0 % takes {contrast.launches_needed} launches a side")
    assert finding_words(contrast.finding, contrast.ratio) == "no difference shown"


def test_a_single_value_is_said_to_tell_nothing() -> None:
    one = measurement("one")
    single = asked(one, batches=[BatchTiming(1, [repeat(0.01)])])
    contrast = compare_sides([single], [measurement("two")]).batches[0].contrast
    assert math.isinf(contrast.smallest_shown)
    assert "a single value tells nothing: repeat it" in contrast_sentences(contrast)


@pytest.mark.parametrize(("share", "text"), [(0.1234, "12 %"), (0.0301, "3.0 %"), (0.0004, "0.04 %"), (0.0, "0.00 %")])
def test_percent_is_never_rounded_away(share: float, text: str) -> None:
    assert percent(share) == text


def kept(root: Path, item: Measurement) -> Path:
    folder = root / item.label
    folder.mkdir()
    document = {"schema": SCHEMA, "place": item.place, "service": item.service, "report": item.report}
    (folder / FILE).write_text(json.dumps(to_json(document)))
    return folder


def test_a_side_is_loaded_by_path_or_by_name(tmp_path: Path) -> None:
    one, two = measurement("one"), measurement("two")
    folders = kept(tmp_path, one), kept(tmp_path, two)
    assert load_side(f"{folders[0]}, {two.label}", tmp_path) == [one, two]
    assert batch_sizes(([one], [two])) == [1, 4]


def test_a_folder_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    kept(tmp_path, measurement("one"))
    with pytest.raises(UsageError, match="no run folder other") as refused:
        load_side("other", tmp_path)
    assert refused.value.evidence == ["run-one-1000"]
    with pytest.raises(UsageError, match="needs a run folder"):
        load_side(" , ", tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "holds no decode timing"),
        ("{", "is no JSON"),
        ("[]", "has the schema None"),
        ('{"schema": "orchestrator.measure/9"}', "orchestrator.measure/9"),
        (f'{{"schema": "{SCHEMA}", "report": {{"endpoint": 1}}}}', "can't be read"),
    ],
)
def test_a_folder_without_a_readable_timing_is_told(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(UsageError, match=says):
        load(tmp_path)
