"""When less room for the KV cache speaks against a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.agent import wire
from orchestrator.agent.capacity import Known, changed_beyond_backend, verdict
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
