"""What a host and its container tell only together, one check asked twice, and a tuning profile in one line."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agent.wire import Fact, Outcome, Verdict
from orchestrator.agent.wire_host import DoctorReport, FactName, KnobOutcome, KnobResult, KnobSetting, PlaceKind
from orchestrator.flows.findings import Expected, PlaceFindings, better, each_once, knobs_of, together, tuning_verdict

BOOT, STARTED = 1764400000.0, 1000.0
CORE = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (511, 0), "/dev/nvidia0": (195, 0), "/dev/nvidia1": (195, 1)}
EXPECTED = Expected(gpus=2, restart="on gpu1: pct reboot 101")


def nodes(numbers: dict[str, tuple[int, int]], changed: float = 500.0) -> dict[str, Any]:
    return {path: {"major": major, "minor": minor, "changed": changed} for path, (major, minor) in numbers.items()}


def place(kind: str, verdicts: list[Verdict] | None = None, **facts: Any) -> PlaceFindings:
    values = {FactName.BOOTED: BOOT, FactName.STARTED: STARTED, FactName.DRIVER_MODULE: "580.159.04", **facts}
    report = DoctorReport(verdicts or [], [Fact(name, value, f"source of {name}") for name, value in values.items()])
    return PlaceFindings(kind, "gpu1" if kind == PlaceKind.HOST else "gpu1/101", report)


def host(verdicts: list[Verdict] | None = None, **facts: Any) -> PlaceFindings:
    return place(PlaceKind.HOST, verdicts, **{FactName.DEVICE_NODES: nodes(CORE), **facts})


def container(verdicts: list[Verdict] | None = None, **facts: Any) -> PlaceFindings:
    usual = {FactName.DEVICE_NODES: nodes(CORE), FactName.DRIVER_LIBRARY: "580.159.04"}
    return place(PlaceKind.CONTAINER, verdicts, **{**usual, **facts})


def outcomes(verdicts: list[Verdict]) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in verdicts}


def test_a_host_and_its_container_in_order_pass_and_say_where_it_was_read() -> None:
    found = together(host(), container(), EXPECTED)
    assert outcomes(found) == {"same_machine": "pass", "driver_versions": "pass", "device_nodes": "pass"}
    assert all(verdict.source for verdict in found)


def test_a_container_of_another_machine_is_red_and_nothing_else_is_compared() -> None:
    (found,) = together(host(), container(booted=1764400001.0, driver_library="535.1"), EXPECTED)
    assert (found.check, found.outcome) == ("same_machine", Outcome.REFUSE)
    assert "gpu1/101 does not run on gpu1" in found.detail
    assert "hosts.yml" in str(found.next_step)


def test_without_one_of_the_two_nothing_is_compared() -> None:
    unknown = PlaceFindings(PlaceKind.HOST, "gpu1", problem=Verdict("reach", Outcome.WARN, "no route"))
    assert together(unknown, container(), EXPECTED) == []


def test_places_without_gpus_have_nothing_to_compare_but_where_they_are() -> None:
    bare: dict[str, Any] = {FactName.DRIVER_MODULE: None, FactName.DRIVER_LIBRARY: None, FactName.DEVICE_NODES: {}}
    assert outcomes(together(host([], **bare), container([], **bare), Expected())) == {"same_machine": "pass"}


@pytest.mark.parametrize(
    ("library", "said", "path", "outcome"),
    [
        ("580.126.09", None, "/usr/lib/libcuda.so.1", Outcome.REFUSE),
        ("580.126.09", Verdict("driver_library", Outcome.UNKNOWN, "no version"), "/usr/lib/libcuda.so.1", Outcome.REFUSE),
        ("580.126.09", Verdict("driver_library", Outcome.REFUSE, "differs"), "/usr/lib/libcuda.so.1", None),
        ("590.1", None, "/usr/local/cuda/compat/libcuda.so.1", Outcome.WARN),
        (None, None, "ldconfig -p", None),
    ],
)
def test_library_and_module_are_compared_whole_unless_the_container_has_said_so(
    library: str | None, said: Verdict | None, path: str, outcome: str | None
) -> None:
    inside = container([said] if said is not None else [], driver_library=library)
    assert inside.report is not None
    inside.report.facts[:] = [Fact(fact.name, fact.value, path) if fact.name == "driver_library" else fact for fact in inside.report.facts]
    found = outcomes(together(host(), inside, EXPECTED))
    assert found.get("driver_versions") == outcome


def without(*paths: str) -> dict[str, Any]:
    return nodes({path: number for path, number in CORE.items() if path not in paths})


OLD_UVM = {**nodes(CORE), **nodes({"/dev/nvidia-uvm": (509, 0)})}


@pytest.mark.parametrize(
    ("inside", "outside", "gpus", "outcome", "words"),
    [
        (without("/dev/nvidia-uvm"), nodes(CORE), 2, Outcome.REFUSE, "/dev/nvidia-uvm of the host is missing in gpu1/101"),
        (without("/dev/nvidia-uvm"), nodes(CORE), None, Outcome.REFUSE, "/dev/nvidia-uvm"),
        (without("/dev/nvidia1"), nodes(CORE), 2, Outcome.REFUSE, "/dev/nvidia1 of the host is missing"),
        (without("/dev/nvidia1"), nodes(CORE), 1, Outcome.PASS, "1 of 2 GPU devices"),
        (without("/dev/nvidia1"), nodes(CORE), None, Outcome.PASS, "1 of 2 GPU devices"),
        ({}, nodes(CORE), None, Outcome.WARN, "none of gpu1's 4 NVIDIA devices"),
        ({}, nodes(CORE), 2, Outcome.REFUSE, "and 1 more"),
        (OLD_UVM, nodes(CORE), 2, Outcome.REFUSE, "number of an earlier load"),
        (nodes(CORE, 400.0), nodes(CORE, STARTED + 60), 2, Outcome.WARN, "newer than the start"),
        (nodes(CORE, STARTED + 60), nodes(CORE, STARTED + 60), 2, Outcome.PASS, "2 of 2"),
        (without("/dev/nvidia-uvm"), nodes(CORE, STARTED + 60), 2, Outcome.REFUSE, "made it anew after the container was started"),
        ({**nodes(CORE), **nodes({"/dev/nvidia-modeset": (195, 254)})}, nodes(CORE), 2, Outcome.PASS, "2 of 2"),
        (nodes(CORE), {**nodes(CORE), **nodes({"/dev/nvidia-uvm-tools": (511, 1)})}, 2, Outcome.PASS, "2 of 2"),
    ],
)
def test_device_nodes_of_the_host_in_its_container(
    inside: dict[str, Any], outside: dict[str, Any], gpus: int | None, outcome: str, words: str
) -> None:
    found = together(host(device_nodes=outside), container(device_nodes=inside), Expected(gpus, "pct reboot 101"))
    (verdict,) = [verdict for verdict in found if verdict.check == "device_nodes"]
    assert verdict.outcome == outcome
    assert words in verdict.detail
    assert outcome == Outcome.PASS or verdict.next_step


def test_what_the_host_made_after_the_containers_start_is_mended_by_a_restart() -> None:
    found = together(host(device_nodes=nodes(CORE, STARTED + 60)), container(device_nodes=without("/dev/nvidia-uvm")), EXPECTED)
    assert found[-1].next_step == "on gpu1: pct reboot 101"


def test_nodes_that_cuda_mends_itself_are_yellow() -> None:
    inside = container(device_nodes=without("/dev/nvidia-uvm"))
    assert together(host(), inside, EXPECTED, cuda_works=True)[-1].outcome == Outcome.WARN
    assert together(host(), inside, EXPECTED, cuda_works=False)[-1].outcome == Outcome.REFUSE


def test_a_node_that_the_container_has_told_of_itself_is_told_once() -> None:
    told = Verdict("device_nodes", Outcome.REFUSE, "/dev/nvidia-uvm: it is missing")
    inside = container([told], device_nodes=without("/dev/nvidia-uvm"))
    assert "device_nodes" not in outcomes(together(host(), inside, EXPECTED))
    both = container([told], device_nodes=without("/dev/nvidia-uvm", "/dev/nvidia1"))
    assert outcomes(together(host(), both, EXPECTED))["device_nodes"] == Outcome.REFUSE


def test_a_container_that_needs_no_gpu_is_not_asked_for_devices() -> None:
    assert "device_nodes" not in outcomes(together(host(), container(device_nodes={}), Expected(gpus=0)))


@pytest.mark.parametrize("broken", [None, "text", [], {"/dev/nvidia0": {"major": "x"}}, {"/dev/nvidia0": 3}])
def test_facts_of_another_shape_are_unknown(broken: Any) -> None:
    found = together(host(device_nodes=broken), container(device_nodes=broken, started="x"), EXPECTED)
    assert "device_nodes" not in outcomes(found)


def knob(outcome: str, value: str | None = "0", now: str = "1", **setting: Any) -> KnobResult:
    asked = KnobSetting(**{"kind": "sysctl", "name": "kernel.numa_balancing", "value": value, **setting})
    return KnobResult(asked, outcome, {"": now}, {"": now}, source="/proc/sys/kernel/numa_balancing")


def test_drift_is_one_line_with_the_command() -> None:
    governor = KnobResult(
        KnobSetting("cpu_governor", value="performance"),
        KnobOutcome.NOT_SETTABLE,
        {"policy0": "performance", "policy1": "powersave", "policy2": "powersave"},
    )
    same, read = knob(KnobOutcome.SAME, now="0"), knob(KnobOutcome.OBSERVED, value=None)
    verdict = tuning_verdict("blackwell-pcie", "gpu1", [knob(KnobOutcome.WOULD_CHANGE), governor, same, read])
    assert verdict is not None
    assert verdict.outcome == Outcome.WARN
    assert verdict.detail == (
        "2 of 3 knobs differ from blackwell-pcie: kernel.numa_balancing is 1 (not 0), cpu_governor is powersave (not performance)"
    )
    assert verdict.next_step == "fab prep --host gpu1"
    assert verdict.source == "/proc/sys/kernel/numa_balancing"


def test_much_drift_is_counted_not_listed() -> None:
    verdict = tuning_verdict("p", "gpu1", [knob(KnobOutcome.WOULD_CHANGE, name=f"vm.k{number}") for number in range(9)])
    assert verdict is not None
    assert verdict.detail.endswith("vm.k2 is 1 (not 0), and 6 more")


@pytest.mark.parametrize(
    ("knobs", "outcome"),
    [
        ([knob(KnobOutcome.SAME)], Outcome.PASS),
        ([knob(KnobOutcome.SAME), knob(KnobOutcome.UNAVAILABLE)], Outcome.PASS),
        ([knob(KnobOutcome.SAME), knob(KnobOutcome.UNKNOWN)], Outcome.UNKNOWN),
        ([knob(KnobOutcome.UNKNOWN)], Outcome.UNKNOWN),
        ([knob(KnobOutcome.OBSERVED, value=None)], None),
        ([], None),
    ],
)
def test_a_profile_that_holds_passes_and_one_that_wants_nothing_is_not_told(knobs: list[KnobResult], outcome: str | None) -> None:
    verdict = tuning_verdict("p", "gpu1", knobs)
    assert (None if verdict is None else verdict.outcome) == outcome
    assert verdict is None or bool(verdict.next_step) == (outcome != Outcome.PASS)


def test_what_is_not_to_be_had_is_not_counted_as_wanted() -> None:
    few = [knob(KnobOutcome.SAME), knob(KnobOutcome.UNAVAILABLE), knob(KnobOutcome.UNKNOWN)]
    details = [getattr(tuning_verdict("p", "gpu1", knobs), "detail", None) for knobs in (few[:2], few)]
    assert details == [
        "1 of 2 knobs are as p wants them; 1 not to be had here",
        "1 of 3 knobs are as p wants them; 1 can't be read; 1 not to be had here",
    ]
    drifted = tuning_verdict("p", "gpu1", [*few, knob(KnobOutcome.NOT_SETTABLE)], through_container=True)
    assert drifted is not None
    assert drifted.detail.startswith("1 of 4 knobs as p wants them, 1 differs, 1 not visible from a container, 1 not to be had here: ")


def test_the_hosts_knobs_are_the_hosts_and_its_containers_where_it_can_not_be_asked() -> None:
    own = knob(KnobOutcome.SAME, name="net.core.somaxconn", place=PlaceKind.CONTAINER)
    outside = PlaceFindings(PlaceKind.HOST, "gpu1", DoctorReport([], [], [knob(KnobOutcome.SAME, now="0")]))
    inside = PlaceFindings(PlaceKind.CONTAINER, "gpu1/101", DoctorReport([], [], [knob(KnobOutcome.NOT_SETTABLE), own]))
    assert [result.outcome for result in knobs_of(outside, inside)] == [KnobOutcome.SAME, KnobOutcome.SAME]
    assert [result.outcome for result in knobs_of(PlaceFindings(PlaceKind.HOST, "gpu1"), inside)] == [
        KnobOutcome.NOT_SETTABLE,
        KnobOutcome.SAME,
    ]
    assert len(knobs_of(outside, None)) == 1


PASS, WARN, REFUSE, UNKNOWN = (Verdict("cuda", outcome, outcome) for outcome in ("pass", "warn", "refuse", "unknown"))


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (PASS, PASS, ([], [PASS])),
        (REFUSE, PASS, ([REFUSE], [])),
        (PASS, REFUSE, ([], [REFUSE])),
        (UNKNOWN, PASS, ([], [PASS])),
        (PASS, UNKNOWN, ([PASS], [])),
        (WARN, REFUSE, ([], [REFUSE])),
    ],
)
def test_of_two_answers_to_one_check_the_better_is_kept(first: Verdict, second: Verdict, kept: tuple[list[Verdict], list[Verdict]]) -> None:
    other = Verdict("port", Outcome.PASS, "free")
    assert better([first, other], [second]) == ([*kept[0], other], kept[1])


def verdict(check: str, outcome: str, detail: str = "so it is") -> Verdict:
    return Verdict(check, outcome, detail)


def test_what_one_kernel_was_asked_twice_is_told_once_and_by_the_place_that_can_tell() -> None:
    outside, inside = each_once(
        host([verdict("iommu", Outcome.WARN, "translates"), verdict("xid", Outcome.PASS), verdict("kernel_version", Outcome.PASS, "fits")]),
        container(
            [
                verdict("iommu", Outcome.WARN, "translates"),
                verdict("xid", Outcome.UNKNOWN),
                verdict("cuda", Outcome.UNKNOWN),
                verdict("kernel_version", Outcome.WARN, "was another"),
            ]
        ),
    )
    assert [(item.check, item.outcome) for item in outside] == [("kernel_version", "warn"), ("iommu", "warn"), ("xid", "pass")]
    assert [item.check for item in inside] == ["cuda"]


def test_two_machines_are_told_whole() -> None:
    same = [verdict("xid", Outcome.PASS)]
    assert each_once(host(same), container(same, booted=1764400001.0)) == (same, same)
