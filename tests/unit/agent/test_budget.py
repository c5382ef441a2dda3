"""What goes before and after the timing of a step's parts; the timing itself is run on the real PyTorch in tests/sglang."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from orchestrator.agent import budget as verb
from orchestrator.agent import budget_program, sglang, wire
from orchestrator.agent.budget import OthersWatch, budget, gpus_with_room, read_report, refuse_beside_order
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.gpu import GpuReading
from orchestrator.agent.http import Client, TimedOutError
from orchestrator.agent.journal import Journal, ServiceLock
from orchestrator.agent.locks import GpuLocks
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import MARKER
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_budget import AllReduce, BudgetRequest, Gemm

GEMM = Gemm("o_proj", 1, 1, 64, 128)
GIGABYTE = 1024


def request(root: Path, **more: Any) -> BudgetRequest:
    return BudgetRequest("tiny", str(root), 1, sys.executable, **{"gemms": [GEMM], "all_reduces": [AllReduce(1, 128, 3)], **more})


def gpus(*free: int) -> GpuReading:
    total = 100 * GIGABYTE
    return GpuReading([wire.Gpu(index, f"GPU-{index}", "NVIDIA H200", "9.0", total - left, total) for index, left in enumerate(free)])


def line(rank: int, samples: list[float], **more: Any) -> dict[str, Any]:
    return {"rank": rank, "samples": samples, "problem": None, "how": "", **more}


def test_a_multiplication_takes_what_the_slowest_rank_needs_and_a_sum_what_the_last_one_sees(tmp_path: Path) -> None:
    lines = [
        {"rank": 0, "torch": "2.9.1", "device_name": "NVIDIA H200"},
        {"rank": 1, "torch": "2.9.1", "device_name": "NVIDIA H200"},
        line(0, [1.0, 2.0, 3.0], gemm=0, format="BF16"),
        line(1, [4.0, 5.0, 9.0], gemm=0, format="BF16", how="1/2 of it"),
        line(0, [7.0, 8.0, 9.0], all_reduce=0),
        line(1, [5.0, 6.0, 7.0], all_reduce=0),
    ]

    found = read_report(request(tmp_path), lines)

    (gemm,), (summed,) = found.gemms, found.all_reduces
    assert (gemm.seconds, gemm.low, gemm.high, gemm.samples, gemm.how) == (5.0, 4.0, 9.0, 3, "1/2 of it")
    assert (summed.seconds, summed.low, summed.high) == (6.0, 5.0, 7.0)
    assert (found.torch, found.device_name, found.remarks) == ("2.9.1", "NVIDIA H200", [])


def test_what_has_no_time_says_why(tmp_path: Path) -> None:
    lines = [line(0, [], gemm=0, format="FP8", problem="this build has none"), {"rank": 0, "failed": "killed"}]

    found = read_report(request(tmp_path), lines)

    assert [(item.format, item.seconds, item.problem) for item in found.gemms] == [("FP8", None, "this build has none")]
    assert [item.problem for item in found.all_reduces] == ["no rank has timed it"]


@pytest.mark.parametrize(
    ("free", "devices", "environment", "says"),
    [
        ([10, 1], [0, 1], {}, "GPU 1 has 1024 MiB free, 3072 MiB are needed: 2048 MiB for the timing, 1024 MiB left to the server"),
        ([10, 2.9], [0, 1], {}, "GPU 1 has 2969 MiB free, 3072 MiB are needed"),
        ([10, 1], [0], {"CUDA_VISIBLE_DEVICES": "1"}, "GPU 1 has 1024 MiB free"),
        ([10, 10], [0, 1], {"CUDA_VISIBLE_DEVICES": "0"}, "2 GPUs are needed, the server's environment shows 1"),
        ([], [0], {}, "nvidia-smi shows no GPU"),
    ],
)
def test_a_gpu_without_room_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: list[float], devices: list[int], environment: dict[str, str], says: str
) -> None:
    monkeypatch.setattr(verb, "ask_gpus", lambda: gpus(*(int(value * GIGABYTE) for value in free)))

    with pytest.raises(AgentRefusal, match=says):
        gpus_with_room(request(tmp_path, devices=devices), environment, beside_server=True)


def test_a_gpu_with_room_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ask_gpus", lambda: gpus(3 * GIGABYTE, 0))

    assert [gpu.index for gpu in gpus_with_room(request(tmp_path), {}, beside_server=True)] == [0]


def test_without_a_server_nothing_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "ask_gpus", lambda: gpus(2 * GIGABYTE))

    gpus_with_room(request(tmp_path), {}, beside_server=False)
    monkeypatch.setattr(verb, "ask_gpus", lambda: gpus(2 * GIGABYTE - 1))
    with pytest.raises(AgentRefusal, match=r"GPU 0 has 2047 MiB free, 2048 MiB are needed$"):
        gpus_with_room(request(tmp_path), {}, beside_server=False)


def order(root: Path, service: str = "tiny") -> wire.Order:
    return wire.Order("O1", "relaunch", service, str(root), 1, wire.Policy(), "kim@laptop")


@contextmanager
def at_work(root: Path) -> Iterator[None]:
    """An order on the service, held by this process as its supervisor would."""
    folder = StateFolder(str(root), "tiny")
    folder.create()
    lock = ServiceLock(folder)
    assert lock.take("O1")
    at = folder.order_folder("O1")
    at.mkdir(parents=True)
    write_private(at / "order.json", json.dumps(wire.to_json(order(root))))
    with closing(Journal(at)) as journal:
        journal.state(wire.State.LOCKED, "the lock is ours")
    try:
        yield
    finally:
        lock.release()


def test_nothing_is_timed_beside_an_order(tmp_path: Path) -> None:
    with at_work(tmp_path), pytest.raises(AgentRefusal, match="order O1 is at work on tiny: relaunch by kim@laptop") as refused:
        budget(request(tmp_path, device="cpu"), lambda kind, data: None)

    assert (refused.value.failure.category, refused.value.failure.next_step) == ("locked", "fab attach")


def test_nothing_is_timed_on_a_gpu_that_another_services_order_holds(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "tiny")
    folder.create()
    locks = GpuLocks(str(tmp_path))
    assert locks.take(order(tmp_path, "other"), ["GPU-3"]) is None

    refuse_beside_order(folder, {"GPU-0": 0})
    with pytest.raises(AgentRefusal, match="order O1 of other holds GPU 3"):
        refuse_beside_order(folder, {"GPU-3": 3})
    locks.release()
    refuse_beside_order(folder, {"GPU-3": 3})


def test_an_order_that_begins_meanwhile_ends_the_timing(tmp_path: Path) -> None:
    python, began = tmp_path / "python", tmp_path / "began"
    python.write_text(f"#!/bin/sh\necho $$ > {began}.part; mv {began}.part {began}; exec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    asked = BudgetRequest("tiny", str(tmp_path), 1, str(python), gemms=[GEMM], device="cpu", seconds=60.0)
    holding = ExitStack()

    def begin() -> None:
        if wait_until(began.exists, Deadline(20.0)):
            holding.enter_context(at_work(tmp_path))

    starter = threading.Thread(target=begin)
    starter.start()
    with holding, pytest.raises(AgentRefusal, match="order O1 is at work on tiny"):
        budget(asked, lambda kind, data: None)
    starter.join()

    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text(encoding="utf-8")), 0)


def test_a_python_without_pytorch_is_a_refusal_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(AgentRefusal, match="PyTorch can't be imported") as refused:
        budget(request(tmp_path, device="cpu", seconds=60.0), lambda kind, data: None)

    assert refused.value.failure.category == "refused"


def test_what_does_not_end_in_time_is_ended_and_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    asked = BudgetRequest("tiny", str(tmp_path), 1, str(python), gemms=[GEMM], device="cpu", seconds=0.2)

    with pytest.raises(AgentRefusal, match=r"did not answer within 0\.2 s and was killed"):
        budget(asked, lambda kind, data: None)


def test_requests_that_come_meanwhile_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0, 3, 1])
    monkeypatch.setattr(sglang, "running_and_queued", lambda client, seconds: next(loads, 0))
    with OthersWatch(Client(1), every=0.001) as watch:
        while next(iter([watch.seen])) == []:
            pass

    assert watch.seen == ["the server had 3 requests meanwhile"]


def test_a_server_that_goes_away_meanwhile_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(client: Client, seconds: float) -> int:
        raise TimedOutError("gone")

    monkeypatch.setattr(sglang, "running_and_queued", ask)
    with OthersWatch(Client(1), every=0.001) as watch:
        pass
    assert watch.seen == []


class NoTorch:
    """A rank whose memory is counted and never taken."""

    cuda = True
    memory = 1 << 30

    def __init__(self, cache: int) -> None:
        self._cache = cache
        self.made: list[tuple[int, ...]] = []
        self.torch = SimpleNamespace()

    def cold_bytes(self) -> int:
        return self._cache

    def random(self, *shape: int) -> Any:
        self.made.append(shape)
        return SimpleNamespace(t=lambda: None, transpose=lambda one, two: None)

    def empty(self, *shape: int) -> None:
        return None


def asked_of(rank: Any, **gemm: int) -> budget_program.Launches:
    return budget_program.launches(rank, {"groups": 1, "rows": 1, "inputs": 4096, "outputs": 4096, **gemm}, "BF16")


def test_weights_take_turns_until_the_cache_can_hold_none_of_them() -> None:
    rank = NoTorch(cache=200 << 20)
    found = asked_of(rank)

    assert (found.copies, found.scale, found.how) == (7, 1.0, "")  # 7 x 32 MiB are more than 200 MiB
    assert len(rank.made) == 1 + 7
    assert budget_program.how_many(found, cuda=True) % 7 == 0
    assert asked_of(NoTorch(cache=200 << 20), outputs=131072).copies == 1


def test_what_the_memory_can_not_hold_is_run_in_part_and_counted_whole() -> None:
    rank = NoTorch(cache=200 << 20)
    found = asked_of(rank, outputs=4 * 131072)

    assert found.scale == pytest.approx(4.0)
    assert found.how == "1/4 of it was run, as no more memory is taken"
    assert max(shape[0] * shape[1] * 2 for shape in rank.made) <= rank.memory


def test_a_group_that_the_memory_can_not_hold_is_run_with_fewer() -> None:
    found = asked_of(NoTorch(cache=200 << 20), groups=100)

    assert found.scale == pytest.approx(4.0)


def test_everything_is_captured_on_one_stream_as_each_costs_a_workspace_for_good() -> None:
    mocked_torch = MagicMock()
    mocked_torch.cuda.get_device_properties.return_value.total_memory = 141 << 30
    mocked_torch.cuda.Event.return_value.elapsed_time.return_value = 1.0
    rank = budget_program.Rank(mocked_torch, {"device": "cuda", "memory": 1 << 30, "devices": [0]}, 0)

    for _ in range(3):
        assert budget_program.time_launches(rank, lambda number: None, 2, samples=1) == [1.0 / 1000 / 2]

    assert mocked_torch.cuda.Stream.call_count == 1


def test_it_runs_as_the_server_would_without_what_marks_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(str(tmp_path), "tiny")
    folder.create()
    environment = {MARKER: "L", "NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "3"}
    folder.write_launch(wire.Launch("L", "tiny", "auto", "/opt/py", [], "127.0.0.1", 1, user="sglang", environment=environment))
    server: Any = SimpleNamespace(launch_id="L", listening=True, main=SimpleNamespace(pid=1, id=1, arguments=()))
    ran: list[ServicePython] = []

    def run(python: ServicePython, asked: BudgetRequest, stop: Callable[[], bool]) -> tuple[list[Any], None]:
        ran.append(python)
        return [], None

    monkeypatch.setattr(verb, "find_server", lambda port: server)
    monkeypatch.setattr(verb, "_refuse_busy", lambda client: [])
    monkeypatch.setattr(verb, "_run", run)
    monkeypatch.setattr(verb, "address_of", lambda server: "127.0.0.1")
    monkeypatch.setattr(sglang, "running_and_queued", lambda client, seconds: 0)

    budget(request(tmp_path, device="cpu"), lambda kind, data: None)

    (python,) = ran
    assert (python.path, python.user) == ("/opt/py", "sglang")
    assert python.environment == {"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "3"}
