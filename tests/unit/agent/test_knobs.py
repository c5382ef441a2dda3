"""Every knob: read, compared, written, read back, and put back. The cases are in data/knobs.yml."""

from __future__ import annotations

import errno
import fnmatch
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.kernel_files import KernelFiles, Reading
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.knobs import KNOBS, UnsuitableError, make_knob, same_words, shell_word
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, TuneAction, TuneRequest
from tests.rig.knob_tree import KnobTree
from tests.rig.pci_tree import DEVICE_CONTROL

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data/knobs.yml").read_text())
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class StubbornFiles(KernelFiles):
    """Files some of which refuse a write or a read, with an errno, and some of which take a write and keep their value."""

    def __init__(self, root: str, refuses: dict[str, str], unreadable: dict[str, str], ignores: list[str]) -> None:
        super().__init__(root)
        self._refuses, self._unreadable, self._ignores = refuses, unreadable, ignores

    def read(self, path: str) -> Reading:
        name = self._unreadable.get(path)
        return Reading(None, path, name, getattr(errno, name)) if name else super().read(path)

    def write(self, path: str, value: str) -> None:
        for pattern, name in self._refuses.items():
            if fnmatch.fnmatch(path, pattern):
                number = getattr(errno, name)
                raise OSError(number, {"EROFS": "Read-only file system"}.get(name, name), path)
        if path not in self._ignores:
            super().write(path, value)


class Trial:
    """A machine and one knob of it."""

    def __init__(self, case: dict[str, Any], folder: Path) -> None:
        self.case = case
        self.tree = KnobTree(folder / "machine")
        for path, text in case.get("put", {}).items():
            self.tree.put(path, text)
        for path in case.get("remove", []):
            self.tree.remove(path)
        self.files = StubbornFiles(str(self.tree.folder), case.get("refuses", {}), case.get("unreadable", {}), case.get("ignores", []))
        where = case.get("where", {})
        self.where = Standpoint(where.get("container"), where.get("root", True))
        self.setting = KnobSetting(**case["knob"])
        self.state_root = folder / "state"

    def tune(self, *, write: bool, action: str = TuneAction.APPLY) -> KnobResult:
        request = TuneRequest("profile", [self.setting], action, write, state_root=str(self.state_root), operator="test")
        (result,) = apply(request, self.files, self.where).results
        return result


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The machine after a boot, made once and then copied, with and without PCI functions, which are many files."""
    folder = tmp_path_factory.mktemp("pristine")
    for name in ("with PCI", "without"):
        KnobTree.write(folder / name).put(BOOT_ID, "first-boot")
    for unneeded in ("sys/bus", "usr"):
        shutil.rmtree(folder / "without" / unneeded)
    for bridge in (folder / "without/sys/devices").glob("pci*"):
        shutil.rmtree(bridge)
    return {name: folder / name for name in ("with PCI", "without")}


@pytest.fixture(params=CASES, ids=[case["case"] for case in CASES])
def trial(request: pytest.FixtureRequest, pristine: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    needed = "with PCI" if request.param["knob"]["kind"].startswith("pcie") else "without"
    shutil.copytree(pristine[needed], tmp_path / "machine", symlinks=True)
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    return Trial(request.param, tmp_path)


def test_knob(trial: Trial) -> None:
    booted, contents = trial.tree.fingerprint(), trial.tree.contents()
    planned = trial.tune(write=False)
    assert trial.tree.fingerprint() == booted
    assert not trial.state_root.exists()

    applied = trial.tune(write=True)
    _check_applied(trial, applied)
    assert {path: trial.tree.fingerprint()[path] for path in trial.case.get("untouched", [])}.items() <= booted.items()
    _check_planned(trial, planned, applied)
    if applied.outcome == KnobOutcome.FAILED or applied.before == applied.after:
        return

    fingerprint = trial.tree.fingerprint()
    again = trial.tune(write=True)
    assert (again.outcome, again.before, again.after) == (trial.case.get("again", "same"), applied.after, applied.after)
    assert trial.tree.fingerprint() == fingerprint

    reverted = trial.tune(write=True, action=TuneAction.REVERT)
    assert (reverted.outcome, reverted.before) == (KnobOutcome.CHANGED, {item: applied.after[item] for item in reverted.before})
    assert reverted.after == applied.before
    assert _stripped(trial.tree.contents()) == _stripped(contents)


def _check_applied(trial: Trial, result: KnobResult) -> None:
    case = trial.case
    assert result.outcome == case["outcome"], result
    assert result.before == _items(case.get("before"), result.before)
    assert result.after == _items(case.get("after", case.get("before")), result.before)
    assert case.get("detail", "") in result.detail
    assert result.commands == case.get("commands", result.commands)
    assert result.source == case.get("source", result.source)
    for path, text in case.get("wrote", {}).items():
        assert trial.tree.text(path) == text
    for address, word in case.get("words", {}).items():
        assert trial.tree.word(address, DEVICE_CONTROL) == word


def _check_planned(trial: Trial, planned: KnobResult, applied: KnobResult) -> None:
    assert (planned.before, planned.commands) == (applied.before, applied.commands)
    assert planned.after == planned.before
    if applied.after != applied.before or trial.case.get("refuses") or trial.case.get("ignores"):
        assert planned.outcome == KnobOutcome.WOULD_CHANGE
    else:
        assert planned.outcome == applied.outcome
        assert not trial.state_root.exists(), "what changes nothing leaves nothing"


def test_every_kind_has_a_case() -> None:
    told_elsewhere = {"gpu_persistence_mode", "gpu_power_limit", "gpu_clocks"}  # test_knob_nvidia.py
    assert {case["knob"]["kind"] for case in CASES} >= set(KNOBS) - told_elsewhere


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("0", "0\n", True),
        ("600.00", "600", True),
        ("600.00", "600.5", False),
        ("4096\t87380\t6291456", "4096 87380 6291456", True),
        ("4096 87380", "4096 87380 1", False),
        ("performance", "performance", True),
        ("nan", "NaN", False),
        ("1", "01", True),
        ("-1", "-1", True),
        ("", "", True),
        ("", "0", False),
        ("1_0", "10", False),
    ],
)
def test_same_words(found: str, wanted: str, same: bool) -> None:
    assert same_words(found, wanted) is same


@pytest.mark.parametrize("name", ["", "kernel", "kernel..x", ".kernel.x", "kernel.x.", "/kernel/x", "a/../b", "kernel.x y", "kernel.x\n"])
def test_no_name_of_a_sysctl(name: str) -> None:
    with pytest.raises(UnsuitableError):
        make_knob(KnobSetting("sysctl", name, "1"))


@pytest.mark.parametrize("name", ["", "nvidia", "nvidia.", ".x", "nvidia.a/b", "../nvidia.x", "nvidia.x.y"])
def test_no_name_of_a_module_parameter(name: str) -> None:
    with pytest.raises(UnsuitableError):
        make_knob(KnobSetting("module_parameter", name, "1"))


def test_words_for_a_shell() -> None:
    assert [shell_word(text) for text in ("a=1", "it's", "a b", "")] == ["a=1", "'it'\\''s'", "'a b'", "''"]


def _items(expected: Any, items: dict[str, str]) -> dict[str, str]:
    if expected is None:
        return {}
    return expected if isinstance(expected, dict) else dict.fromkeys(items, expected)


def _stripped(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content.rstrip() for path, content in contents.items()}
