"""Failures are classified by log, exit status, memory events and timing.

One JSON file a case. `source` says where its log is from: ``captured`` of a real server (`log` names the file), or ``source
text``: the message as the program named in `text_of` writes it, in a log that is built around it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.agent import failures, wire
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.failure_log import find_exceptions, read_log
from orchestrator.agent.failure_signatures import SIGNATURES
from orchestrator.agent.failures import Gone
from orchestrator.agent.oom_kills import OomKills
from orchestrator.agent.phases import Phase, PhaseTracker, parse_line, split_lines

DATA = Path(__file__).parents[2] / "data"
CASES = sorted((DATA / "failures").glob("*.json"))

HEALTHY = [
    DATA / "captures" / name
    for name in (
        "cpu-0.5.23/main.log",
        "cpu-0.5.23/int_idle_ready.log",
        "cpu-0.5.23/tp2.log",
        "cpu-0.5.23/three_0.log",
        "cpu-0.5.23/tiny-qwen3_moe.log",
        "cpu-0.5.9/main.log",
        "cpu-0.5.9/term_stream.log",
        "h200-0.5.17/A_again1.log",
        "h200-0.5.17/A_again3.log",
        "h200-0.5.17/M_triton.log",
        "h200-0.5.17/M_deep_gemm.log",
        "h200-0.5.17/M_flashinfer_trtllm.log",
        "h200-0.5.17/F_gpu_busy_130g.log",
    )
]
"""Whole loads of servers that came to serve, or were still loading when they were stopped."""

NOISE: list[list[str]] = [
    ["[2026-11-29 12:40:01 TP0] [Autotuner]: Skipping tactic <MoERunner> 14, due to failure while profiling: CUDA error: no kernel image"],
    [
        "[2026-11-29 12:40:01] [Autotuner]: Failed when profiling <MoERunner> 3, shapes=[]. Error occurred: CUDA error: out of memory",
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    ],
    ["[2026-11-29 12:40:01 TP1] [Autotuner]: OOM detected, falling back to default tactic"],
    [
        "[2026-11-29 12:40:00 TP0] Pyspy dump for PID 4720:",
        "Process 4720: sglang::scheduler_TP0",
        "Python v3.12.3 (/usr/bin/python3.12)",
        'Thread 4720 (idle): "MainThread"',
        "    acquire (filelock/_api.py:344)",
        "    load_model (sglang/srt/model_executor/model_runner.py:1043)",
        "[2026-11-29 12:40:01 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
    ],
    ["[2026-11-29 12:40:01] Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'"],
    ["[2026-11-29 12:40:01] Ignoring mcp import error"],
    ["/usr/lib/python3/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 6 leaked semaphore"],
    ["  warnings.warn('resource_tracker: There appear to be %d '"],
    ["<frozen importlib._bootstrap>:488: DeprecationWarning: builtin type SwigPyPacked has no __module__ attribute"],
    ["\x1b[33m[2026-11-29 12:40:01] Endpoint '/get_model_info' is deprecated and will be removed in a future version.\x1b[0m"],
    ["[2026-11-29 12:40:01] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit"],
    ["[rank0]:[W1129 12:40:01.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit"],
    ["[2026-11-29 12:40:01] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."],
    ['[2026-11-29 12:40:01] INFO:     127.0.0.1:46162 - "GET /health HTTP/1.1" 503 Service Unavailable'],
    ["[2026-11-29 12:40:01 TP1] numactl rejected hard memory binding ('--membind=1'): Operation not permitted; falling back"],
    ["[2026-11-29 12:40:01] NUMA node 1 has no CPU cores allowed by the current affinity [0, 1], skipping NUMA binding for GPU 4."],
    ["[2026-11-29 12:40:01 TP0] Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices."],
    ["[2026-11-29 12:40:01 TP0] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, #running-req: 0"],
    ["[2026-11-29 12:40:01] server_args=ServerArgs(model_path='/m', watchdog_timeout=300, api_key='hush', enable_nccl_nvls=False)"],
    ["Capturing batches (bs=1 avail_mem=0.13 GB):   3%|#         | 1/36 [00:00<00:28,  1.22it/s]\r"],
]


@cache
def load(case: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    content = json.loads(case.read_text(encoding="utf-8"))
    if "log" in content:
        return content, capture(DATA / "captures" / content["log"])
    return content, tuple(content["lines"])


@cache
def capture(path: Path) -> tuple[str, ...]:
    return tuple(path.read_bytes().decode("utf-8").split("\n"))


def classify(content: dict[str, Any], lines: tuple[str, ...] | list[str]) -> wire.Failure:
    counted = OomKills(content.get("oom_kills"), "/sys/fs/cgroup/memory.events", content.get("machine_oom_kills"))
    return failures.classify(lines, content["exit_status"], content["phase"], counted, content.get("version"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_class_and_evidence(case: Path) -> None:
    content, lines = load(case)

    failure = classify(content, lines)

    assert failure.category == content["category"], failure
    assert content.get("summary", "") in failure.summary
    for text in content["evidence"]:
        assert any(text in line for line in failure.evidence), failure.evidence
    assert failure.retry == content.get("retry", failure.retry)
    assert len(failure.evidence) <= 6
    assert all(len(line) <= 400 for line in failure.evidence)
    assert failure.advice
    assert failure.exit_status == content["exit_status"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_says_where_its_log_is_from(case: Path) -> None:
    content = json.loads(case.read_text(encoding="utf-8"))

    assert content["source"] == ("captured" if "log" in content else "source text")


def test_every_class_of_a_log_has_a_case() -> None:
    covered = {json.loads(case.read_text(encoding="utf-8"))["category"] for case in CASES}

    assert {signature.category for signature in SIGNATURES} <= covered | {Category.OUT_OF_MEMORY}


def test_every_signature_decides_a_case() -> None:
    found = {(failure.category, failure.summary) for failure in (classify(*load(case)) for case in CASES)}

    unused = [signature for signature in SIGNATURES if (signature.category, signature.summary) not in found]
    assert [(signature.category, signature.summary) for signature in unused] == [
        (Category.OUT_OF_MEMORY, "the GPU memory does not suffice")
    ]


def test_out_of_memory_at_something_unknown_names_no_kind() -> None:
    failure = failures.classify(["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory."], "1", Phase.IMPORTS)

    assert failure.category == "out_of_memory"


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(NOISE)), min_size=1, max_size=6))
def test_noise_changes_no_class(case: Path, noise: list[tuple[float, list[str]]]) -> None:
    content, lines = load(case)
    noisy = list(lines)
    for share, block in noise:
        # One watchdog's stacks never stand inside another's.
        place = 0 if "Pyspy" in block[0] else round(share * len(noisy))
        noisy[place:place] = block

    assert classify(content, noisy).category == content["category"]


@pytest.mark.parametrize("block", NOISE, ids=lambda block: block[0][:40])
def test_noise_alone_is_no_class(block: list[str]) -> None:
    failure = failures.classify(block, None, Phase.AUTOTUNE)

    assert failure.category == "unknown"
    assert "hush" not in str(failure)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_healthy_load_gives_no_class(path: Path) -> None:
    lines = capture(path)

    assert failures.classify(lines, None, phase_of(lines)).category == "unknown"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(HEALTHY), st.floats(0, 1), st.floats(0, 1))
@example(HEALTHY[0], 0.0, 1.0)
def test_no_part_of_a_healthy_load_gives_a_class(path: Path, first: float, last: float) -> None:
    """A tail begins anywhere, and a load can be looked at at any moment."""
    text = "\n".join(capture(path))
    part = text[round(min(first, last) * len(text)) : round(max(first, last) * len(text))].split("\n")

    assert failures.classify(part, None, phase_of(part)).category == "unknown"


def phase_of(lines: tuple[str, ...] | list[str]) -> str:
    tracker = PhaseTracker()
    for raw in lines:
        for piece in split_lines(raw):
            tracker.feed(parse_line(piece), 0.0)
    return tracker.phase


def test_evidence_never_shows_the_argument_dump() -> None:
    lines = ["[2026-11-29 12:00:00] server_args=ServerArgs(api_key='hush')"]

    failure = failures.classify(lines, "1", "imports")

    assert "hush" not in str(failure)


@pytest.mark.parametrize(
    ("gone", "category", "summary"),
    [
        (Gone.EVERYTHING, "unknown", "no process of the launch was ever seen"),
        (Gone.SCHEDULER, "scheduler_died", "a scheduler is gone, and the log does not say why"),
        (Gone.NOTHING, "unknown", "it ended in phase weights, and the log does not say why"),
    ],
)
def test_without_an_exit_status_what_was_missed_is_told(gone: str, category: str, summary: str) -> None:
    failure = failures.classify(["[2026-11-29 12:33:14] Load weight begin. avail mem=139.09 GB"], None, "weights", gone=gone)

    assert (failure.category, failure.summary) == (category, summary)
    assert failure.evidence == ["Load weight begin. avail mem=139.09 GB"]


def test_what_was_missed_never_hides_what_the_log_says() -> None:
    _, lines = load(DATA / "failures/unknown_exception.json")

    failure = failures.classify(lines, None, "weights", gone=Gone.EVERYTHING)

    assert "experts.w13" in failure.summary


def test_a_stall_names_the_limit_the_phase_and_the_last_sign_of_life() -> None:
    lines = (DATA / "captures/h200-0.5.17/M_flashinfer_trtllm.log").read_text(encoding="utf-8").split("\n")

    failure = failures.out_of_time(Category.STALLED, "the no-progress limit", 900.0, "autotune", "", "log output, 901 s ago", lines)

    assert failure.category == "stalled"
    assert failure.summary == "the no-progress limit of 900 s ran out in phase autotune; last sign of life: log output, 901 s ago"
    assert "Running FlashInfer autotune" in failure.evidence[-1]
    assert "network" in failure.advice
    assert not failure.retry


def test_a_stall_beside_somebody_elses_lock_waits_for_it() -> None:
    lock = "/root/.cache/flashinfer/x.lock: held by process 7 (python3)"

    failure = failures.out_of_time(Category.STALLED, "the no-progress limit", 900.0, "autotune", "", "log output, 901 s ago", [], [lock])

    assert failure.category == "jit_lock"
    assert failure.summary.startswith("the no-progress limit of 900 s ran out in phase autotune")
    assert failure.evidence == [lock]
    assert "remove the lock file" in failure.advice


@pytest.mark.parametrize(("phase", "retry"), [("graph_capture", True), ("weights", False)])
def test_a_cold_cache_that_took_all_the_time_is_warmer_the_next_time(phase: str, retry: bool) -> None:
    failure = failures.out_of_time(Category.TIMED_OUT, "the limit", 3600.0, phase, "", "compilers: nvcc, 0 s ago", [], ["held.lock"])

    assert (failure.category, failure.retry) == ("timed_out", retry)


def test_chained_exceptions_are_one_with_the_last_as_its_cause() -> None:
    _, lines = load(DATA / "failures/model_path_missing.json")

    found = find_exceptions([parse_line(line) for line in lines])

    assert len(found) == 1
    assert found[0].errors[0].startswith("huggingface_hub.errors.HFValidationError")
    assert found[0].cause.startswith("OSError")


def test_frames_tell_what_was_being_done() -> None:
    lines = capture(DATA / "captures/h200-0.5.17/M_triton_kernel.log")

    assert [item.stage for item in read_log(lines).exceptions if item.ends_process] == [Phase.GRAPH_CAPTURE]


def test_a_line_of_another_process_parts_no_traceback() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/opt/sglang/sglang/srt/model_executor/model_runner.py", line 1043, in load_model',
        "[2026-11-29 12:40:01 TP3] Using default MoE kernel config.",
        "    self.model = get_model(",
        "[2026-11-29 12:40:01 TP2] Using default MoE kernel config.",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "[2026-11-29 12:40:02] Received sigquit from a child process. It usually means the child failed.",
    ]

    (found,) = read_log(lines).exceptions

    assert (found.cause, found.stage) == ("torch.OutOfMemoryError: CUDA out of memory.", Phase.WEIGHTS)
    assert find_exceptions([parse_line(line) for line in lines[:3]]) == []
