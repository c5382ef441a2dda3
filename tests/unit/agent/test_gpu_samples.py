"""GPUs sampled while something runs: rows, what changes from one to the next, and drivers that know less."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command import Output
from orchestrator.agent.gpu_samples import GpuSampler, during, parse_rows, series

FIELDS = [
    "clocks.sm",
    "power.draw",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "clocks_event_reasons.active",
]
ROW = "2026/11/29 12:00:0{second}.500, {index}, GPU-{index}, NVIDIA B200, {clock}, 300.50, 5, {width}, 16, 0x00000000000000{mask}\n"


def row(second: int = 0, index: int = 0, clock: str = "1980", width: str = "16", mask: str = "00") -> str:
    return ROW.format(second=second, index=index, clock=clock, width=width, mask=mask)


def test_rows_and_what_is_no_row() -> None:
    rows = parse_rows(row(clock="[N/A]", mask="24") + "Unable to determine the device handle\n" + row(1, index=1), FIELDS)

    first, second = (item.sample for item in rows)
    assert (first.index, first.sm_clock, first.power, first.link_width) == (0, None, 300.5, 16)
    assert first.reasons == ["sw_power_cap", "sw_thermal_slowdown"]
    assert (second.index, second.sm_clock, second.reasons) == (1, 1980.0, [])
    assert second.moment - first.moment == pytest.approx(1.0)


def test_each_gpu_has_its_range() -> None:
    rows = parse_rows(row(0, clock="1900", mask="40") + row(1, clock="1980", width="8") + row(1, index=1), FIELDS)

    first, second = series(rows)
    assert (first.index, first.uuid, first.samples) == (0, "GPU-0", 2)
    assert first.sm_clock == [1900.0, 1940.0, 1980.0]
    assert (first.link_width, first.most_link_width) == ([8.0, 12.0, 16.0], 16)
    assert first.reasons == {"hw_thermal_slowdown": 1}
    assert [item.uuid for item in series(rows, ["GPU-1"])] == [second.uuid]


def test_only_what_was_sampled_while_streams_ran_counts() -> None:
    rows = parse_rows(row(0) + row(5), FIELDS)
    moment = rows[0].sample.moment

    assert [item.sample.moment for item in during(rows, [(moment - 1, moment + 1)])] == [moment]
    assert len(during(rows, [(moment + 1, moment + 2)])) == 2


PROGRAM = """#!/bin/sh
case "$*" in
  *{unknown}*) echo 'Field "{unknown}" is not a valid field to query.'; exit 2;;
  *--loop-ms=*) while :; do printf '{line}'; sleep 0.05; done;;
  *) printf '{line}';;
esac
"""


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, fields: int) -> None:
    """An nvidia-smi on the PATH that doesn't know the newer name of the reasons, and answers so many fields."""
    line = "2026/11/29 12:00:00.500, 0, GPU-0, NVIDIA B200" + ", 1" * fields + r"\n"
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(unknown="clocks_event_reasons.active", line=line), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_one_child_samples_until_the_end_and_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, 12)

    with GpuSampler() as sampler:
        child = sampler._child
        assert child is not None
        assert sampler._memory is not None
        memory = sampler._memory
        assert wait_until(lambda: os.fstat(memory).st_size > 100, Deadline(20))

    assert sampler.problem is None
    assert len(sampler.rows) >= 2
    assert child.poll() is not None


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (Output(None, "", "nvidia-smi: No such file or directory"), "No such file"),
        (Output(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "couldn't communicate"),
        (Output(0, "", ""), "no GPU"),
    ],
)
def test_without_gpus_there_is_a_reason(output: Output, problem: str) -> None:
    def ask(argv: Sequence[str], seconds: float) -> Output:
        return output

    began = time.monotonic()
    with GpuSampler(ask) as sampler:
        pass

    assert problem in str(sampler.problem)
    assert sampler.rows == []
    assert time.monotonic() - began < 5
