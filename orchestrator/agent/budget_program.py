"""Times matrix multiplications and sums over ranks. Runs in the *service's* Python, as ``python -c SOURCE``, never in the agent's.

Each rank is a fork of the process that has imported PyTorch and has not touched CUDA yet: eight imports would take longer than all else.
What is timed is a CUDA graph of many launches in a row, as decode steps are graphs too. The weights of a launch are others than those of
the launches before it, so that they come from memory and not from the L2 cache, as in a decode step.

Question: ``{"gemms": [wire_budget.Gemm, ...], "all_reduces": [wire_budget.AllReduce, ...], "devices": [number, ...], "device": "cuda",
"memory": bytes, "seconds": limit}``.
Answers, a line each: ``{"rank", "torch", "device_name"}``, then ``{"rank", "gemm": index, "format", "samples": [seconds], "how",
"problem"}`` and ``{"rank", "all_reduce": index, "samples", "problem"}`` as they come.
"""

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

SAMPLES = 15
REPLAYED = 2e-3
"""Seconds of launches that one sample is to be made of, so that what the clock and a graph's start cost is little."""
_ASSUMED_SPEED = 2e12
"""Bytes a second, to choose the number of launches before anything is timed."""
_LAUNCHES = (20, 400)
_REDUCED = 200
"""Sums in one sample: what ranks that begin at different moments wait for each other is little of it."""
_AWAKE = 0.3
"""Seconds of work before anything is timed: an idle GPU's clocks are low."""
_COLD = 4
"""How many times the L2 cache's size the weights are that take turns."""
_BYTES = {"BF16": 2.0, "FP8": 1.0, "NVFP4": 0.5625}
"""Of a weight, in the order in which the formats are timed."""
_CONTEXT = 256 << 20
"""Bytes beside weights that PyTorch may take: activations, cuBLAS's workspace."""
_PR_SET_PDEATHSIG = 1
"""prctl(2): linux/prctl.h."""
_PADDED = 16
"""Rows that some builds ask of an FP8 multiplication at least."""


class Unavailable(Exception):  # noqa: N818
    """What this build or this GPU has not, and how that shows."""


class Launches(NamedTuple):
    """One multiplication to be timed: `run` takes the number of the launch."""

    run: Callable[[int], Any]
    copies: int
    bytes: int
    """Of one launch's weights."""
    scale: float = 1.0
    """The whole over what is run, where only a part fits into the memory."""
    how: str = ""


class Rank:
    """One GPU, or the CPU, and PyTorch."""

    def __init__(self, torch: Any, question: Dict[str, Any], number: int) -> None:
        self.torch = torch
        self.number = number
        self.cuda = question["device"] == "cuda"
        self.memory = int(question["memory"])
        self.device = torch.device("cuda", question["devices"][number]) if self.cuda else torch.device("cpu")
        if self.cuda:
            torch.cuda.set_device(self.device)
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, (self.memory + _CONTEXT) / total), self.device)
        # The one that everything is captured on: cuBLAS keeps a workspace for each stream for good, of 32 MiB on Hopper.
        self.stream = torch.cuda.Stream(self.device) if self.cuda else None

    @property
    def name(self) -> str:
        return str(self.torch.cuda.get_device_name(self.device)) if self.cuda else "CPU"

    def cold_bytes(self) -> int:
        if not self.cuda:
            return 0
        return _COLD * int(getattr(self.torch.cuda.get_device_properties(self.device), "L2_cache_size", 64 << 20))

    def forget(self) -> None:
        """Give memory back that nothing uses any more."""
        if self.cuda:
            self.torch.cuda.empty_cache()

    def wake(self) -> None:
        """Work until the clocks are up."""
        if not self.cuda:
            return
        given = self.random(2048, 2048)
        end = time.monotonic() + _AWAKE
        while time.monotonic() < end:
            self.torch.mm(given, given)
            self.torch.cuda.synchronize(self.device)

    def random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, dtype=self.torch.bfloat16, device=self.device)

    def empty(self, *shape: int) -> Any:
        return self.torch.empty(*shape, dtype=self.torch.bfloat16, device=self.device)


def launches(rank: Rank, gemm: Dict[str, Any], kind: str) -> Launches:
    """What to run for a multiplication in a format.

    Raises:
        Unavailable: this build has no such format, or this GPU.
    """
    groups, rows, inputs, outputs = gemm["groups"], gemm["rows"], gemm["inputs"], gemm["outputs"]
    notes = []
    if groups > 1 and kind != "BF16":
        # Without a grouped multiplication of this format, the same weights as one matrix: no slower than the group can be.
        groups, outputs = 1, groups * outputs
        notes.append("as one matrix of the same weights")
    whole = groups * outputs
    made_from = 2 * inputs if kind != "BF16" else 0  # bytes of a column in BF16, from which the others are made
    while 2 * groups * inputs * outputs > rank.memory // (2 if made_from else 1) and max(groups, outputs) > 32:
        groups, outputs = (-(-groups // 2), outputs) if groups > 1 else (1, -(-outputs // 32) * 16)
    scale = whole / (groups * outputs)
    if scale > 1:
        notes.append(f"1/{scale:.3g} of it was run, as no more memory is taken")
    size = int(groups * inputs * outputs * _BYTES[kind])
    room = (rank.memory - made_from * outputs) // size
    copies = max(1, min(room, -(-rank.cold_bytes() // size), _LAUNCHES[1]))
    make = {"BF16": _bf16, "FP8": _fp8, "NVFP4": _nvfp4}[kind]
    return Launches(make(rank, groups, rows, inputs, outputs, copies), copies, size, scale, "; ".join(notes))


def _bf16(rank: Rank, groups: int, rows: int, inputs: int, outputs: int, copies: int) -> Callable[[int], Any]:
    torch = rank.torch
    if groups == 1:
        given, made = rank.random(rows, inputs), rank.empty(rows, outputs)
        weights = [rank.random(outputs, inputs).t() for _ in range(copies)]
        return lambda number: torch.mm(given, weights[number % copies], out=made)
    given, made = rank.random(groups, rows, inputs), rank.empty(groups, rows, outputs)
    stacked = [rank.random(groups, outputs, inputs).transpose(1, 2) for _ in range(copies)]
    return lambda number: torch.bmm(given, stacked[number % copies], out=made)


def _fp8(rank: Rank, _groups: int, rows: int, inputs: int, outputs: int, copies: int) -> Callable[[int], Any]:
    torch = rank.torch
    kind = getattr(torch, "float8_e4m3fn", None)
    if kind is None or not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this build has no FP8 multiplication (torch._scaled_mm)")
    weights = [rank.random(outputs, inputs).to(kind).t() for _ in range(copies)]
    one = torch.ones((), dtype=torch.float32, device=rank.device)

    def padded(count: int) -> Callable[[int], Any]:
        given = rank.random(count, inputs).to(kind)
        return lambda number: torch._scaled_mm(given, weights[number % copies], scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return _first_that_runs(rank, [padded(rows), padded(-(-rows // _PADDED) * _PADDED)])


def _nvfp4(rank: Rank, _groups: int, rows: int, inputs: int, outputs: int, copies: int) -> Callable[[int], Any]:
    """With cuBLAS's layout of scales: an FP8 scale for 16 values, in tiles of 128 rows by 4 (PyTorch, test/test_scaled_matmul_cuda.py)."""
    torch = rank.torch
    kind = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None or not hasattr(torch, "_scaled_mm"):
        raise Unavailable("this build has no FP4 (torch.float4_e2m1fn_x2)")
    if not rank.cuda:
        raise Unavailable("there is no FP4 on a CPU")

    def values(count: int) -> Any:
        return torch.randint(0, 256, (count, inputs // 2), dtype=torch.uint8, device=rank.device).view(kind)

    def scales(count: int) -> Any:
        size = -(-count // 128) * 128 * (-(-(inputs // 16) // 4) * 4)
        return torch.ones(size, device=rank.device).to(torch.float8_e4m3fn)

    weights = [(values(outputs).t(), scales(outputs)) for _ in range(copies)]

    def padded(count: int) -> Callable[[int], Any]:
        given, scale = values(count), scales(count)

        def run(number: int) -> Any:
            weight, weight_scale = weights[number % copies]
            return torch._scaled_mm(given, weight, scale_a=scale, scale_b=weight_scale, out_dtype=torch.bfloat16)

        return run

    return _first_that_runs(rank, [padded(rows), padded(-(-rows // _PADDED) * _PADDED)])


def _first_that_runs(rank: Rank, candidates: Sequence[Callable[[int], Any]]) -> Callable[[int], Any]:
    said = ""
    for run in candidates:
        try:
            run(0)
            _wait(rank)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            said = str(error).strip().splitlines()[0]
        else:
            return run
    raise Unavailable(f"this build or this GPU has none: {said}")


def _wait(rank: Rank) -> None:
    if rank.cuda:
        rank.torch.cuda.synchronize(rank.device)


def time_launches(rank: Rank, run: Callable[[int], Any], count: int, samples: int = SAMPLES) -> List[float]:
    """Seconds of one launch, a sample each of which is `count` launches in a row."""
    return _on_gpu(rank, run, count, samples) if rank.cuda else _on_cpu(run, count, samples)


def _on_cpu(run: Callable[[int], Any], count: int, samples: int) -> List[float]:
    taken = []
    for sample in range(samples + 1):
        begun = time.perf_counter()
        for number in range(count):
            run(number)
        if sample:  # the first one warms up
            taken.append((time.perf_counter() - begun) / count)
    return taken


def _on_gpu(rank: Rank, run: Callable[[int], Any], count: int, samples: int) -> List[float]:
    torch = rank.torch
    with torch.cuda.stream(rank.stream):
        for number in range(3):  # handles, workspaces and heuristics are made outside of the capture
            run(number)
    torch.cuda.synchronize(rank.device)
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks CUDA from a thread of its own, which is no part of the graph.
    with torch.cuda.graph(graph, stream=rank.stream, capture_error_mode="thread_local"):
        for number in range(count):
            run(number)
    taken = []
    for sample in range(samples + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if sample > 1:
            taken.append(begin.elapsed_time(end) / 1000 / count)
    return taken


def how_many(asked: Launches, *, cuda: bool) -> int:
    """Launches for one sample: each copy as often as the others."""
    if not cuda:
        return max(1, min(asked.copies, 4))
    wanted = REPLAYED / max(asked.bytes / _ASSUMED_SPEED, 2e-6)
    count = int(min(max(wanted, _LAUNCHES[0]), _LAUNCHES[1]))
    return -(-count // asked.copies) * asked.copies if asked.copies <= count else asked.copies


def gemm_answer(rank: Rank, gemm: Dict[str, Any], kind: str) -> Dict[str, Any]:
    """Time one multiplication in one format, or say why not."""
    rank.forget()
    try:
        asked = launches(rank, gemm, kind)
        taken = time_launches(rank, asked.run, how_many(asked, cuda=rank.cuda))
    except Unavailable as missing:
        return {"samples": [], "how": "", "problem": str(missing)}
    except Exception as error:  # noqa: BLE001 - one that can't be timed takes no other with it
        return {"samples": [], "how": "", "problem": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
    return {"samples": [asked.scale * value for value in taken], "how": asked.how, "problem": None}


def gemm_answers(rank: Rank, gemms: Sequence[Dict[str, Any]]) -> Iterator[Dict[str, Any]]:
    """All multiplications in all formats. The same shape is run once, whatever it is called."""
    known: Dict[Tuple[Any, ...], Dict[str, Any]] = {}
    for index, gemm in enumerate(gemms):
        for kind in _BYTES:
            key = (kind, gemm["groups"], gemm["rows"], gemm["inputs"], gemm["outputs"])
            if key not in known:
                known[key] = gemm_answer(rank, gemm, kind)
            yield {"rank": rank.number, "gemm": index, "format": kind, **known[key]}


def all_reduce_answers(rank: Rank, asked: Sequence[Dict[str, Any]], ranks: int, store: str) -> Iterator[Dict[str, Any]]:
    """All sums over the ranks; every rank runs the same ones in the same order."""
    distributed = rank.torch.distributed
    more = {"device_id": rank.device} if rank.cuda else {}
    distributed.init_process_group(
        "nccl" if rank.cuda else "gloo", store=distributed.FileStore(store, ranks), rank=rank.number, world_size=ranks, **more
    )
    for index, item in enumerate(asked):
        message = rank.random(max(1, item["bytes"] // 2)) * 0
        try:
            taken = time_launches(rank, _summing(distributed, message), _REDUCED if rank.cuda else 5)
            yield {"rank": rank.number, "all_reduce": index, "samples": taken, "problem": None}
        except Exception as error:  # noqa: BLE001 - the others are still told
            yield {"rank": rank.number, "all_reduce": index, "samples": [], "problem": f"{type(error).__name__}: {error}"}


def _summing(distributed: Any, message: Any) -> Callable[[int], Any]:
    return lambda number: distributed.all_reduce(message)


def serve_rank(torch: Any, question: Dict[str, Any], number: int, store: str, answers: int) -> None:
    """Everything that one rank does."""
    ranks = len(question["devices"])
    if question["device"] != "cuda":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.set_grad_enabled(False)
    rank = Rank(torch, question, number)
    _write(answers, {"rank": number, "torch": str(torch.__version__), "device_name": rank.name})
    rank.wake()
    for answer in gemm_answers(rank, question["gemms"]):
        _write(answers, answer)
    rank.forget()
    if ranks > 1:
        for answer in all_reduce_answers(rank, question["all_reduces"], ranks, store):
            _write(answers, answer)


def _write(descriptor: int, answer: Dict[str, Any]) -> None:
    """A line at once: all ranks write to the same file, which is opened for appending."""
    os.write(descriptor, (json.dumps(answer) + "\n").encode())


def _fork(torch: Any, question: Dict[str, Any], number: int, store: str, answers: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    _end_with_parent()
    try:
        signal.alarm(int(question["seconds"]) + 1)  # a fork has none of its own
        serve_rank(torch, question, number, store, answers)
        status = 0
    except BaseException as error:  # noqa: BLE001 - the answer says what it was
        _write(answers, {"rank": number, "failed": f"{type(error).__name__}: {error}"})
    # Tearing PyTorch down takes a second and can hang in a driver; there is nothing to clean up.
    os._exit(status)


def answer(question: Dict[str, Any], answers: int) -> Optional[str]:
    """Run all ranks to their ends; why nothing could be run."""
    try:
        torch = importlib.import_module("torch")
        if len(question["devices"]) > 1:
            importlib.import_module("torch.distributed")
    except Exception as error:  # noqa: BLE001 - the answer says what it was
        return f"PyTorch can't be imported: {type(error).__name__}: {error}"
    # In memory, so that nothing is left on a disk whatever ends this process.
    store = os.memfd_create("ranks")
    path = f"/proc/{os.getpid()}/fd/{store}"
    children = [_fork(torch, question, number, path, answers) for number in range(len(question["devices"]))]
    _reap(set(children))
    return None


def _reap(children: Set[int]) -> None:
    """Wait for all ranks; one that fails ends the others, which would wait for it."""
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)


def _end_with_parent() -> None:
    """SIGKILL to this process when its parent ends: memory that it holds is in the way of whatever is launched next."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main() -> NoReturn:
    _end_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)
    # Ranks share the file: each line is appended whole.
    fcntl.fcntl(answers, fcntl.F_SETFL, fcntl.fcntl(answers, fcntl.F_GETFL) | os.O_APPEND)
    question = json.load(sys.stdin)
    # For a parent that had ended before it was asked for, and one that hangs.
    signal.alarm(int(question["seconds"]) + 1)
    failed = answer(question, answers)
    if failed is not None:
        _write(answers, {"rank": 0, "failed": failed})
    os._exit(0)


if __name__ == "__main__":
    main()
