"""What gives a failure of the GPUs away: their memory, kernels for them, the driver, NCCL. See :mod:`failure_signatures`."""

from typing import Tuple

from orchestrator.agent.failure_classes import Category, Signature, Where, signature
from orchestrator.agent.phases import Phase

_OTHER_BACKEND = "do not retry; choose another backend profile (`fab backends` says which exist for which compute capability)"
_OUT_OF_MEMORY = (
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|Triton Error \[CUDA\]: out of memory"
    r"|graph failed: .*out of memory"
)
_FREE_AT_FIRST = r"Load weight begin\. avail mem="
_HOLDERS = "see what else is on the GPUs (`nvidia-smi` on the host)"
REMOVE_LOCK = (
    "see who holds it (`fuser -v FILE`, on every host that shares the cache); when nobody does, remove the lock file and launch again"
)

MEMORY: Tuple[Signature, ...] = (
    signature(
        Category.GPU_OCCUPIED,
        r"The memory capacity is unbalanced",
        "some GPUs are occupied by other processes",
        "see who holds GPU memory on the host: `nvidia-smi`; a server of before may not have released it yet",
        retry=True,
    ),
    signature(
        Category.OUT_OF_MEMORY_KV_CACHE,
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "the weights leave no GPU memory for the KV cache",
        f"raise --mem-fraction-static, or use more GPUs or a smaller quantization; {_HOLDERS}",
        context=_FREE_AT_FIRST,
    ),
    signature(
        Category.OUT_OF_MEMORY_RUNNING,
        r"(?:Prefill|Decode) out of memory\. Try to lower|^RuntimeError: Out of memory\. Try to lower"
        r"|alloc_req_slots runs out of memory",
        "the KV cache ran full while it served",
        "lower --max-running-requests or --chunked-prefill-size; the pool's sizes are in the log",
        retry=True,
    ),
    signature(
        Category.OUT_OF_MEMORY_GRAPHS,
        _OUT_OF_MEMORY,
        "the GPU memory does not suffice for the CUDA graphs",
        "lower --mem-fraction-static or the largest captured batch (--cuda-graph-max-bs; from 0.5.20 --cuda-graph-max-bs-decode); "
        + _HOLDERS,
        stages=(Phase.GRAPH_CAPTURE, Phase.AUTOTUNE),
        context=_FREE_AT_FIRST,
    ),
    signature(
        Category.OUT_OF_MEMORY_KV_CACHE,
        _OUT_OF_MEMORY,
        "the GPU memory does not suffice for the KV cache",
        f"lower --mem-fraction-static or --max-total-tokens; {_HOLDERS}",
        stages=(Phase.KV_CACHE,),
        context=_FREE_AT_FIRST,
    ),
    signature(
        Category.OUT_OF_MEMORY_WEIGHTS,
        _OUT_OF_MEMORY,
        "the GPU memory does not suffice for the weights",
        f"use more GPUs or a smaller quantization; {_HOLDERS}",
        stages=(Phase.WEIGHTS,),
        context=_FREE_AT_FIRST,
    ),
    signature(
        Category.OUT_OF_MEMORY_RUNNING,
        _OUT_OF_MEMORY,
        "the GPU memory did not suffice for a request",
        f"lower --mem-fraction-static (the rest is for activations) or --chunked-prefill-size; {_HOLDERS}",
        stages=(Phase.WARM_UP, Phase.READY),
        context=_FREE_AT_FIRST,
    ),
    signature(
        Category.OUT_OF_MEMORY,
        _OUT_OF_MEMORY,
        "the GPU memory does not suffice",
        f"{_HOLDERS}; then lower --mem-fraction-static",
        context=_FREE_AT_FIRST,
    ),
)

BACKENDS: Tuple[Signature, ...] = (
    signature(
        Category.QUANTIZATION_UNSUPPORTED,
        r"Cannot find the config file for \w+|Quantization method specified in the model config",
        "the checkpoint is not quantized as --quantization says",
        "check the model's config.json and hf_quant_config.json, or take a backend for another quantization",
    ),
    signature(
        Category.QUANTIZATION_UNSUPPORTED,
        r"Invalid quantization\b|Unknown quantization method|does not support NVFP4"
        r"|The quantization method .+ is not supported for the current GPU"
        r"|is not supported for quantization method",
        "this quantization does not work with this backend, this GPU or this build",
        f"give --quantization as the checkpoint has it (modelopt_fp4 for NVFP4); else {_OTHER_BACKEND}",
    ),
    signature(
        Category.KERNEL_MISSING,
        r"no kernel image is available|expects arch to be (?:one of|at least|Arch)|Unsupported architecture(?!:)"
        r"|does not support compute capability"
        r"|GPUArchitectureError|cvt_\w+ is not supported on|requires GPUs with sm\d+ or higher",
        "there is no kernel for this GPU's architecture",
        _OTHER_BACKEND,
    ),
    signature(
        Category.BACKEND_UNSUPPORTED,
        r"Unsupported moe_runner_backend|requires FlashInfer with CuteDSL support|BackendSupportedError|Unsupported (?:compute )?capability"
        r"|NotImplementedError.*(?:NVFP4|moe|MoE|backend)|(?:sm|SM)_?\d+ is not supported|only supported on (?:Blackwell|Hopper|SM)"
        r"|requires? (?:SM ?>?=?\d|Hopper|Blackwell|compute capability)",
        "this backend does not work with this model, this GPU or this build",
        _OTHER_BACKEND,
    ),
    signature(
        Category.MODEL_UNSUPPORTED,
        r"Model architectures .+ are not supported for now|Transformers does not recognize this architecture|Cannot find model module\.",
        "the installed SGLang or transformers does not know this model",
        "take a newer SGLang, with the transformers that it pins",
    ),
)

COMPILERS: Tuple[Signature, ...] = (
    signature(
        Category.JIT_LOCK,
        r"The file lock '.+' could not be acquired",
        "a process waited in vain for a lock in the cache of compiled kernels",
        REMOVE_LOCK,
    ),
    signature(
        Category.COMPILATION_FAILED,
        r"Killed signal terminated program|died due to signal 9",
        "a compiler was killed, as it is when the main memory does not suffice",
        "set MAX_JOBS (4 takes about 10 GB) in the service's environment, or raise the container's memory",
    ),
    signature(
        Category.COMPILATION_FAILED,
        r"Ninja build failed|Error building extension|nvcc fatal|ptxas (?:fatal|error)|CompilationError|NVCC compilation failed"
        r"|DSLRuntimeError|OpError|MissingJITCacheError"
        r"|Could not find nvcc|SM \d+(?:\.\d)?\+? requires CUDA|Failed to find C compiler|GCC_HOST",
        "a kernel could not be compiled on this box",
        "check `nvcc --version` (sm_120 needs CUDA 12.9), the compiler and glibc; see the compiler's output in the log",
    ),
)

NVIDIA: Tuple[Signature, ...] = (
    signature(
        Category.VERSION_MISMATCH,
        r"Driver/library version mismatch|CUDA driver version is insufficient|cudaErrorInsufficientDriver"
        r"|provided PTX was compiled with an unsupported toolchain",
        "the NVIDIA driver does not fit the CUDA libraries here",
        "the container's driver libraries must be of the host's driver version, and that new enough for PyTorch's CUDA: `fab doctor`",
    ),
    signature(
        Category.GPU_MISSING,
        r"No CUDA GPUs are available|cudaErrorNoDevice|no CUDA-capable device|invalid device ordinal"
        r"|No accelerator \(CUDA|GPU is lost|GpuIsLost"
        r"|fallen off the bus|Unable to determine the device handle",
        "a GPU that the launch needs is not here",
        "look for /dev/nvidia* here; compare `nvidia-smi -L` with --tp-size, --base-gpu-id and CUDA_VISIBLE_DEVICES; "
        "look for Xid lines in the host's kernel log",
    ),
    signature(
        Category.CUDA_INIT,
        r"Found no NVIDIA driver|CUDA unknown error|Failed to initialize NVML|NVMLError|cudaErrorSystemNotReady"
        r"|CUDA error: (?:initialization error|unknown error|system)|cudaGetDeviceCount",
        "CUDA does not work here",
        "run `nvidia-smi`, and look for /dev/nvidia-uvm in the container: without it nvidia-smi works and CUDA does not",
    ),
    signature(
        Category.NCCL,
        r"Watchdog caught collective operation timeout",
        "the GPUs could not talk to each other (NCCL): a collective timed out",
        "a rank that died or still compiled is the usual cause, else P2P over PCIe: NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1; "
        "--dist-timeout for cold caches",
        where=Where.LINE,
    ),
    signature(
        Category.NCCL,
        r"NCCL (?:error|Error)|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError"
        r"|DistBackendError|DistNetworkError|DistStoreError",
        "the GPUs could not talk to each other (NCCL)",
        "set NCCL_DEBUG=INFO; on PCIe boxes try NCCL_P2P_DISABLE=1 and check IOMMU and ACS; check /dev/shm",
    ),
    signature(
        Category.CUDA_ERROR,
        r"CUDA error: |AcceleratorError|CUDA_ERROR_|cudaError[A-Z]",
        "a CUDA call failed while FlashInfer tried kernels",
        "its tuning fails now and then: try again; --disable-flashinfer-autotune does without (0.5.9 and later)",
        retry=True,
        stages=(Phase.AUTOTUNE,),
    ),
    signature(
        Category.CUDA_ERROR,
        r"CUDA error: |AcceleratorError|CUDA_ERROR_|cudaError[A-Z]",
        "a CUDA call failed",
        "set CUDA_LAUNCH_BLOCKING=1 to see which kernel; look for Xid lines in the host's kernel log",
    ),
)
