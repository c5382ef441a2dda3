"""Whether a server may be staged beside the one that serves."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import cuda, gpu, host_memory, room, wire
from orchestrator.agent.footprints import Footprint, keep_footprint, newest_footprint, read_footprint
from orchestrator.agent.gpu import GpuReading
from orchestrator.agent.host_memory import GIB, HostMemory, Limit
from orchestrator.agent.room import Need, Seen
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Staged
from orchestrator.agent.wire import Outcome

TOTAL = 96 * 1024
PLENTY = HostMemory(100 * GIB, 128 * GIB)
LAUNCH = wire.Launch("new", "svc", "auto", "/py", ["--tp-size", "2", "--port", "1"], "127.0.0.1", 1)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(str(tmp_path), "svc")
    made.create()
    return made


def gpus(*free: float) -> list[wire.Gpu]:
    """With so many GiB that somebody can have."""
    used = [TOTAL - room.DRIVER_MIB - int(gib * 1024) for gib in free]
    return [wire.Gpu(index, f"GPU-{index}", "RTX PRO 6000", "12.0", memory, TOTAL) for index, memory in enumerate(used)]


def need(count: int = 2, mib: int = 1536, gib: float = 6.0) -> Need:
    return Need(int(gib * GIB), {f"GPU-{index}": mib for index in range(count)}, "as l1 took at its gate")


def judged(seen: Seen, needed: Need | None = None, **policy: Any) -> wire.Verdict:
    return room.verdict(seen, needed or need(), wire.Policy(**policy))


def staged(folder: StateFolder, launch_id: str, arguments: str = "--tp-size 2", **footprint: int) -> None:
    launch = dataclasses.replace(LAUNCH, launch_id=launch_id, arguments=arguments.split())
    folder.write_launch(launch)
    keep_footprint(folder, launch_id, Staged(launch, 18.234, {f"GPU-{name[1:]}": mib for name, mib in footprint.items()}), [os.getpid()])


def test_room_is_told_with_its_numbers() -> None:
    verdict = judged(Seen(PLENTY, gpus(4.6, 5.0), shared=GIB))
    assert verdict.outcome == Outcome.PASS
    assert "100.0 GiB of memory are available; 6.0 GiB are needed as l1 took at its gate, and 1.0 GiB for others" in verdict.detail
    assert "GPU 0 has 4.6 GiB free, 4.5 GiB are needed (1.5 GiB and 3 GiB of headroom), and that is the fullest of 2" in verdict.detail
    assert "1.0 GiB are free in /dev/shm; 256 MiB are needed" in verdict.detail


def test_a_gpu_that_is_too_full_is_named_alone() -> None:
    verdict = judged(Seen(PLENTY, gpus(9.0, 4.4), shared=GIB))
    assert verdict.outcome == Outcome.WARN
    assert verdict.detail == "GPU 1 has 4.4 GiB free, 4.5 GiB are needed (1.5 GiB and 3 GiB of headroom)"
    assert "after the stop" in str(verdict.next_step)


def test_the_headroom_is_the_services_own() -> None:
    assert judged(Seen(PLENTY, gpus(9.0, 4.4), shared=GIB), headroom=2.8).outcome == Outcome.PASS
    assert judged(Seen(PLENTY, gpus(9.0, 9.0), shared=GIB), headroom=8.0).outcome == Outcome.WARN


def test_the_containers_limit_counts() -> None:
    memory = HostMemory(100 * GIB, 128 * GIB, [Limit("/sys/fs/cgroup/memory.max", 16 * GIB, 10 * GIB)])
    verdict = judged(Seen(memory, gpus(9.0, 9.0), shared=GIB))
    assert verdict.outcome == Outcome.WARN
    assert verdict.detail.startswith("6.0 GiB of memory are free within /sys/fs/cgroup/memory.max (16.0 GiB)")
    assert judged(Seen(memory, gpus(9.0, 9.0), shared=GIB), need(gib=5.0)).outcome == Outcome.PASS


def test_all_that_is_short_is_told_at_once() -> None:
    verdict = judged(Seen(HostMemory(GIB, GIB), gpus(1.0, 9.0), shared=GIB // 8))
    assert [part in verdict.detail for part in ("of memory", "GPU 0", "/dev/shm")] == [True, True, True]


def test_whoever_can_not_tell_says_so() -> None:
    verdict = judged(Seen(PLENTY, [], "nvidia-smi did not end within 20 s", GIB))
    assert verdict.outcome == Outcome.UNKNOWN
    assert verdict.detail == "what is free on the GPUs can't be told: nvidia-smi did not end within 20 s"
    assert judged(Seen(HostMemory(None), shared=GIB)).outcome == Outcome.UNKNOWN
    assert judged(Seen(PLENTY)).outcome == Outcome.UNKNOWN
    # What is certainly short counts before what nobody knows.
    assert judged(Seen(HostMemory(GIB, GIB), [], "nvidia-smi did not end", GIB)).outcome == Outcome.WARN


def test_without_a_gpu_only_the_machine_counts() -> None:
    verdict = judged(Seen(PLENTY, shared=GIB))
    assert verdict.outcome == Outcome.PASS
    assert "GPU" not in verdict.detail


def test_what_was_measured_counts_before_the_defaults(folder: StateFolder) -> None:
    values = {"tp_size": "2"}
    default = room.needed(folder, values, gpus(9, 9))
    assert default.basis == "by default, as none was staged here yet"
    assert (default.resident, set(default.gpus.values())) == (6 * GIB, {4096})
    staged(folder, "20260101T000000", g0=1500, g1=1700)
    measured = room.needed(folder, values, gpus(9, 9, 9))
    assert measured.basis == "as 20260101T000000 took at its gate"
    assert measured.gpus == {"GPU-0": 1500, "GPU-1": 1700, "GPU-2": 1700}
    assert measured.resident > 10 << 20


def test_the_newest_footprint_of_as_many_ranks_counts(folder: StateFolder) -> None:
    staged(folder, "20260101T000000", g0=1500)
    staged(folder, "20260102T000000", g0=1600)
    staged(folder, "20260103T000000", "--tp-size 4", g0=2500)
    (folder.launch_folder("20260104T000000")).mkdir()
    (folder.launch_folder("20260104T000000") / "footprint.json").write_text('{"ranks": 2', encoding="ascii")
    assert newest_footprint(folder, 2) == ("20260102T000000", read_footprint(folder, "20260102T000000"))
    assert newest_footprint(folder, 8) is None
    kept = read_footprint(folder, "20260101T000000")
    assert kept is not None
    assert (kept.seconds, kept.gpus) == (18.23, {"GPU-0": 1500})


def test_a_footprint_without_gpus_leaves_their_default(folder: StateFolder) -> None:
    """The driver in a container may not say whose memory it is."""
    staged(folder, "20260101T000000")
    assert set(room.needed(folder, {"tp_size": "2"}, gpus(9, 9)).gpus.values()) == {4096}
    assert Footprint(1, 0, 1.0).of("GPU-0") is None


def test_a_single_rank_and_a_server_on_cpu_take_less(folder: StateFolder) -> None:
    assert room.needed(folder, {}, gpus(9)).gpus == {"GPU-0": 1024}
    assert room.needed(folder, {"device": "cpu"}, []).resident == 2 * GIB


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "read", lambda *_: PLENTY)
    monkeypatch.setattr(room, "_free_shared", lambda: GIB)


Asked = Callable[..., wire.Verdict]


@pytest.fixture
def ask(folder: StateFolder, plenty: None) -> Asked:
    def asked(arguments: str = "--tp-size 2", **given: Any) -> wire.Verdict:
        return room.judge(dataclasses.replace(LAUNCH, arguments=arguments.split()), folder, wire.Policy(), **given)

    return asked


def test_only_the_gpus_that_the_ranks_take_count(ask: Asked) -> None:
    full = GpuReading(gpus(9, 1, 9, 9))
    assert ask(reading=full).outcome == Outcome.WARN
    assert ask("--tp 2 --base-gpu-id 2", reading=full).outcome == Outcome.PASS
    assert ask(reading=full, environment={"CUDA_VISIBLE_DEVICES": "0,2"}).outcome == Outcome.PASS
    assert ask("--tp 1", reading=full).outcome == Outcome.PASS
    assert ask("--tp 2 --device cpu", reading=full).outcome == Outcome.PASS
    verdict = ask("--tp 8", reading=GpuReading(gpus(9, 9)))
    assert (verdict.outcome, "8 are wanted, and nvidia-smi lists 2" in verdict.detail) == (Outcome.UNKNOWN, True)


def test_a_driver_that_does_not_answer_is_told(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ask_gpus", lambda: GpuReading([], "nvidia-smi: No such file or directory"))
    monkeypatch.setattr(cuda, "device_nodes", lambda: ["/dev/nvidia0"])
    verdict = ask()
    assert (verdict.outcome, "nvidia-smi: No such file" in verdict.detail) == (Outcome.UNKNOWN, True)
    monkeypatch.setattr(cuda, "device_nodes", list)
    assert ask().outcome == Outcome.PASS


def test_an_error_of_our_own_stages_nothing(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(room, "needed", broken)
    assert ask(reading=GpuReading([])).outcome == Outcome.UNKNOWN


def test_this_machine_is_looked_at(folder: StateFolder) -> None:
    verdict = room.judge(dataclasses.replace(LAUNCH, arguments=["--device", "cpu"]), folder, wire.Policy())
    assert verdict.outcome in (Outcome.PASS, Outcome.WARN)
    assert "of memory are" in verdict.detail
