"""Decode steps in traces: one recorded from the real SGLang on CPU, and one made up in the shape of a GPU's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results import kernel_classes as classes
from orchestrator.results.kernel_classes import kernel_class
from orchestrator.results.trace import Trace, TraceError, read_trace, trace_of, union_length

DATA = Path(__file__).parents[2] / "data"
RECORDED = DATA / "captures/cpu-0.5.23/profile_decode.trace.json.gz"
RECORDED_ON_GPU = DATA / "captures/h200-0.5.17/profile_decode.trace.json.gz"
"""By torch 2.11 on one H200: a tiny mixture of experts whose step is nearly all gaps."""
SYNTHETIC = DATA / "traces/synthetic_cuda_like.json"


def synthetic() -> dict[str, Any]:
    data = json.loads(SYNTHETIC.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def seconds(trace: Trace) -> dict[str, float]:
    return {name: sum(item.own for item in work) for name, work in trace.middle.by_class().items()}


def test_a_synthetic_cuda_like_step_worked_out_by_hand() -> None:
    trace = read_trace(SYNTHETIC)

    assert (trace.on_gpu, len(trace.steps), trace.told_by) == (True, 2, "SGLang's marks")
    step = trace.middle
    assert step.batch_size == 4
    assert step.seconds == pytest.approx(1000e-6)
    assert seconds(trace) == pytest.approx(
        {
            classes.ELEMENTWISE: 20e-6,
            classes.GEMM: 400e-6,
            classes.ATTENTION: 170e-6,
            classes.COMMUNICATION: 90e-6,
            classes.ROUTING: 10e-6,
            classes.OTHER: 30e-6,
            classes.SAMPLING: 40e-6,
            classes.COPIES: 10e-6,
        }
    )


def test_busy_is_the_union_over_streams_and_the_gaps_are_the_rest() -> None:
    step = read_trace(SYNTHETIC).middle

    # 0-120, 130-630, 700-750; a second stream's 100 lie within
    assert step.busy == pytest.approx(670e-6)
    assert step.gaps == pytest.approx(330e-6)
    assert step.overlap == pytest.approx(100e-6)
    assert sum(item.own for item in step.work) - step.overlap + step.gaps == pytest.approx(step.seconds)


def test_without_marks_each_launched_graph_is_a_step() -> None:
    data = synthetic()
    data["traceEvents"] = [event for event in data["traceEvents"] if event.get("cat") not in ("user_annotation", "gpu_user_annotation")]

    trace = trace_of(data, "old")

    assert (len(trace.steps), trace.told_by, trace.middle.batch_size) == (2, "launches of CUDA graphs", None)
    assert trace.middle.seconds == pytest.approx(1000e-6)


def test_a_prefill_ends_the_step_before_it_and_is_none() -> None:
    data = synthetic()
    marks = [event for event in data["traceEvents"] if event.get("cat") == "user_annotation"]
    marks[1]["name"] = "step[EXTEND bs=1 toks=256]"

    assert [step.begin for step in trace_of(data, "mixed").steps] == pytest.approx([1100e-6])


def test_a_recorded_trace_of_sglang_on_cpu() -> None:
    trace = read_trace(RECORDED)

    assert (trace.on_gpu, trace.told_by) == (False, "SGLang's marks")
    assert [step.batch_size for step in trace.steps] == [1] * 7
    step = trace.middle
    found = step.by_class()
    assert {classes.GEMM, classes.ATTENTION, classes.SAMPLING, classes.ELEMENTWISE, classes.COPIES} == set(found)
    # the tiny model has two layers of four projections and a head
    assert sum(item.name == "aten::mm" for item in found[classes.GEMM]) == 9
    assert [item.name for item in found[classes.SAMPLING]] == ["aten::argmax"]
    assert sum(item.own for item in step.work) == pytest.approx(step.busy, rel=1e-3)
    assert step.overlap == 0
    assert 0 < step.busy < step.seconds


def test_an_operators_own_time_is_without_what_it_calls() -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=1]", "pid": 1, "tid": 1, "ts": ts, "dur": 80} for ts in (0, 100)
    ] + [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for name, ts, dur in (("aten::linear", 10, 50), ("aten::t", 12, 8), ("aten::mm", 22, 30), ("aten::add", 70, 5))
    ]

    step = trace_of({"traceEvents": events}, "cpu").middle

    assert {item.name: round(item.own * 1e6) for item in step.work} == {"aten::linear": 12, "aten::t": 8, "aten::mm": 30, "aten::add": 5}
    assert step.busy == pytest.approx(55e-6)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "can't be read"),
        (gzip.compress(b"{}")[:-6], "can't be read"),
        (b"{}", "no traceEvents"),
        (b'{"traceEvents": []}', "neither kernels nor operators"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]}', "no whole decode step"),
    ],
)
def test_what_is_no_trace_says_so(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.trace.json.gz"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        read_trace(path)


@pytest.mark.parametrize(("spans", "length"), [([], 0), ([(0, 2), (1, 3)], 3), ([(0, 5), (1, 2), (7, 8)], 6)])
def test_a_union(spans: list[tuple[float, float]], length: float) -> None:
    assert union_length(spans) == length


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", classes.COMMUNICATION),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*)", classes.COMMUNICATION),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<rmsnorm>", classes.COMMUNICATION),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::C> > >(x)", classes.ATTENTION),
        ("_fwd_grouped_kernel_stage1", classes.ATTENTION),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<1, 2>", classes.ATTENTION),
        ("fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKv", classes.ATTENTION),
        ("void moe_align_block_size_kernel<int>(int const*)", classes.ROUTING),
        ("void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16>", classes.ROUTING),
        ("fused_moe_kernel", classes.GEMM),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", classes.GEMM),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<x> >", classes.GEMM),
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u>", classes.GEMM),
        ("bmm_E2m1_E2m1E2m1_Fp32_t128x8x512_et64x8", classes.GEMM),
        ("void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>", classes.SAMPLING),
        ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(x)>", classes.COPIES),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", classes.ELEMENTWISE),
        ("void cvt_fp16_to_fp4<__nv_bfloat16>", classes.ELEMENTWISE),
        ("act_and_mul_kernel<silu>", classes.ELEMENTWISE),
        ("somebody_elses_kernel", classes.OTHER),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, found: str) -> None:
    assert kernel_class(name) == found


def test_a_trace_of_sglang_on_a_real_gpu() -> None:
    trace = read_trace(RECORDED_ON_GPU)

    assert (trace.on_gpu, len(trace.steps), trace.told_by) == (True, 7, "SGLang's marks")
    step = trace.middle
    assert step.batch_size == 1
    launches = {name: len(work) for name, work in step.by_class().items()}
    # 4 layers: qkv, o, router, two of the experts; and the output head
    assert launches[classes.GEMM] == 21
    assert launches[classes.ROUTING] == 8
    assert launches[classes.SAMPLING] == 1
    assert {classes.ATTENTION, classes.ELEMENTWISE, classes.COPIES} <= set(launches)
    assert classes.OTHER not in launches
    assert step.busy == pytest.approx(240.2e-6, abs=0.1e-6)
    assert step.gaps > 10 * step.busy
