"""MaxReadReq in a GPU's configuration space: what is written, what is never written, and what can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.agent import pci
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, TuneRequest

ADDRESS = "0000:41:00.0"
OTHER = "0000:42:00.0"
READ_REQUEST = 0x7000
RESET = 0x8000


def write_gpu(root: Path, config: bytes, address: str = ADDRESS) -> Path:
    folder = root / f"sys/bus/pci/devices/{address}"
    folder.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030200")):
        (folder / name).write_text(text + "\n")
    (folder / "config").write_bytes(config)
    return folder / "config"


def space(word: int = 0x2930, at: int = 0x60, length: int = 4096) -> bytes:
    """A configuration space whose PCI Express capability lies at `at`, behind power management's."""
    content = bytearray(4096)
    content[0:4] = b"\xde\x10\xb1\x2b"
    content[0x34] = 0x40
    content[0x40:0x42] = bytes([0x01, at])
    content[at : at + 2] = bytes([pci.CAPABILITY_EXPRESS, 0])
    content[at + 8 : at + 10] = word.to_bytes(2, "little")
    return bytes(content[:length])


def tune(root: Path, value: str | None = "4096", *, write: bool = True, container: str | None = None) -> KnobResult:
    request = TuneRequest("profile", [KnobSetting("pcie_max_read_request", value=value)], write=write, state_root=str(root / "state"))
    (result,) = apply(request, KernelFiles(str(root)), Standpoint(container, True)).results
    return result


@given(st.integers(0, 0xFFFF), st.sampled_from(pci.MAX_READ_REQUESTS))
def test_no_other_bit_is_ever_touched(word: int, size: int) -> None:
    made = pci.with_read_request(word, size)
    assert made & ~READ_REQUEST == word & ~READ_REQUEST & ~RESET
    assert not made & RESET
    assert pci.max_read_request(pci.ConfigSpace(space(made))) == size


@settings(deadline=None)
@given(word=st.integers(0, 0x7FFF), at=st.sampled_from(range(0x44, 0xF4, 4)), size=st.sampled_from(pci.MAX_READ_REQUESTS))
def test_two_bytes_are_written_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, word: int, at: int, size: int) -> None:
    root = tmp_path_factory.mktemp("machine")
    config = write_gpu(root, space(word, at))
    pci.set_max_read_request(KernelFiles(str(root)), ADDRESS, size)
    assert config.read_bytes() == space(pci.with_read_request(word, size), at)


def test_device_that_is_gone(tmp_path: Path) -> None:
    config = write_gpu(tmp_path, b"\xff" * 4096)
    write_gpu(tmp_path, space(), OTHER)
    result = tune(tmp_path)
    assert result.outcome == KnobOutcome.UNKNOWN, "nobody can say of all GPUs"
    assert (result.before, result.after) == ({OTHER: "512"}, {OTHER: "4096"})
    assert f"{ADDRESS}: could not be read: it reads as all ones: the device has fallen off the bus" in result.detail
    assert config.read_bytes() == b"\xff" * 4096


def test_register_that_reads_as_all_ones_is_not_16384_bytes(tmp_path: Path) -> None:
    config = write_gpu(tmp_path, space(0xFFFF))
    result = tune(tmp_path)
    assert (result.outcome, result.before) == (KnobOutcome.UNKNOWN, {})
    assert "fallen off the bus" in result.detail
    with pytest.raises(pci.ConfigError, match="fallen off"):
        pci.set_max_read_request(KernelFiles(str(tmp_path)), ADDRESS, 4096)
    assert config.read_bytes() == space(0xFFFF)


def test_cut_space_does_not_mean_that_there_is_no_capability(tmp_path: Path) -> None:
    write_gpu(tmp_path, space(length=64))
    result = tune(tmp_path, container="lxc")
    assert (result.outcome, result.before) == (KnobOutcome.UNKNOWN, {})
    assert "only its first 64 bytes could be read, as by anybody who is not root of the host" in result.detail
    assert "no PCI Express capability" not in result.detail
    assert result.commands == [f"setpci -s {ADDRESS} CAP_EXP+8.w=5000:7000"]


def test_privileged_container_reads_and_never_writes(tmp_path: Path) -> None:
    config = write_gpu(tmp_path, space())
    result = tune(tmp_path, container="lxc")
    assert (result.outcome, result.before) == (KnobOutcome.NOT_SETTABLE, {ADDRESS: "512"})
    assert config.read_bytes() == space()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (space()[:0x34] + b"\0" + space()[0x35:], "it has no PCI Express capability"),
        (space()[:0x40] + b"\x01\x40" + space()[0x42:], "it has no PCI Express capability"),  # a list that goes round in a circle
        (space(0x6930), "bits 14:12 of Device Control hold 6, which is reserved"),
        (b"", "only its first 64 bytes"),
    ],
    ids=["no list", "a circle", "reserved", "empty"],
)
def test_odd_space(tmp_path: Path, content: bytes, problem: str) -> None:
    config = write_gpu(tmp_path, content)
    result = tune(tmp_path)
    assert result.outcome == KnobOutcome.UNKNOWN
    assert problem in result.detail
    assert config.read_bytes() == content


def test_only_function_0_of_gpus(tmp_path: Path) -> None:
    write_gpu(tmp_path, space())
    for address, vendor, kind in (("0000:41:00.1", "0x10de", "0x040300"), ("0000:05:00.0", "0x8086", "0x030000")):
        write_gpu(tmp_path, space(), address)
        folder = tmp_path / f"sys/bus/pci/devices/{address}"
        (folder / "vendor").write_text(vendor)
        (folder / "class").write_text(kind)
    assert tune(tmp_path, None).before == {ADDRESS: "512"}
