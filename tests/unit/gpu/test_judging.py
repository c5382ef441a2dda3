"""The judges of a GPU run's steps: each passes what is well, and names what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu import judging

FLOOR = {"GPU-1": 0}


def status(backend: str = "auto", health: str = "serving", *, server: bool = True) -> dict[str, Any]:
    return {"report": {"health": health, "server": {"backend": backend} if server else None}}


def result(state: str = "DONE", **more: Any) -> dict[str, Any]:
    return {"state": state, "summary": "so it went", "staged": False, "failure": None, **more}


def verdict(check: str, outcome: str = "refuse", **more: Any) -> dict[str, Any]:
    return {"check": check, "outcome": outcome, "detail": "a detail", "evidence": [], "next_step": "type this", "source": "/proc", **more}


def failure(category: str, *evidence: str) -> dict[str, Any]:
    return {"category": category, "summary": "it failed", "evidence": list(evidence)}


STAGED = {"staging": {"staged": True, "reason": "there is room"}}
SEQUENTIAL = {"staging": {"staged": False, "reason": "no gate"}}


def test_an_end_is_judged_by_its_code_and_told_with_what_was_said() -> None:
    assert judging.ended(0, {}, 0) == []
    assert judging.ended(9, {}, 0, 9) == []
    assert judging.ended(None, {}, 0) == ["it did not end in time, where exit code 0 was due"]
    document = {"error": {"message": "refused", "evidence": ["port: taken"], "exit_code": 3}}
    assert judging.ended(3, document, 0) == ["exit code 3, not 0: refused (port: taken)"]
    assert judging.ended(7, {"result": result("DOWN")}, 0, 6) == ["exit code 7, not 0 or 6: so it went"]


def test_a_diagnosis_must_tell_its_sources_and_next_steps() -> None:
    def document(*more: dict[str, Any]) -> dict[str, Any]:
        return {"report": {"sections": [{"verdicts": [*(verdict(f"check{number}", "pass") for number in range(5)), *more]}]}}

    assert judging.diagnosed(document()) == []
    assert judging.diagnosed(document(verdict("cuda", source=""))) == ["cuda: no source"]
    assert judging.diagnosed(document(verdict("cuda", "warn", next_step=None))) == ["cuda: warn and no next step"]
    assert judging.diagnosed({}) == ["only 0 checks were told"]


def test_observing_must_write_nothing() -> None:
    def document(outcome: str, after: str) -> dict[str, Any]:
        knob = {"setting": {"kind": "sysctl", "name": "vm.swappiness"}, "outcome": outcome, "detail": "", "before": {"": "60"}}
        return {"hosts": [{"places": [{"report": {"results": [{**knob, "after": {"": after}}]}}]}]}

    assert judging.only_read(document("observed", "60")) == []
    assert judging.only_read(document("observed", "10")) == ["vm.swappiness: observed: "]
    assert judging.only_read(document("changed", "60")) == ["vm.swappiness: changed: "]
    assert judging.only_read({"hosts": [{"places": [{"report": None}]}]}) == ["no knob was told of"]


def test_a_launch_must_be_done_and_what_serves_must_be_its_own() -> None:
    document = {"result": result()}
    assert judging.came_to_serve(0, document, status(), "auto") == []
    assert judging.came_to_serve(0, {"result": result("RESTORED")}, status(), "auto") == ["exit code 0 and its last state is RESTORED"]
    assert judging.came_to_serve(0, document, status("triton"), "auto") == ["what runs is of the backend triton, not auto"]
    assert judging.came_to_serve(0, document, status(health="unhealthy"), "auto") == ["the server is unhealthy"]
    assert judging.came_to_serve(0, document, status(server=False, health="down"), "auto") == ["there is no server; health: down"]
    assert judging.came_to_serve(0, document, {}, "auto") == ["nobody could say what serves"]


def test_down_is_what_the_program_must_say_of_a_dead_server() -> None:
    assert judging.is_down(status(server=False, health="down")) == []
    assert judging.is_down(status()) != []
    assert judging.is_down(status(server=False, health="silent")) != []
    assert judging.is_down({}) == ["nobody could say what serves"]


def test_a_switch_must_be_done_as_planned() -> None:
    assert judging.switched_as_planned({"plan": SEQUENTIAL, "result": result()}) == []
    assert judging.switched_as_planned({"plan": STAGED, "result": result(staged=True)}) == []
    assert judging.switched_as_planned({"plan": STAGED, "result": result()}) == ["planned staged and done sequentially"]
    untold = {"staging": {"staged": False, "reason": ""}}
    assert judging.switched_as_planned({"plan": untold, "result": result()}) == ["sequential without a reason"]
    assert judging.switched_as_planned({"plan": {"staging": None}}) == ["the plan says nothing of how it switches"]


def test_an_order_must_have_timed_both_servers() -> None:
    good = {"skipped": None, "tokens_per_second": 500.0}
    assert judging.timed(result(baseline=good, measured=good)) == []
    skipped = {"skipped": "others use it", "tokens_per_second": 0.0}
    assert judging.timed(result(baseline=skipped, measured=None)) == ["baseline: others use it", "measured: no timing"]


def test_a_refusal_must_be_for_the_right_reason() -> None:
    document = {"plan": {"verdicts": [verdict("quantization"), verdict("port", "pass")]}}
    assert judging.refused(3, document, because_of=["quantization"]) == []
    assert judging.refused(3, document, because_of=["compute_capability"]) == ["none of compute_capability refused it, but quantization"]
    assert judging.refused(6, document, because_of=["quantization"]) == ["exit code 6, not 3: nothing as JSON"]
    assert judging.refused(3, {}, because_of=["port"]) == ["none of port refused it, but nothing"]


@pytest.mark.parametrize(
    ("code", "state", "plan", "good"),
    [
        (6, "RESTORED", SEQUENTIAL, True),
        (6, "RESTORED", STAGED, True),
        (3, "REFUSED", STAGED, True),
        (3, "REFUSED", SEQUENTIAL, False),
        (0, "DONE", SEQUENTIAL, False),
        (7, "DOWN", SEQUENTIAL, False),
        (6, "DOWN", SEQUENTIAL, False),
    ],
)
def test_a_failed_launch_must_leave_the_old_server(code: int, state: str, plan: dict[str, Any], good: bool) -> None:
    document = {"plan": plan, "result": result(state, failure=failure("quantization_unsupported", "AssertionError"))}
    assert (judging.failed_and_came_back(code, document, status(), "auto") == []) is good


def test_a_failed_launch_must_be_told_by_its_class_with_evidence() -> None:
    def document(told: dict[str, Any] | None) -> dict[str, Any]:
        return {"plan": SEQUENTIAL, "result": result("RESTORED", failure=told)}

    assert judging.failed_and_came_back(6, document(None), status(), "auto") == ["no failure was told"]
    unknown = judging.failed_and_came_back(6, document(failure("unknown", "an error")), status(), "auto")
    assert unknown == ["the failure is told as unknown, with 1 lines of evidence"]
    assert judging.failed_and_came_back(6, document(failure("kernel_missing")), status(), "auto") != []
    assert judging.failed_and_came_back(6, document(failure("kernel_missing", "e")), status("triton"), "auto") != []


def test_whoever_holds_the_memory_must_be_named_and_the_loss_noticed() -> None:
    def document(said: dict[str, Any], category: str | None) -> dict[str, Any]:
        told = None if category is None else failure(category, "e")
        return {"plan": {"verdicts": [said]}, "result": result("DOWN", failure=told)}

    named = verdict("gpu_memory", "warn", evidence=["GPU 0: process 4711 python holds 120000 MiB"])
    assert judging.lost_room(7, document(named, "kv_capacity"), 4711) == []
    assert judging.lost_room(3, document(named, None), 4711) == []
    assert judging.lost_room(7, document(named, "kv_capacity"), 4712) == ["process 4712, which holds the memory, is not named"]
    assert judging.lost_room(0, document(named, None), 4711) == ["the launch ended with exit code 0 and the class None"]
    passed = verdict("gpu_memory", "pass", evidence=["4711"])
    assert judging.lost_room(7, document(passed, "out_of_memory_kv_cache"), 4711) == ["the plan's gpu_memory says pass"]
    assert "the plan says nothing of GPU memory" in judging.lost_room(7, {"result": result(failure=failure("kv_capacity", "e"))}, 4711)


def test_a_stream_must_come_to_its_end() -> None:
    assert judging.stream_survived(4000, 4000, whole=True) == []
    assert judging.stream_survived(17, 4000, whole=False) == ["the stream was cut after 17 of 4000 tokens"]
    assert judging.stream_survived(17, 4000, whole=True) == ["the stream ended after 17 of 4000 tokens"]


def test_memory_must_be_back_but_for_a_tolerance_and_what_others_took() -> None:
    assert judging.back_to_floor(FLOOR, {"GPU-1": judging.GPU_TOLERANCE}) == []
    assert judging.back_to_floor(FLOOR, {"GPU-1": 9000}, above=8900) == []
    assert judging.back_to_floor(FLOOR, {"GPU-1": 9000}) == ["GPU GPU-1: 9000 MiB in use, 0 MiB before"]
    assert judging.back_to_floor(FLOOR, {}) == ["GPU GPU-1: not reported MiB in use, 0 MiB before"]
    assert judging.back_to_floor({}, {}) == []


def timing(*invalid: dict[str, Any], sizes: tuple[int, ...] = (1, 4), disagreements: tuple[str, ...] = (), **repeat: Any) -> dict[str, Any]:
    """The document of ``measure`` with one repeat for each size."""
    one = {"late": 0.0, "waited": None, "window": 1.0, **repeat}
    batches = [
        {"batch_size": size, "time_per_output_token": {"median": 0.002}, "repeats": [one], "disagreements": list(disagreements)}
        for size in sizes
    ]
    return {"report": {"batches": batches, "invalid": list(invalid)}}


def test_a_timing_must_have_every_size_and_be_believed() -> None:
    assert judging.measured(0, timing(), [1, 4]) == []
    assert judging.measured(0, timing(sizes=(1,)), [1, 4]) == ["batch 4: not timed"]
    disbelieved = judging.measured(9, timing({"reason": "others", "detail": "another client"}), [1, 4])
    assert disbelieved == ["not to be believed: others: another client"]
    assert judging.measured(4, {}, [1]) == ["exit code 4, not 0 or 9: nothing as JSON", "batch 1: not timed"]


def test_a_timing_that_the_server_contradicts_is_wrong_where_our_reader_was_late() -> None:
    said = ("119 % more than the server's own",)
    assert judging.measured(0, timing(sizes=(64,), disagreements=said, late=0.002, waited=0.01), [64]) == []
    told = ["batch 64: 119 % more than the server's own, and our reader was away for 20% of a window"]
    assert judging.measured(0, timing(sizes=(64,), disagreements=said, late=0.2), [64]) == told
    assert judging.measured(0, timing(sizes=(64,), disagreements=said, waited=0.2), [64]) == told
    assert judging.measured(0, timing(sizes=(64,), late=0.2), [64]) == []


def test_a_preflight_goes_ahead_or_says_why_not_and_what_next() -> None:
    refusing = {
        "plan": {"verdicts": [verdict("quantization")]},
        "error": {"message": "refused", "evidence": [], "next_step": "fab backends"},
    }
    assert judging.preflight_row("auto", 0, {"plan": {"verdicts": []}}) == ("auto: may go ahead", [])
    assert judging.preflight_row("marlin", 3, refusing) == ("marlin: refused: quantization: a detail", [])
    assert judging.preflight_row("marlin", 0, refusing)[1] == ["marlin: may go ahead, and yet quantization: a detail"]
    idle = {"error": {"message": "refused", "evidence": ["nothing would change"], "next_step": None}}
    assert judging.preflight_row("auto", 3, idle) == ("auto: refused: nothing would change", ["auto: refused without a next step"])
    line, problems = judging.preflight_row("ep8", 4, {"error": {"message": "not reached", "evidence": []}})
    assert line == "ep8: exit code 4: not reached"
    assert problems == ["exit code 4, not 0 or 3: not reached"]


def swept_document(*, at_start: bool = True, timed: int = 2, troubles: tuple[str, ...] = (), launches: int = 4) -> dict[str, Any]:
    points = [{"point": {"backend": name}, "timed": timed, "troubles": list(troubles), "batches": []} for name in ("auto", "triton")]
    steps = [{"launch": {"launch_id": f"launch{number}"}} for number in range(launches)]
    return {"points": points, "steps": [*steps, {"launch": None}], "serves": {"at_start": at_start}}


def test_a_sweep_must_launch_and_time_each_point_in_each_round_and_go_back() -> None:
    assert judging.swept(0, swept_document(), 2, 2) == []
    assert judging.swept(0, swept_document(at_start=False), 2, 2) == ["it did not end on what served before"]
    assert judging.swept(0, swept_document(timed=1), 2, 2)[0] == "auto: 1 of 2 launches have a timing to be believed"
    assert judging.swept(0, swept_document(troubles=("rolled back",)), 2, 2) == ["auto: rolled back", "triton: rolled back"]
    assert judging.swept(0, swept_document(launches=3), 2, 2) == ["3 launches, where 4 were due"]
    assert judging.swept(9, {}, 2, 2)[:2] == ["exit code 9, not 0: nothing as JSON", "0 points of 2 were told"]


def test_a_budget_must_part_each_step_into_something_that_fits_it() -> None:
    def document(gemm: float | None = 0.0002, floor: float | None = 0.0001, *doubts: str) -> dict[str, Any]:
        step: dict[str, Any] = {
            "batch_size": 1,
            "step": 0.002,
            "floor": floor,
            "floor_problem": "no bandwidth known",
            "gemm": gemm,
            "remarks": [],
        }
        return {"steps": [step], "not_believed": list(doubts)}

    assert judging.budgeted(0, document()) == []
    assert judging.budgeted(0, document(gemm=0.003)) == ["batch 1: GEMM takes 3.000 ms of a step of 2.000 ms"]
    assert judging.budgeted(0, document(floor=None)) == ["batch 1: no floor: no bandwidth known"]
    assert judging.budgeted(9, document(0.0002, 0.0001, "the server was busy")) == ["not to be believed: the server was busy"]
    assert judging.budgeted(0, {}) == ["no step was accounted for"]


def test_a_budget_must_time_every_multiplication_in_its_own_format() -> None:
    step: dict[str, Any] = {"batch_size": 16, "step": 0.002, "floor": 0.0001, "floor_problem": None, "gemm": 0.0002, "remarks": []}

    def document(format_timed: str, seconds: float | None) -> dict[str, Any]:
        gemm = {"name": "experts down", "batch_size": 16, "format": "BF16"}
        return {
            "steps": [step],
            "timed": {"gemms": [{"gemm": gemm, "format": format_timed, "seconds": seconds, "problem": "out of memory"}]},
        }

    assert judging.budgeted(0, document("BF16", 0.0001)) == []
    assert judging.budgeted(0, document("NVFP4", None)) == []
    assert judging.budgeted(0, document("BF16", None)) == ["batch 16: experts down in its own format, BF16: out of memory"]


def test_a_profile_must_be_of_the_gpu_with_steps_and_classes() -> None:
    def document(**more: Any) -> dict[str, Any]:
        work = {"seconds": 0.001, "launches": 3}
        rank = {
            "trace": "TP-0",
            "on_gpu": True,
            "steps": [0.002],
            "step": 0.002,
            "busy": 0.001,
            "classes": {"GEMM": work, "MoE routing": work},
        }
        return {"ranks": [{**rank, **more}], "not_believed": []}

    assert judging.profiled(0, document(), on_gpu=True) == []
    assert judging.profiled(0, document(), on_gpu=False) == ["TP-0: told to be of a GPU"]
    assert judging.profiled(0, document(busy=0.003), on_gpu=True) == ["TP-0: 1 steps, busy for 0.003 s of 0.002 s"]
    assert judging.profiled(0, document(steps=[]), on_gpu=True) != []
    assert judging.profiled(0, document(classes={"other": {}}), on_gpu=True) == ["TP-0: its kernels are all of other class"]
    assert judging.profiled(0, {"ranks": []}, on_gpu=True) == ["no trace was read"]
