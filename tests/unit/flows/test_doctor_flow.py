"""doctor, and what a diagnosis is to a relaunch, against agents that answer from scripts."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.wire import Fact, Outcome, Verdict
from orchestrator.agent.wire_host import DoctorReport, FactName, KnobOutcome, KnobResult, KnobSetting, PlaceKind
from orchestrator.config import load_inventory
from orchestrator.errors import AgentError, ConnectError, ContainerError, RefusedError, UsageError
from orchestrator.flows import doctor as module
from orchestrator.flows.doctor import Diagnosis, doctor, restart_command
from orchestrator.flows.order import Options
from orchestrator.flows.order import Outcome as Ended
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.target import Target, choose_subject, choose_target
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import healthy_agent, preflight, survey, write_inventory

NO_ANSWER = ConnectError("gpu1: no answer from 127.0.0.1:22 within 10 s", next_step="ping 127.0.0.1")
STOPPED = ContainerError("gpu1/101: the container is not running", next_step="pct start 101")
PROFILE = """
name: fast
summary: for the tests
expect: {kernel: "6.8.*-pve", driver: "580.*"}
knobs:
  - {knob: sysctl, name: kernel.numa_balancing, value: 0}
  - {knob: sysctl, name: net.core.somaxconn, value: 4096, place: container}
"""
SETTING = KnobSetting("sysctl", "kernel.numa_balancing", "0")
DRIFTED = KnobResult(SETTING, KnobOutcome.WOULD_CHANGE, {"": "1"}, {"": "1"}, source="/proc/sys/kernel/numa_balancing")


def report(*verdicts: Verdict, knobs: list[KnobResult] | None = None, **facts: Any) -> DoctorReport:
    values = {FactName.BOOTED: 1764400000.0, FactName.KERNEL: "6.8.12-4-pve", **facts}
    return DoctorReport(list(verdicts), [Fact(name, value, f"source of {name}") for name, value in values.items()], knobs or [])


def examined(*verdicts: Verdict, **more: Any) -> FakeAgent:
    """The agent on a host that says this of itself."""
    return FakeAgent(doctor=[answer(report(*verdicts, **more))])


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """A service in a container on a host with a tuning profile."""
    monkeypatch.setenv("CANARY_KEY", "x")
    folder = write_inventory(tmp_path / "tuned", second_host=True)
    (folder / "tuning").mkdir()
    (folder / "tuning" / "fast.yml").write_text(PROFILE, encoding="utf-8")
    hosts = folder / "hosts.yml"
    text = hosts.read_text(encoding="utf-8").replace("port: 1\n", "port: 1\n    gpus: 2\n    tuning: fast\n")
    hosts.write_text(text.replace("127.0.0.2\n", "127.0.0.2\n  spare:\n    address: 127.0.0.3\n"), encoding="utf-8")
    return choose_target(load_inventory(folder), "gpu1", None)


def diagnose(target: Target, box: FakeBox) -> Diagnosis:
    profiles = target.inventory.backends_named("auto")
    return doctor(target.inventory, target.host, target, profiles, Heard(), box.connect, box.open)


def change(target: Target, box: FakeBox, options: Options | None = None) -> Ended:
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    return relaunch(target, profiles, options or Options(plan_only=True), Heard(), lambda plan: True, box.connect, box.open)


def shown(found: Diagnosis) -> dict[str, dict[str, str]]:
    """The outcome of each check, by the first word of its part's heading: that of both places by ``together``."""
    words = [(section.heading.split()[-1 if section.heading.endswith("together") else 0], section) for section in found.sections]
    return {word: {item.check: item.outcome for item in section.verdicts} for word, section in words}


def by_check(found: Diagnosis, check: str) -> Verdict:
    (verdict,) = [item for section in found.sections for item in section.verdicts if item.check == check]
    return verdict


def test_host_container_and_service_are_asked_and_told_apart(tuned: Target) -> None:
    inside = report(Verdict("limits", Outcome.WARN, "memlock is 64 kB", next_step="fab doctor; raise it"), container="lxc")
    agent = healthy_agent(doctor=[answer(inside)])
    box = FakeBox(agent, host=examined(Verdict("iommu", Outcome.PASS, "off")))
    found = diagnose(tuned, box)
    assert [[item.check for item in section.verdicts] for section in found.sections] == [
        ["iommu"],
        ["limits"],
        ["same_machine"],
        ["profile", "compute capability"],
    ]
    assert [section.heading for section in found.sections] == [
        "host gpu1, kernel 6.8.12-4-pve",
        "container gpu1/101, lxc",
        "host and container together",
        "service glm5 in gpu1/101, SGLang 0.5.23",
    ]
    assert found.exit_code == 0
    assert by_check(found, "limits").next_step == "fab doctor --host gpu1 --service glm5; raise it"
    assert by_check(found, "same_machine").outcome == Outcome.PASS


def test_each_place_is_asked_for_what_is_its_own(tuned: Target) -> None:
    box = FakeBox(healthy_agent(), host=examined())
    diagnose(tuned, box)
    assert isinstance(box.host, FakeAgent)
    (outside,), (inside,) = box.host.requests("doctor"), box.agent.requests("doctor")
    assert box.opened == [PlaceKind.HOST]
    assert (outside.place, outside.container, outside.service, outside.cuda) == ("host", "101", None, False)
    assert [setting.name for setting in outside.settings] == ["kernel.numa_balancing"]
    assert (inside.place, inside.service, inside.python, inside.port, inside.cuda) == (
        "container",
        "glm5",
        "/opt/sglang/bin/python",
        30000,
        True,
    )
    assert [setting.name for setting in inside.settings] == ["kernel.numa_balancing", "net.core.somaxconn"]
    for request in (outside, inside):
        assert (request.kernel, request.driver, request.expected_gpus) == ("6.8.*-pve", "580.*", 2)


def test_both_places_are_asked_at_once(tuned: Target) -> None:
    both = threading.Barrier(2, timeout=10)

    class Meeting(FakeAgent):
        def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[Any]:
            if verb == "doctor":
                both.wait()
            return super().call(verb, request, timeout)

    agent = Meeting(**healthy_agent()._scripts)
    assert diagnose(tuned, FakeBox(agent, host=Meeting(doctor=[answer(report())]))).exit_code == 0


@pytest.mark.parametrize("where", ["host", "container"])
def test_red_in_either_place_is_exit_3(tuned: Target, where: str) -> None:
    red, fine = examined(Verdict("gpu_on_bus", Outcome.REFUSE, "fallen off the bus")), examined()
    inside = healthy_agent(doctor=(red if where == "container" else fine)._scripts["doctor"])
    found = diagnose(tuned, FakeBox(inside, host=red if where == "host" else fine))
    assert found.exit_code == 3
    assert by_check(found, "gpu_on_bus").outcome == Outcome.REFUSE


def test_what_only_both_tell_is_a_part_of_its_own(tuned: Target) -> None:
    agent = healthy_agent(doctor=[answer(report(driver_library="580.126.09"))])
    found = diagnose(tuned, FakeBox(agent, host=examined(driver_module="580.159.04")))
    assert found.sections[2].heading == "host and container together"
    assert by_check(found, "driver_versions").outcome == Outcome.REFUSE
    assert found.exit_code == 3


def test_a_host_that_can_not_be_reached_is_yellow_and_its_container_stands(tuned: Target) -> None:
    agent = healthy_agent(doctor=[answer(report(knobs=[dataclasses.replace(DRIFTED, outcome=KnobOutcome.NOT_SETTABLE)]))])
    found = diagnose(tuned, FakeBox(agent, host=NO_ANSWER))
    assert found.exit_code == 0
    reach = by_check(found, "reach")
    assert (reach.outcome, reach.detail, reach.next_step) == (Outcome.WARN, NO_ANSWER.message, "ping 127.0.0.1")
    assert by_check(found, "tuning").detail == "0 of 1 knobs as fast wants them, 1 differs: kernel.numa_balancing is 1 (not 0)"
    assert "service" in shown(found)


@pytest.mark.parametrize("reached", [True, False])
def test_knobs_that_only_a_container_shows_are_set_by_hand_on_the_host(tuned: Target, reached: bool) -> None:
    """Whether the host can't be reached, or the host that the inventory names is itself a container."""
    line = "sysctl -w kernel.numa_balancing=0"
    hidden = KnobResult(KnobSetting("gpu_persistence_mode", "", "Enabled"), KnobOutcome.UNKNOWN)
    knobs = [dataclasses.replace(DRIFTED, outcome=KnobOutcome.NOT_SETTABLE, commands=[line]), hidden]
    if reached:
        box = FakeBox(healthy_agent(), host=examined(knobs=knobs, container="lxc"))
    else:
        box = FakeBox(healthy_agent(doctor=[answer(report(knobs=knobs))]), host=NO_ANSWER)
    verdict = by_check(diagnose(tuned, box), "tuning")
    counted = "0 of 2 knobs as fast wants them, 1 differs, 1 not visible from a container"
    assert verdict.detail == f"{counted}: kernel.numa_balancing is 1 (not 0)"
    assert verdict.next_step == f"on the host, as root: {line}"


def test_a_place_advises_fab_prep_and_its_host_is_named(tuned: Target) -> None:
    edited = Verdict("at_boot", Outcome.WARN, "changed by hand", next_step="fab prep --unpersist && fab prep --persist")
    verdict = by_check(diagnose(tuned, FakeBox(healthy_agent(), host=examined(edited))), "at_boot")
    assert verdict.next_step == "fab prep --host gpu1 --unpersist && fab prep --host gpu1 --persist"


@pytest.mark.parametrize("error", [STOPPED, AgentError("gpu1/101: killed")])
def test_a_container_that_can_not_be_reached_is_red_and_its_host_stands(tuned: Target, error: Exception) -> None:
    agent = healthy_agent(survey=[[error]], doctor=[[error]])
    found = diagnose(tuned, FakeBox(agent, host=examined(Verdict("iommu", Outcome.PASS, "off"))))
    assert found.exit_code == 4
    assert by_check(found, "reach").outcome == Outcome.REFUSE
    assert shown(found)["host"] == {"iommu": "pass"}
    assert found.service is None


def test_a_diagnosis_that_fails_in_the_place_is_yellow_and_the_service_is_checked(tuned: Target) -> None:
    agent = healthy_agent(doctor=[[AgentError("gpu1/101: no answer to doctor within 120 s")]])
    found = diagnose(tuned, FakeBox(agent, host=examined()))
    assert found.exit_code == 0
    assert shown(found)["container"] == {"reach": "warn"}
    assert shown(found)["service"] == {"profile": "pass", "compute capability": "pass"}


def test_drift_is_one_yellow_line_and_the_knobs_are_in_the_document(tuned: Target) -> None:
    found = diagnose(tuned, FakeBox(healthy_agent(), host=examined(knobs=[DRIFTED])))
    verdict = by_check(found, "tuning")
    assert (verdict.outcome, verdict.next_step) == (Outcome.WARN, "fab prep --host gpu1")
    assert found.knobs == [DRIFTED]
    assert found.exit_code == 0


def test_one_check_asked_twice_is_told_once_and_the_graver_answer_counts(tuned: Target) -> None:
    asked = preflight(verdicts=[Verdict("cuda", Outcome.REFUSE, "cuInit gives 999"), Verdict("shared_memory", Outcome.PASS, "8 GiB")])
    inside = report(
        Verdict("cuda", Outcome.REFUSE, "cuInit gives 999: /dev/nvidia-uvm is missing", source="libcuda"),
        Verdict("shared_memory", Outcome.WARN, "no limit"),
    )
    found = diagnose(tuned, FakeBox(healthy_agent(doctor=[answer(inside)], preflight=[answer(asked)]), host=examined()))
    assert by_check(found, "cuda").source == "libcuda"
    assert by_check(found, "shared_memory").outcome == Outcome.WARN


def test_a_candidate_that_can_not_be_made_is_red_in_the_services_part(tuned: Target) -> None:
    found = diagnose(tuned, FakeBox(healthy_agent(survey=[answer(survey(sglang_version=None))]), host=examined()))
    assert shown(found)["service"] == {"candidate": "refuse"}
    assert found.exit_code == 3


def test_what_the_survey_has_refused_is_not_refused_again_for_the_candidate(tuned: Target) -> None:
    missing = Verdict("sglang", Outcome.REFUSE, "no SGLang can be found: there is no /opt/x/python", next_step="set `python:`")
    agent = healthy_agent(survey=[answer(survey(sglang_version=None, verdicts=[missing]))])
    assert shown(diagnose(tuned, FakeBox(agent, host=examined())))["service"] == {"sglang": "refuse"}


def test_a_service_on_the_host_itself_is_one_place_and_one_connection(tuned: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    target = choose_target(tuned.inventory, "gpu2", None)
    box = FakeBox(healthy_agent(doctor=[answer(report(Verdict("limits", Outcome.WARN, "low")))]))
    found = diagnose(target, box)
    assert (box.connections, box.opened) == (1, [])
    assert list(shown(found)) == ["host", "service"]
    assert shown(found)["host"] == {"limits": "warn"}
    (request,) = box.agent.requests("doctor")
    assert (request.place, request.service, request.container) == ("host", "tiny", None)
    unreached = FakeBox(healthy_agent(survey=[[NO_ANSWER]], doctor=[[NO_ANSWER]]))
    assert diagnose(target, unreached).exit_code == 4


def test_a_host_without_a_service_is_diagnosed(tuned: Target) -> None:
    host, target = choose_subject(tuned.inventory, "spare", None)
    assert target is None
    box = FakeBox(healthy_agent(), host=examined(Verdict("iommu", Outcome.WARN, "translates")))
    found = doctor(tuned.inventory, host, None, [], Heard(), box.connect, box.open)
    assert (box.connections, box.opened, shown(found), found.exit_code) == (0, [PlaceKind.HOST], {"host": {"iommu": "warn"}}, 0)
    unreached = doctor(tuned.inventory, host, None, [], Heard(), box.connect, FakeBox(healthy_agent(), host=NO_ANSWER).open)
    assert (unreached.exit_code, shown(unreached)) == (4, {"host": {"reach": "refuse"}})


def test_a_host_without_a_service_is_diagnosed_with_its_container(tuned: Target) -> None:
    alone = dataclasses.replace(tuned.inventory, services={})
    host, target = choose_subject(alone, "gpu1", None)
    box = FakeBox(healthy_agent(), host=examined())
    found = doctor(alone, host, target, [], Heard(), box.connect, box.open)
    assert sorted(box.opened) == [PlaceKind.CONTAINER, PlaceKind.HOST]
    assert [section.heading for section in found.sections][-1] == "host and container together"
    assert isinstance(box.host, FakeAgent)
    assert sorted(request.cuda for request in box.host.requests("doctor")) == [False, True]


def test_which_host_and_service_are_meant(tuned: Target) -> None:
    assert choose_subject(tuned.inventory, "gpu1", None)[1] == tuned
    assert choose_subject(tuned.inventory, None, "glm5")[1] == tuned
    for host, service in ((None, None), ("nowhere", None), ("spare", "glm5")):
        with pytest.raises(UsageError):
            choose_subject(tuned.inventory, host, service)


RED = Verdict("gpu_on_bus", Outcome.REFUSE, "fallen off the bus", next_step="reboot")


@pytest.mark.parametrize("where", ["host", "container"])
def test_a_red_diagnosis_stops_a_relaunch_unless_forced(tuned: Target, where: str) -> None:
    inside = [answer(report(RED))] if where == "container" else [answer(report())]
    box = FakeBox(healthy_agent(doctor=inside), host=examined(RED) if where == "host" else examined())
    with pytest.raises(RefusedError) as refusal:
        change(tuned, box, Options())
    named = "gpu1: gpu_on_bus" if where == "host" else "gpu_on_bus"
    assert refusal.value.evidence == [f"{named}: fallen off the bus"]
    assert refusal.value.next_step == "reboot"
    assert box.agent.requests("submit") == []
    assert change(tuned, box, Options(force=True)).result is not None


def test_a_relaunch_tells_what_is_yellow_and_nothing_else_of_the_diagnosis(tuned: Target) -> None:
    inside = report(Verdict("limits", Outcome.WARN, "low"), Verdict("nvcc", Outcome.PASS, "13.0"), Verdict("xid", Outcome.UNKNOWN, "?"))
    box = FakeBox(healthy_agent(doctor=[answer(inside)]), host=examined(Verdict("iommu", Outcome.WARN, "translates"), knobs=[DRIFTED]))
    plan = change(tuned, box).plan
    assert [(item.check, item.outcome) for item in plan.verdicts] == [
        ("profile", "pass"),
        ("compute capability", "pass"),
        ("limits", "warn"),
        ("gpu1: iommu", "warn"),
        ("tuning", "warn"),
    ]
    assert plan.refusals == []
    (request,) = box.agent.requests("doctor")
    assert request.cuda is False


def test_a_relaunch_tells_of_one_machine_taken_for_another(tuned: Target) -> None:
    with pytest.raises(RefusedError) as refusal:
        change(tuned, FakeBox(healthy_agent(doctor=[answer(report(booted=1764400001.0))]), host=examined()))
    assert "gpu1/101 does not run on gpu1" in refusal.value.evidence[0]


def test_a_relaunch_goes_on_without_a_host_that_can_not_be_reached(tuned: Target) -> None:
    plan = change(tuned, FakeBox(healthy_agent(), host=NO_ANSWER)).plan
    assert [(item.check, item.outcome) for item in plan.verdicts[2:]] == [("gpu1: reach", "warn")]


def test_a_relaunch_waits_for_a_slow_host_no_longer_than_for_a_connection(tuned: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.HOST_SECONDS == 10.0
    monkeypatch.setattr("orchestrator.flows.relaunch.HOST_SECONDS", 0.05)
    answers = threading.Event()

    @contextmanager
    def slow(*_: Any) -> Iterator[FakeAgent]:
        answers.wait(30)
        yield examined()

    box = FakeBox(healthy_agent())
    began = time.monotonic()
    try:
        profiles = tuned.inventory.backends_named("flashinfer_cutedsl")
        plan = relaunch(tuned, profiles, Options(plan_only=True), Heard(), lambda plan: True, box.connect, slow).plan
    finally:
        answers.set()
    assert time.monotonic() - began < 10
    assert [(item.check, item.outcome) for item in plan.verdicts[2:]] == [("gpu1: reach", "warn")]
    assert "not waited for" in plan.verdicts[2].detail


def test_a_relaunch_on_the_host_itself_takes_one_connection(tuned: Target) -> None:
    target = choose_target(tuned.inventory, "gpu2", None)
    box = FakeBox(healthy_agent(doctor=[answer(report(Verdict("limits", Outcome.WARN, "low")))]))
    plan = change(target, box).plan
    assert (box.connections, box.opened) == (1, [])
    assert [item.check for item in plan.verdicts] == ["profile", "compute capability", "limits"]


def test_a_check_that_the_diagnosis_answers_as_well_stays_in_its_place_in_the_plan(tuned: Target) -> None:
    asked = preflight(
        verdicts=[Verdict("user", Outcome.PASS, "root"), Verdict("gpus", Outcome.PASS, "8"), Verdict("port", Outcome.PASS, "free")]
    )
    inside = report(
        Verdict("gpus", Outcome.WARN, "7", source="nvidia-smi"), Verdict("gpus", Outcome.PASS, "no ECC errors", source="nvidia-smi")
    )
    plan = change(tuned, FakeBox(healthy_agent(doctor=[answer(inside)], preflight=[answer(asked)]), host=examined())).plan
    assert [(item.check, item.detail) for item in plan.verdicts[1:]] == [
        ("user", "root"),
        ("gpus", "7"),
        ("gpus", "no ECC errors"),
        ("port", "free"),
    ]


def test_device_nodes_that_cuda_makes_good_do_not_stop_a_relaunch(tuned: Target) -> None:
    faulty = report(Verdict("device_nodes", Outcome.REFUSE, "/dev/nvidia-uvm: it is missing"))
    for works, code in ((Outcome.PASS, None), (Outcome.UNKNOWN, RefusedError)):
        asked = preflight(verdicts=[Verdict("cuda", works, "as it is")])
        box = FakeBox(healthy_agent(doctor=[answer(faulty)], preflight=[answer(asked)]), host=examined())
        if code is None:
            verdicts = change(tuned, box).plan.verdicts[1:]
            assert [(item.check, item.outcome) for item in verdicts] == [("cuda", "pass"), ("device_nodes", "warn")]
            continue
        with pytest.raises(code):
            change(tuned, box)


def test_the_place_is_diagnosed_with_the_environment_that_the_launch_would_have(tuned: Target) -> None:
    service = tuned.service.model_copy(update={"environment": {"NCCL_P2P_LEVEL": "SYS"}})
    target = dataclasses.replace(tuned, service=service)
    box = FakeBox(healthy_agent(), host=examined())
    change(target, box)
    (request,) = box.agent.requests("doctor")
    assert request.environment["NCCL_P2P_LEVEL"] == "SYS"


@pytest.mark.parametrize(
    ("container", "command"),
    [
        ({"reached_by": "pct", "id": 101}, "on gpu1: pct reboot 101"),
        ({"reached_by": "lxc-attach", "name": "sglang"}, "on gpu1: lxc-stop -n sglang && lxc-start -n sglang"),
        ({"reached_by": "incus", "name": "sglang"}, "on gpu1: incus restart sglang"),
        ({"reached_by": "ssh", "address": "10.0.0.2", "id": 101}, "on gpu1: restart the container 101"),
    ],
)
def test_how_a_container_is_restarted(container: dict[str, Any], command: str) -> None:
    from orchestrator.config import Container

    assert restart_command(Container(**container), "gpu1") == command
