"""When less room for the KV cache speaks against a launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.capacity import Known, changed_beyond_backend, free_at_first, read_head, verdict
from orchestrator.agent.previous import AS_FOUND

BEFORE = wire.Launch(
    "l1", "svc", "auto", "/py", ["--model-path", "/m", "--host", "127.0.0.1", "--tp", "2", "--moe-runner-backend", "auto"], "127.0.0.1", 1,
    environment={"NCCL_DEBUG": "INFO"}, backend_flags=["--moe-runner-backend"],
)  # fmt: skip
AFTER = replace(
    BEFORE,
    arguments=["--model-path", "/m", "--host", "10.0.0.1", "--tensor-parallel-size", "2", "--fp4-gemm-backend", "cutlass"],
    backend_flags=["--fp4-gemm-backend"],
    environment={"NCCL_DEBUG": "INFO", "SGLANG_FOR_BACKEND": "1"},
    backend_environment=["SGLANG_FOR_BACKEND"],
)


def test_what_the_backends_set_is_no_change_besides_them() -> None:
    assert changed_beyond_backend(BEFORE, AFTER) == []


def test_every_other_change_is_named() -> None:
    changed = replace(AFTER, arguments=["--model-path", "/other", "--mem-fraction-static", "0.5"], environment={})
    assert changed_beyond_backend(BEFORE, changed) == ["--mem-fraction-static", "--model-path", "--tp-size", "NCCL_DEBUG"]


def test_the_login_of_a_server_started_by_hand_is_no_change() -> None:
    login = {"PATH": "/bin", "SSH_TTY": "x", "EDITOR_THEME": "dark", "NCCL_DEBUG": "INFO"}
    found = replace(BEFORE, backend=AS_FOUND, environment=login)
    assert changed_beyond_backend(found, AFTER) == []
    assert changed_beyond_backend(replace(found, environment={**login, "PYTORCH_ALLOC_CONF": "x"}), AFTER) == ["PYTORCH_ALLOC_CONF"]


@pytest.mark.parametrize(
    ("known", "now", "outcome"),
    [
        (Known(1000, "l1"), 1000, "pass"),
        (Known(1000, "l1"), 900, "warn"),
        (Known(1000, "l1"), 440, "refuse"),
        (Known(1000, "l1", ["--mem-fraction-static"]), 440, "warn"),
        (Known(1000, "l1", ["--mem-fraction-static"]), 1000, "pass"),
        (Known(None, "l1"), 440, "unknown"),
        (Known(1000, "l1"), None, "unknown"),
    ],
)
def test_capacity(known: Known, now: int | None, outcome: str) -> None:
    assert verdict(known, now, wire.Policy()).outcome == outcome


def test_a_refusal_names_its_limit_and_a_warning_what_changed() -> None:
    assert "`capacity_fail` under `policy:`" in str(verdict(Known(1000, "l1"), 440, wire.Policy()).next_step)
    told = verdict(Known(1000, "the last verified launch, l1", ["--mem-fraction-static"]), 440, wire.Policy()).detail
    assert (
        told
        == "max_total_num_tokens 440, 44% of the 1000 of the last verified launch, l1; the arguments changed too: --mem-fraction-static"
    )


CAPTURES = Path(__file__).parents[2] / "data/captures/h200-0.5.17"


def test_a_process_left_on_the_gpu_is_told_by_what_was_free_at_first() -> None:
    """Two launches of one server, the second beside a process that held 130 GB."""
    alone, beside = (free_at_first(read_head(CAPTURES / name)) for name in ("A_again1.log", "F_gpu_busy_130g.log"))
    assert (alone, beside) == (139.09, 8.58)

    found = verdict(Known(16440381, "the last verified launch, l1", (), alone), 993324, wire.Policy(), beside)

    assert found.outcome == wire.Outcome.REFUSE
    assert (
        found.detail == "max_total_num_tokens 993324, 6% of the 16440381 of the last verified launch, l1; other processes hold GPU memory"
    )
    assert found.evidence == ["free before the weights: 8.58 GB, and 139.09 GB for the last verified launch, l1"]
    assert "nvidia-smi" in str(found.next_step)
    assert "capacity_fail" not in str(found.next_step)


@pytest.mark.parametrize(("before", "now"), [(139.09, 138.2), (None, 8.58), (139.09, None)])
def test_without_less_free_memory_nobody_else_is_blamed(before: float | None, now: float | None) -> None:
    found = verdict(Known(1000, "l1", (), before), 100, wire.Policy(), now)

    assert found.outcome == wire.Outcome.REFUSE
    assert "other processes" not in found.detail
    assert found.evidence == []


def test_the_fullest_gpu_counts_and_a_draft_model_does_not() -> None:
    lines = [
        "[2026-11-29 12:00:00 TP0] Load weight begin. avail mem=90.00 GB",
        "[2026-11-29 12:00:00 TP1] Load weight begin. avail mem=80.50 GB",
        "[2026-11-29 12:01:00 TP0] Load weight begin. avail mem=10.00 GB",
    ]

    assert free_at_first(lines) == 80.5
    assert free_at_first(["nothing of it"]) is None
    assert read_head(Path("/not/there")) == []
