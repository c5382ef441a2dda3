"""What the program's documents and exit codes are to Ansible."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.doctor_result import doctor_result
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import outcome
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.orders import reason, same_order
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.prep_result import prep_result
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.relaunch_result import relaunch_result
from orchestrator.errors import UnreachableError
from tests.unit.examples.samples import FAILURE, IDLE, answer, difference, error, knob, order, plan, prepared, verdict


def told(result: dict[str, Any]) -> tuple[Any, ...]:
    """Whether it is changed, failed, unreachable."""
    return result["changed"], result.get("failed", False), result.get("unreachable", False)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 7, 8, 9, 129, 130, 143])
def test_only_what_was_not_reached_is_unreachable(code: int) -> None:
    assert outcome(code) == ({"unreachable": True} if code == UnreachableError.exit_code else {"failed": True})
    assert outcome(0) == {}


def test_a_program_without_an_answer_fails_with_its_last_words() -> None:
    for result in (prep_result(answer(1, "No module named x")), relaunch_result(answer(-9, "Killed")), doctor_result(answer(1, "no"))):
        assert told(result) == (False, True, False)
        assert result["msg"].startswith("orchestrator ended with exit code")
        assert len(result["evidence"]) == 1


def test_a_plan_would_change_and_shows_what_its_backend_changes() -> None:
    warned = verdict("limits", "warn", "low", next_step="raise them")
    staged = plan(verdicts=[verdict("port", "pass"), warned], staging={"staged": True})
    result = relaunch_result(answer(0, plan=staged, exit_code=0))
    assert told(result) == (True, False, False)
    assert result["diff"] == [
        {
            "before_header": "glm5 on gpu1/101",
            "after_header": "glm5 on gpu1/101",
            "before": "argument --moe-runner-backend: auto\n",
            "after": "argument --moe-runner-backend: marlin\n",
        }
    ]
    assert (result["verdicts"], result["warnings"], result["staged"]) == ([warned], ["limits: low; next: raise them"], True)


def test_a_plan_that_first_ends_an_order_that_was_cut_off_says_so() -> None:
    result = relaunch_result(answer(0, plan=plan(launch=None, differences=[], remarks=["first the relaunch o0"]), exit_code=0))
    assert (told(result), result["msg"]) == ((True, False, False), "first the relaunch o0")


def test_what_serves_already_is_unchanged_whatever_else_speaks_against_it() -> None:
    idle = plan(changes_nothing=True, refusals=[IDLE, "limits: low"], verdicts=[verdict("limits", "refuse", "low")], differences=[])
    result = relaunch_result(answer(3, plan=idle, error=error("refused, nothing was touched", 3, IDLE)))
    assert (told(result), result["exit_code"]) == ((False, False, False), 0)
    assert (result["msg"], result["warnings"]) == ("glm5 serves already with marlin: nothing to do", ["limits: low"])


def test_what_serves_already_by_an_order_that_was_cut_off_and_ended_now_is_changed() -> None:
    document = {"plan": plan(changes_nothing=True), "result": order("DONE", 0), "error": error("refused", 3, IDLE)}
    assert told(relaunch_result(answer(3, **document))) == (True, False, False)


def test_a_refusal_is_a_failure_with_its_reasons() -> None:
    drift = plan(differences=[difference("--schedule-policy", "lof", None, "drift")], refusals=["it differs"])
    result = relaunch_result(
        answer(3, plan=drift, error=error("refused, nothing was touched", 3, "it differs", next_step="--accept-drift"))
    )
    assert told(result) == (False, True, False)
    assert (result["msg"], result["evidence"], result["next_step"]) == ("refused, nothing was touched", ["it differs"], "--accept-drift")
    assert result["diff"][0]["after"] == ""


@pytest.mark.parametrize(
    ("state", "code", "changed"),
    [("DONE", 0, True), ("RESTORED", 6, True), ("DOWN", 7, True), ("REFUSED", 3, False), ("INTERRUPTED(LOADING)", 7, True)],
)
def test_an_order_that_touched_something_has_changed_it(state: str, code: int, changed: bool) -> None:
    failure = None if code == 0 else FAILURE
    ended = order(state, code, failure=failure, service="who serves now", next_step="fab logs")
    result = relaunch_result(answer(code, plan=plan(), result=ended, exit_code=code, run="/runs/1"), attached_to="o1")
    assert told(result) == (changed, code != 0, False)
    assert (result["state"], result["service_state"], result["dark_seconds"], result["run"]) == (state, "who serves now", 9.4, "/runs/1")
    assert (result["attached_to"], result["next_step"]) == ("o1", "fab logs")
    assert result["result"]["baseline"] == {"tokens_per_second": 41.0}
    if code:
        assert (result["failure_class"], result["evidence"]) == ("kernel_missing", ["expects arch", "another backend"])
        assert result["msg"] == f"{state}: no kernel [kernel_missing]; who serves now"


def test_a_connection_that_was_lost_is_unreachable_and_says_what_goes_on() -> None:
    lost = error("the connection ended; the order goes on there", 4, next_step="fab attach --host gpu1")
    result = relaunch_result(answer(4, plan=plan(), error=lost))
    assert (told(result), result["next_step"]) == ((False, False, True), "fab attach --host gpu1")


def test_knobs_that_differ_are_changed_with_a_diff_a_plan_has_too() -> None:
    governors = {f"policy{number}": "powersave" for number in range(4)}
    governor = {"setting": {"kind": "cpu_governor", "name": "", "value": "performance"}}
    knobs = [
        knob("kernel.numa_balancing", "would_change", {"": "1"}),
        knob("", "would_change", governors, **governor),
        knob("vm.swappiness", "same", {"": "10"}),
        knob("", "would_change", {"0": "512", "1": "1024"}, setting={"kind": "mrrs", "name": "", "value": "4096"}),
        knob("", "would_change", {"0": "1", "1": "1"}, setting={"kind": "latency", "name": "", "value": None}),
    ]
    result = prep_result(prepared(0, *knobs, files=("/etc/sysctl.d/90-orchestrator.conf",)))
    assert told(result) == (True, False, False)
    (diff,) = result["diff"]
    assert diff["before"].splitlines() == [
        "kernel.numa_balancing: 1",
        "cpu_governor (4): powersave",
        "mrrs 0: 512",
        "mrrs 1: 1024",
        "latency (2): 1",
    ]
    assert diff["after"].splitlines() == [
        "kernel.numa_balancing: 0",
        "cpu_governor (4): performance",
        "mrrs (2): 4096",
        "latency (2): (its original value)",
        "file /etc/sysctl.d/90-orchestrator.conf",
    ]
    assert diff["before_header"] == "gpu1 (tuned)"
    assert [item["knob"] for item in result["knobs"]] == ["kernel.numa_balancing", "cpu_governor", "vm.swappiness", "mrrs", "latency"]


def test_a_host_that_is_as_wanted_is_unchanged() -> None:
    result = prep_result(prepared(0, knob("vm.swappiness", "same", {"": "10"}), knob("x", "observed", {"": "1"}, value=None)))
    assert (told(result), result["diff"], result["msg"]) == ((False, False, False), [], "1 same, 1 observed")


@pytest.mark.parametrize(("kind", "code"), [("not_settable", 8), ("told", 8), ("unknown", 8), ("failed", 1)])
def test_what_is_left_for_a_person_is_a_failure_with_what_to_type(kind: str, code: int) -> None:
    left = knob("kernel.numa_balancing", kind, {"": "1"}, detail="in a container", commands=["sysctl -w kernel.numa_balancing=0"])
    result = prep_result(prepared(code, left, knob("a", "changed", {"": "1"}, {"": "0"}), knob("b", "unknown", {}, value=None)))
    assert told(result) == (True, True, False), "the other knob was set"
    assert result["msg"] == f"not as the profile wants it: kernel.numa_balancing ({kind})"
    assert result["evidence"] == [f"kernel.numa_balancing: {kind}: in a container"]
    assert result["next_step"] == "sysctl -w kernel.numa_balancing=0"


def test_a_knob_that_took_the_value_on_some_items_only_failed_and_changed() -> None:
    half = knob("g", "failed", {"0": "a", "1": "a"}, {"0": "b", "1": "a"})
    assert told(prep_result(prepared(1, half))) == (True, True, False)


def test_a_container_that_is_not_reached_is_told_like_its_host() -> None:
    lost = error("gpu1/101 does not run", 4, next_step="pct start 101")
    for changes in ({"error": lost, "places": []}, {"places": [{"place": "gpu1/101", "kind": "container", "error": lost, "report": None}]}):
        result = prep_result(prepared(4, **changes))
        assert (told(result), result["msg"], result["next_step"]) == ((False, False, True), "gpu1/101 does not run", "pct start 101")


def test_a_diagnosis_that_refuses_fails_and_never_changes() -> None:
    refused = verdict("cuda", "refuse", "cuInit says 999", "nvidia-uvm is missing", next_step="modprobe nvidia-uvm")
    sections = [{"heading": "host gpu1", "verdicts": [verdict("pci", "pass"), verdict("limits", "warn", "low"), refused]}]
    result = doctor_result(answer(3, report={"sections": sections}, exit_code=3))
    assert told(result) == (False, True, False)
    assert result["msg"] == "cuda: cuInit says 999; next: modprobe nvidia-uvm"
    assert (result["evidence"], result["next_step"]) == (["nvidia-uvm is missing"], "modprobe nvidia-uvm")
    assert [(item["check"], item["section"]) for item in result["verdicts"]] == [("limits", "host gpu1"), ("cuda", "host gpu1")]
    assert (result["passed"], result["warnings"]) == (1, ["limits: low"])


LIVE = {"order_id": "o1", "kind": "relaunch", "live": True, "reason": "Ansible: relaunch to marlin; AWX job 17 of alice; firmware"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (LIVE, "o1"),
        ({**LIVE, "reason": "Ansible: relaunch to marlin"}, "o1"),
        ({**LIVE, "reason": "Ansible: relaunch to marlin+ep8"}, None),
        ({**LIVE, "reason": "trying marlin by hand"}, None),
        ({**LIVE, "live": False}, None),
        ({**LIVE, "kind": "teardown"}, None),
        (None, None),
    ],
)
def test_an_order_of_ansibles_for_the_same_thing_is_known_by_its_reason(found: dict[str, Any] | None, expected: str | None) -> None:
    assert same_order(found, "relaunch to marlin") == expected


def test_who_wanted_it_is_in_the_reason() -> None:
    assert reason("prep", {}, None) == "Ansible: prep"
    assert reason("prep", {"tower_job_id": 17}, "firmware") == "Ansible: prep; AWX job 17; firmware"
    assert same_order({**LIVE, "reason": reason("relaunch to marlin", {"awx_job_id": 1}, "x")}, "relaunch to marlin") == "o1"
