"""Bringing a lab up and down: repeatable, safe after crashes, and nothing is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.config import load_inventory
from orchestrator.errors import UsageError
from orchestrator.lab import control
from orchestrator.lab.layout import GPU_COUNT, Layout
from orchestrator.lab.processes import kill, members, server_pid, start_time


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "lab"
    yield folder
    control.down(folder)


def test_up_is_repeatable_and_down_leaves_nothing(directory: Path) -> None:
    first = control.up(directory)
    assert first.is_up
    assert control.up(directory) == first
    assert control.status(directory) == first
    assert directory.stat().st_mode & 0o777 == 0o700
    assert start_time(first.ssh_pid or 0) != 0
    after = control.down(directory)
    assert not after.is_up
    assert control.describe(after) == f"lab in {directory}: stopped and removed"
    assert not directory.exists()
    assert start_time(first.ssh_pid or 0) == 0
    assert control.describe(control.down(directory)) == f"no lab in {directory}"
    assert not control.status(directory).hosts


def test_its_inventory_loads_and_leads_to_the_hosts(directory: Path) -> None:
    info = control.up(directory)
    inventory = load_inventory(info.inventory)
    for host in info.hosts:
        service = inventory.service(None, host.name)
        place = inventory.place_of(service)
        assert (place.address, place.port, place.agent, place.gpus) == ("127.0.0.1", host.ssh_port, False, GPU_COUNT)
        assert service.port == host.sglang_port
        assert Path(service.python).exists()
        assert Path(service.model, "config.json").exists()
    assert "flashinfer_cutedsl" in inventory.backends


def test_its_python_has_the_stand_in_even_when_isolated(directory: Path) -> None:
    info = control.up(directory)
    code = (
        "import ctypes, importlib.metadata, sglang; cuda = ctypes.CDLL('libcuda.so.1'); count = ctypes.c_int();"
        "print(importlib.metadata.version('sglang'), cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)"
    )
    python = Layout.of(directory).python(info.hosts[0].name)
    done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5.23", "0", "0", str(GPU_COUNT)]


def test_servers_started_by_hand_end_with_the_lab_however_it_crashed(directory: Path) -> None:
    info = control.up(directory, start_servers=True)
    assert all(host.sglang_pid for host in info.hosts)
    layout = Layout.of(directory)
    titles = [process.title for process in members(layout)]
    assert sum(title.startswith("sglang::scheduler_TP") for title in titles) == 2 * GPU_COUNT
    smi = subprocess.run([layout.host(info.hosts[0].name) / "bin" / "nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    assert len(smi.stdout.splitlines()) == GPU_COUNT

    kill(info.ssh_pid or 0, start_time(info.ssh_pid or 0))
    assert wait_until(lambda: server_pid(layout) is None, Deadline(10))
    again = control.up(directory)
    assert again.is_up
    assert [host.ssh_port for host in again.hosts] == [host.ssh_port for host in info.hosts]
    assert [host.sglang_pid for host in again.hosts] == [host.sglang_pid for host in info.hosts]

    kill(again.ssh_pid or 0, start_time(again.ssh_pid or 0), signal.SIGKILL)
    running = [(process.pid, process.start_time) for process in members(layout)]
    control.down(directory)
    assert [pid for pid, started in running if start_time(pid) == started] == []
    assert not directory.exists()


def test_a_folder_of_somebody_is_neither_written_nor_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine", encoding="utf-8")
    for action in (control.up, control.down):
        with pytest.raises(UsageError, match="not empty and not a lab's"):
            action(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious.txt"]


def test_files_beside_the_labs_own_survive_it(directory: Path) -> None:
    control.up(directory)
    (directory / "notes.txt").write_text("mine", encoding="utf-8")
    control.down(directory)
    assert [entry.name for entry in directory.iterdir()] == ["notes.txt"]
    (directory / "notes.txt").unlink()
    directory.rmdir()


def test_a_process_that_merely_names_the_lab_is_spared(directory: Path) -> None:
    control.up(directory)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"reading {directory}/hosts/lab-b200"])
    try:
        assert bystander.pid not in {process.pid for process in members(Layout.of(directory))}
        control.down(directory)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
