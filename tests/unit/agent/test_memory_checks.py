"""Whether there will be memory once the old server has gone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from orchestrator.agent import memory_checks, wire
from orchestrator.agent.checkpoint import Checkpoint
from orchestrator.agent.memory_checks import GpuUse, Holder, check_gpu_memory, check_host_memory, needed_memory

TOTAL = 96 * 1024


def gpus(*used: int) -> list[wire.Gpu]:
    return [wire.Gpu(index, f"GPU-{index}", "RTX PRO 6000", "12.0", memory, TOTAL) for index, memory in enumerate(used)]


def weights(gib: float) -> Checkpoint:
    return Checkpoint("/m", weights=int(gib * (1 << 30)))


def judge(
    used: tuple[int, ...],
    use: GpuUse,
    checkpoint: Checkpoint | None = None,
    *,
    replaces: bool = True,
    environment: dict[str, str] | None = None,
    **values: Any,
) -> wire.Verdict:
    verdict = check_gpu_memory(gpus(*used), use, {"tp_size": len(used), **values}, environment or {}, checkpoint, replaces=replaces)
    assert verdict is not None
    return verdict


def own(*memory: int) -> list[Holder]:
    return [Holder(f"GPU-{index}", 100 + index, share) for index, share in enumerate(memory)]


def test_what_the_old_server_holds_comes_back() -> None:
    verdict = judge((90000, 90000), GpuUse(own=own(89500, 89500)), weights(100), mem_fraction_static=0.85)
    assert (verdict.outcome, verdict.evidence) == ("pass", [])
    assert "of each of 2 GPU(s) will be free, for 50.0 GiB of weights each" in verdict.detail


def test_a_foreign_process_is_named() -> None:
    use = GpuUse(own=own(60000, 60000), others=[Holder("GPU-1", 7, 4000, "7 python train.py")])
    verdict = judge((60500, 64500), use)
    assert verdict.outcome == "warn"
    assert verdict.evidence == ["GPU 1: process 7 python train.py holds 4000 MiB"]


def test_a_foreign_process_that_unbalances_the_gpus_ends_a_launch() -> None:
    use = GpuUse(own=own(60000, 60000), others=[Holder("GPU-1", 7, 20000, "7 python train.py")])
    verdict = judge((60500, 80500), use)
    assert verdict.outcome == "refuse"
    assert "below nine tenths" in verdict.detail
    assert "python train.py" in verdict.evidence[0]
    switched_off = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"}
    assert judge((60500, 80500), use, environment=switched_off).outcome == "warn"


def test_weights_that_can_not_fit_are_refused() -> None:
    verdict = judge((500, 500), GpuUse(), weights(180), replaces=False, mem_fraction_static=0.85)
    assert verdict.outcome == "refuse"
    assert "at least 90.0 GiB for each of 2 GPU(s), and GPU 0 will have 95.5 GiB of 96.0 GiB free" in verdict.detail
    assert "0.85 is SGLang's" in verdict.detail
    assert judge((500, 500), GpuUse(), weights(180), replaces=False).outcome == "pass"


def test_weights_do_not_fit_beside_a_foreign_process() -> None:
    use = GpuUse(own=own(30000), others=[Holder("GPU-0", 7, 60000, "7 python train.py")])
    verdict = judge((90500,), use, weights(40))
    assert verdict.outcome == "refuse"
    assert verdict.evidence == ["GPU 0: process 7 python train.py holds 60000 MiB"]


@pytest.mark.parametrize(
    "values", [{"load_format": "dummy"}, {"cpu_offload_gb": 40}, {"quantization": "fp8"}, {"load_format": "bitsandbytes"}, {"tp_size": 4}]
)
def test_weights_of_which_the_disk_does_not_tell_are_not_judged(values: dict[str, Any]) -> None:
    assert judge((500, 500, 500, 500), GpuUse(), weights(250), replaces=False, **values).outcome == "pass"


def test_memory_that_nobody_is_named_for_is_the_old_servers_where_there_is_one() -> None:
    assert judge((90000,), GpuUse(), replaces=True).outcome == "pass"
    verdict = judge((90000,), GpuUse(), replaces=False)
    assert verdict.outcome == "warn"
    assert verdict.evidence == ["GPU 0: somebody who is not visible here holds 90000 MiB"]


def test_a_process_of_another_namespace_is_told_by_its_number() -> None:
    verdict = judge((30000,), GpuUse(unseen=[Holder("GPU-0", 4711, 29000)]), replaces=False)
    assert verdict.evidence == ["GPU 0: process 4711 of another PID namespace holds 30000 MiB"]
    # It may well be the old server itself.
    assert judge((30000,), GpuUse(unseen=[Holder("GPU-0", 4711, 29000)]), replaces=True).outcome == "pass"


def test_only_the_gpus_that_the_ranks_take_count() -> None:
    use = GpuUse(others=[Holder("GPU-0", 7, 60000, "7 python train.py")])
    assert judge((60500, 500), use, replaces=False, tp_size=1, base_gpu_id=1).outcome == "pass"
    assert judge((60500, 500), use, replaces=False, tp_size=1, environment={"CUDA_VISIBLE_DEVICES": "1"}).outcome == "pass"
    assert judge((60500, 500), use, replaces=False, tp_size=1).outcome == "warn"


def test_without_a_gpu_there_is_nothing_to_say() -> None:
    assert check_gpu_memory([], GpuUse(), {}, {}, None, replaces=False) is None


def test_memory_that_is_pinned_is_counted() -> None:
    plain, _ = needed_memory({"tp_size": 8})
    pinned, why = needed_memory({"tp_size": 8, "enable_hierarchical_cache": True, "hicache_size": 100, "cpu_offload_gb": 2})
    assert pinned - plain == 8 * 100 * 10**9 + 8 * 2 * (1 << 30)
    assert any("--hicache-size: 745.1 GiB" in line for line in why)


def test_what_the_old_server_gives_back_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_checks, "meminfo", lambda name: 1 << 30)
    assert check_host_memory({"tp_size": 1}, []).outcome == "warn"
    monkeypatch.setattr(memory_checks, "_anonymous", lambda pid: 4 << 30)
    verdict = check_host_memory({"tp_size": 1}, [1])
    assert verdict.outcome == "pass"
    assert "4.0 GiB come back" in verdict.detail


def test_memory_of_this_very_process_is_read() -> None:
    assert memory_checks._anonymous(os.getpid()) > 1 << 20
    assert memory_checks._anonymous(2**22 + 1) == 0
