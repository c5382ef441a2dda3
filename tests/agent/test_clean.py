"""The gate before the next start. GPUs are a stand-in nvidia-smi on PATH; everything else is real."""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent import gpu, wire
from orchestrator.agent.clean import Claims, GpuClaim, check_clean, take_stock
from orchestrator.agent.command import run_bounded
from orchestrator.agent.stopping import stop_server
from orchestrator.agent.wire import Outcome
from tests.agent.box import Box
from tests.rig.network import free_port

POLICY = wire.Policy(drain=1.0, grace=10.0, clean=1.0)
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def ignore(_phase: str, _detail: str) -> None:
    pass


def outcomes(verdicts: list[wire.Verdict]) -> dict[str, str]:
    return {verdict.check: verdict.outcome for verdict in verdicts}


@pytest.fixture
def shared_file() -> Iterator[str]:
    path = f"/dev/shm/orchestrator-test-{os.getpid()}-{time.monotonic_ns()}"
    yield path
    for left in (path, path + "-filler"):
        Path(left).unlink(missing_ok=True)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that prints the file `gpus` or `apps` beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in *query-gpu*) cat {folder}/gpus;; *) cat {folder}/apps;; esac\n')
    program.chmod(0o755)
    (folder / "apps").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def set_memory(folder: Path, used: int) -> None:
    (folder / "gpus").write_text(f"0, {UUID}, NVIDIA RTX PRO 6000, 12.0, {used}, 97887\n")


def test_stopped_server_leaves_a_clean_box(box: Box, shared_file: str) -> None:
    server = box.serve(free_port(), shared_memory=shared_file)
    claims = take_stock(server)
    assert shared_file in claims.shared_memory
    stop_server(server, POLICY, ignore)
    verdicts = check_clean(claims, POLICY, ignore)
    assert outcomes(verdicts) == {"processes": Outcome.PASS, "port": Outcome.PASS, "shared_memory": Outcome.PASS}
    assert not Path(shared_file).exists()
    assert f"rm {shared_file}" in verdicts[-1].evidence


def test_shared_memory_that_somebody_maps_stays(box: Box, shared_file: str) -> None:
    server = box.serve(free_port(), shared_memory=shared_file)
    claims = take_stock(server)
    with open(shared_file, "r+b") as stream, mmap.mmap(stream.fileno(), 4096):
        stop_server(server, POLICY, ignore)
        verdict = check_clean(claims, POLICY, ignore)[-1]
        assert Path(shared_file).exists()
        assert f"in use by process {os.getpid()}" in verdict.evidence[0]


def test_shared_memory_made_anew_under_the_same_name_stays(shared_file: str, box: Box) -> None:
    server = box.serve(free_port(), shared_memory=shared_file)
    claims = take_stock(server)
    stop_server(server, POLICY, ignore)
    Path(shared_file).unlink()
    Path(shared_file + "-filler").touch()  # takes the inode number that has just come free
    Path(shared_file).write_text("somebody else's")
    check_clean(claims, POLICY, ignore)
    assert Path(shared_file).exists()


@pytest.mark.slow
def test_running_server_is_not_clean(box: Box) -> None:
    server = box.serve(free_port())
    verdicts = check_clean(take_stock(server), wire.Policy(clean=0.3), ignore)
    assert outcomes(verdicts)["processes"] == outcomes(verdicts)["port"] == Outcome.REFUSE
    assert any(str(server.main.pid) in line for line in verdicts[0].evidence)


def test_port_held_by_a_stranger_is_refused_with_its_name() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        (verdict,) = check_clean(Claims(listener.getsockname()[1]), wire.Policy(clean=0.2), ignore)
    assert verdict.outcome == Outcome.REFUSE
    assert str(os.getpid()) in verdict.evidence[0]


@pytest.mark.parametrize(
    ("share", "used", "outcome"),
    [
        (60_000, 20_000, Outcome.PASS),
        (60_000, 20_500, Outcome.PASS),
        (60_000, 21_000, Outcome.REFUSE),
        (None, 400, Outcome.PASS),
        (None, 80_000, Outcome.REFUSE),
    ],
    ids=["others' part is left", "within the tolerance", "held", "share unknown, card empty", "share unknown, nothing came back"],
)
def test_gpu_memory_is_waited_for(nvidia_smi: Path, share: int | None, used: int, outcome: str) -> None:
    set_memory(nvidia_smi, used)
    claims = Claims(free_port(), gpus={UUID: GpuClaim(0, 80_000, share)})
    verdicts = check_clean(claims, wire.Policy(clean=0.5), ignore)
    assert outcomes(verdicts)["gpu_memory"] == outcome


@pytest.mark.slow
def test_gpu_memory_of_unknown_others_is_a_warning_once_it_has_settled(nvidia_smi: Path) -> None:
    set_memory(nvidia_smi, 20_000)
    claims = Claims(free_port(), gpus={UUID: GpuClaim(0, 80_000, None)})
    verdict = check_clean(claims, wire.Policy(clean=20), ignore)[-1]
    assert verdict.outcome == Outcome.WARN
    assert "GPU 0: 20000 MiB" in verdict.detail


def test_gpu_that_the_driver_lost_is_refused(nvidia_smi: Path) -> None:
    (nvidia_smi / "gpus").write_text("Unable to determine the device handle for GPU0: Unknown Error\n")
    claims = Claims(free_port(), gpus={UUID: GpuClaim(0, 80_000, 60_000)})
    assert check_clean(claims, wire.Policy(clean=0.3), ignore)[-1].outcome == Outcome.REFUSE


def test_missing_nvidia_smi_means_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.read_gpus() == []
    assert gpu.compute_apps() == []


def test_hung_nvidia_smi_is_left_behind(nvidia_smi: Path) -> None:
    (nvidia_smi / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 300\n")
    began = time.monotonic()
    assert gpu.read_gpus(seconds=0.3) == []
    assert time.monotonic() - began < 2


def test_bounded_command_passes_input_and_says_what_is_missing() -> None:
    assert run_bounded(["cat"], 5, given=b"hello").text == "hello"
    missing = run_bounded(["/no/such/program"], 5)
    assert missing.status is None
    assert "No such file" in missing.errors
