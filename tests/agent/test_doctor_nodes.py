"""Real device nodes, opened as another user, and the snapshot that a diagnosis takes of them."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline
from orchestrator.agent.doctor_context import Commands, Context, device_nodes
from orchestrator.agent.doctor_nodes import Fault, faults, open_nodes
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.wire_host import DoctorRequest

PYTHON = "/usr/bin/python3"
"""One that any user may run."""
CONTROL, UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"


@pytest.fixture
def root() -> Iterator[Path]:
    """A tree that any user may enter; pytest's own folders are closed to others."""
    if os.geteuid() != 0 or not os.path.exists(PYTHON):
        pytest.skip(f"root and {PYTHON} are needed")
    with tempfile.TemporaryDirectory(prefix="orchestrator-nodes-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "dev" / "nvidia-caps").mkdir(parents=True)
        (Path(folder) / "proc").mkdir()
        yield Path(folder)


def make(root: Path, path: str, minor: int, mode: int = 0o666) -> None:
    """A node of the kernel's memory devices: 3 is /dev/null, 255 nothing."""
    try:
        os.mknod(root / path[1:], stat.S_IFCHR | mode, os.makedev(1, minor))
        os.chmod(root / path[1:], mode)
        os.close(os.open(root / path[1:], os.O_RDWR))
    except OSError as error:
        if error.errno != errno.ENXIO:
            pytest.skip(f"no device node can be made and used here: {error.strerror}")


def context_of(root: Path, user: str | None) -> Context:
    files = KernelFiles(str(root))
    commands = Commands(ServicePython(PYTHON, {}, user), Deadline(30.0))
    request = DoctorRequest("container", str(root), service="svc", user=user, expected_gpus=2)
    return Context(request, files, "lxc", [], device_nodes(files), commands, Deadline(30.0))


def test_nodes_are_opened_as_the_servers_user(root: Path) -> None:
    # The node's own minor must be the kernel's, so these stand for GPUs: /dev/null is 1:3, and nothing answers to 1:200.
    (root / "proc" / "devices").write_text("Character devices:\n  1 nvidia\n")
    make(root, "/dev/nvidia3", 3)
    make(root, "/dev/nvidia5", 5, 0o600)
    make(root, "/dev/nvidia200", 200)
    context = context_of(root, "nobody")
    opened = open_nodes(context)
    assert opened.problem is None
    assert opened.numbers == {"/dev/nvidia3": 0, "/dev/nvidia5": errno.EACCES, "/dev/nvidia200": errno.ENXIO}
    found = {fault.path: fault for fault in faults(context)}
    assert {path: fault.kind for path, fault in found.items()} == {
        CONTROL: Fault.MISSING,
        UVM: Fault.MISSING,
        "/dev/nvidia5": Fault.DENIED,
        "/dev/nvidia200": Fault.FAILS,
    }
    assert "as nobody: Permission denied (its mode crw-------" in found["/dev/nvidia5"].detail
    assert open_nodes(context_of(root, None)).numbers["/dev/nvidia5"] != errno.EACCES


def test_a_node_of_another_number_is_not_opened(root: Path) -> None:
    (root / "proc" / "devices").write_text("Character devices:\n195 nvidia\n238 nvidia-uvm\n")
    make(root, CONTROL, 3)
    context = context_of(root, None)
    assert open_nodes(context).numbers == {}
    assert faults(context)[0].detail == "it has number 1:3, the kernel's is 195:255: it is of an earlier boot or kernel"


def test_what_lies_in_dev_is_told_apart(root: Path) -> None:
    make(root, CONTROL, 3)
    (root / "dev" / "nvidia-uvm").touch()
    (root / "dev" / "nvidia0").symlink_to("nowhere")
    nodes = device_nodes(KernelFiles(str(root)))
    assert nodes[CONTROL].device == (1, 3)
    assert nodes[UVM].empty_file
    assert set(nodes) == {CONTROL, UVM, "/dev/nvidia-caps"}
