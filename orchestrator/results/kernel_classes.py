"""What a kernel or an operator is for, by its name: a table of patterns. Pure.

The first pattern that is found in a name decides, so what is special comes first: a fused all-reduce with a norm is communication, and
FlashAttention, which is a CUTLASS kernel, is attention. Names are those of the projects' sources and of published traces (SGLang PR #22440,
#14544); what nobody knows is `other`, which a table names, so that a pattern can be added.
"""

from __future__ import annotations

import re

COMMUNICATION = "communication"
ATTENTION = "attention"
ROUTING = "MoE routing"
GEMM = "GEMM"
SAMPLING = "sampling"
COPIES = "memory copies"
ELEMENTWISE = "norm, elementwise"
OTHER = "other"

CLASSES = (GEMM, ROUTING, ATTENTION, COMMUNICATION, SAMPLING, ELEMENTWISE, COPIES, OTHER)
"""In the order in which they are shown."""

_PATTERNS = (
    # NCCL: src/device (ncclDevKernel_AllReduce_Sum_bf16_RING_LL); before 2.19 ncclKernel_.
    (COMMUNICATION, r"nccl"),
    # sgl-kernel csrc/allreduce: cross_device_reduce_1stage, _2stage; trtllm's and FlashInfer's allreduce_fusion_kernel_oneshot_lamport.
    (COMMUNICATION, r"cross_device_reduce|all_?reduce|lamport"),
    # Collectives of PyTorch's symmetric memory (multimem_…), MSCCL++, gloo on a CPU.
    (COMMUNICATION, r"all_?gather|reduce_?scatter|all_?to_?all|multimem|mscclpp|gloo:|c10d::"),
    # DeepEP csrc/kernels: deep_ep::internode_ll::dispatch, combine; NVSHMEM's own.
    (COMMUNICATION, r"deep_ep|nvshmem|moe_?a2a|moe_?comm"),
    # FlashAttention 2 to 4 (flash_fwd_kernel, FlashAttnFwdSm90, flash_fwd_splitkv_mla_kernel), its scheduler (prepare_varlen_num_blocks).
    (ATTENTION, r"flash(?!infer)|prepare_varlen"),
    # FlashInfer (BatchDecodeWithPagedKVCacheKernel, MergeStates), TensorRT-LLM's fmhaSm100…, CUTLASS's fmha and MLA.
    (ATTENTION, r"batch(?:decode|prefill)|paged_?kv|merge_?states?|fmha|(?:^|[^a-z])mla(?:[^a-z]|$)"),
    # SGLang srt/layers/attention/triton_ops/decode_attention.py and extend_attention.py.
    (ATTENTION, r"_fwd_(?:grouped_)?kernel_stage[12]|^_fwd_kernel|attention|attn"),
    # Writing into the KV cache and finding what to read of it; the indexer of sparse attention (deep_gemm …mqa_logits, topk_transform).
    (ATTENTION, r"fused_metadata|kv_?buffer|kv_?cache|kv_?indices|store_kv|mqa_logits|topk_transform|get_mla_metadata"),
    # sgl-kernel csrc/moe: topkGatingSoftmax, moe_fused_gate, moe_align_block_size_kernel, count_and_sort_expert_tokens_kernel, moe_sum.
    (ROUTING, r"topk_?gating|moe_?(?:softmax|sigmoid|fused_gate|align|sum|topk)|grouped_topk|fused_?topk|expert_tokens|biased_topk"),
    # TensorRT-LLM's MoE around its GEMMs: routing::routingIndices…, expandInputRowsKernel, finalizeMoeRoutingKernel, doActivation is not.
    (
        ROUTING,
        r"routing|_router_triton|expandinputrows|finalize|expert_?(?:first|offset|prefix|map)|blockexpertprefix|fusedbuildexpertmaps",
    ),
    # SGLang srt/layers/moe/ep_moe/kernels.py: tokens to experts and back.
    (ROUTING, r"ep_(?:scatter|gather)|(?:pre|post)_reorder|moe_?(?:permute|unpermute)|deepep_(?:permute|post_reorder)"),
    # FlashInfer include/flashinfer/sampling.cuh (TopKTopPSamplingFromProb…, …RenormProb…), PyTorch's argmax, multinomial, softmax.
    (SAMPLING, r"sampl|renorm_?prob|argmax|multinomial|cunn_softmax|penalt|logit_?bias|bitmask"),
    # The experts' GEMMs: SGLang's fused_moe_kernel (Triton), triton_kernels' _matmul_ogs…, Marlin's, TensorRT-LLM's bmm_….
    (GEMM, r"fused_moe_kernel|matmul|marlin|(?:^|[^a-z])bmm_"),
    # cuBLAS: nvjet_…, …xmma_gemm…, gemv, splitKreduce_kernel, dot_kernel; CUTLASS; DeepGEMM; the CPU's operators.
    (
        GEMM,
        r"gemm|gemv|nvjet|xmma|splitkreduce|cublas|dot_kernel|cutlass.*(?:kernel2|device_kernel)|aten::(?:mm|addmm|bmm|baddbmm|_scaled_mm)",
    ),
    # PyTorch aten/src/ATen/native/cuda: Copy.cu, Shape.cu; what Kineto calls copies and fills of the driver.
    (COPIES, r"memcpy|memset|direct_copy|catarray|^aten::(?:copy_|_to_copy|to|clone|contiguous|cat|_local_scalar_dense|item)$"),
    # Norms, activations, rotary embeddings, quantization of activations: sgl-kernel csrc/elementwise and csrc/gemm, FlashInfer norm.cuh.
    (ELEMENTWISE, r"norm|act_and_mul|silu|gelu|swiglu|sigmoid|doactivation|rotary|rope|quant|cvt_"),
    # PyTorch's own: vectorized_elementwise_kernel, reduce_kernel, index and gather kernels, embeddings, what torch.compile has fused.
    (
        ELEMENTWISE,
        r"elementwise|multi_tensor_apply|clamp_position|reduce_kernel|index|gather|scatter|embedding|fill|arange|compare|triton_(?:poi|red|per)_|^aten::",
    ),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)


def kernel_class(name: str) -> str:
    """One of :data:`CLASSES`."""
    return next((found for found, pattern in _COMPILED if pattern.search(name)), OTHER)
