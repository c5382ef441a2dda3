"""What is the same for all knobs: originals, their return, the history, and what happens in between."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import persistence, tuning
from orchestrator.agent.clock import boot_moment
from orchestrator.agent.host_folder import HostFolder, KeptError, Original, first_value
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Standpoint
from orchestrator.agent.persistence_files import find_paths
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.tuning import apply
from orchestrator.agent.wire_host import (
    FactName,
    KnobOutcome,
    KnobSetting,
    PersistenceAction,
    PlaceKind,
    TuneAction,
    TuneReport,
    TuneRequest,
)

BALANCING, SWAPPINESS = "/proc/sys/kernel/numa_balancing", "/proc/sys/vm/swappiness"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_governor"
KNOBS = [
    KnobSetting("sysctl", "kernel.numa_balancing", "0"),
    KnobSetting("sysctl", "vm.swappiness", "1"),
    KnobSetting("cpu_governor", value="performance"),
]


class Host:
    """A machine of a few knobs, in files."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "machine"
        self.kept = HostFolder(str(folder / "state"))
        self.state_root = str(folder / "state")
        self.files = KernelFiles(str(self.root))
        for path, text in (
            (BALANCING, "1"),
            (SWAPPINESS, "60"),
            (BOOT_ID, "first"),
            *((GOVERNOR.format(i), "powersave") for i in range(2)),
        ):
            self.put(path, text)

    def put(self, path: str, text: str) -> None:
        real = Path(self.files.path(path))
        real.parent.mkdir(parents=True, exist_ok=True)
        real.write_text(text + "\n")

    def reboot(self, name: str, **values: str) -> None:
        """Everything is as after a boot again, but for `values`."""
        self.put(BOOT_ID, name)
        self.put(BALANCING, values.get("balancing", "1"))
        self.put(SWAPPINESS, values.get("swappiness", "60"))
        for number in range(2):
            self.put(GOVERNOR.format(number), "powersave")

    @property
    def values(self) -> list[str | None]:
        return [self.files.text(path) for path in (BALANCING, SWAPPINESS, GOVERNOR.format(0), GOVERNOR.format(1))]

    def tune(self, knobs: list[KnobSetting] = KNOBS, **more: Any) -> TuneReport:
        where = Standpoint(more.pop("container", None), more.pop("root", True))
        request = TuneRequest(
            "blackwell", knobs, **{"write": True, "state_root": self.state_root, "operator": "ann", "reason": "test", **more}
        )
        return apply(request, self.files, where)

    def revert(self, **more: Any) -> TuneReport:
        return self.tune([], action=TuneAction.REVERT, **more)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def outcomes(report: TuneReport) -> list[str]:
    return [result.outcome for result in report.results]


def test_apply_keeps_originals_and_history(host: Host) -> None:
    report = host.tune()
    assert outcomes(report) == [KnobOutcome.CHANGED] * 3
    assert host.values == ["0", "1", "performance", "performance"]
    assert (report.originals, report.original_knobs) == (4, 3)
    assert {original.key[1:]: (original.value, original.written) for original in host.kept.originals().values()} == {
        ("kernel.numa_balancing", ""): ("1", "0"),
        ("vm.swappiness", ""): ("60", "1"),
        ("", "policy0"): ("powersave", "performance"),
        ("", "policy1"): ("powersave", "performance"),
    }
    (entry,) = host.kept.history()
    assert (entry["operator"], entry["reason"], entry["profile"], entry["action"], entry["boot_id"]) == (
        "ann",
        "test",
        "blackwell",
        "apply",
        "first",
    )
    assert {"knob": "cpu_governor", "name": "", "item": "policy1", "before": "powersave", "after": "performance"} in entry["changes"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path(host.kept.path).iterdir()}
    assert modes == {"originals.json": 0o600, "history.jsonl": 0o600, "lock": 0o600}
    assert Path(host.kept.path).stat().st_mode & 0o777 == 0o700


def test_second_apply_is_silent(host: Host) -> None:
    host.tune()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path(host.kept.path).iterdir()}
    assert outcomes(host.tune()) == [KnobOutcome.SAME] * 3
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path(host.kept.path).iterdir()} == before


def test_one_that_fails_does_not_stop_the_others(host: Host) -> None:
    os.unlink(host.files.path(BALANCING))
    os.symlink("/dev/null", host.files.path(BALANCING))
    report = host.tune([*KNOBS, KnobSetting("nonsense", value="1"), KnobSetting("sysctl", "no.such", "1")])
    failed, changed = KnobOutcome.FAILED, KnobOutcome.CHANGED
    assert outcomes(report) == [failed, changed, changed, failed, KnobOutcome.UNAVAILABLE]
    assert report.results[0].detail == "0 was written, nothing is read back"
    assert host.values[1:] == ["1", "performance", "performance"]


def test_facts(host: Host) -> None:
    host.put("/sys/module/nvidia/version", "580.159.04")
    facts = {fact.name: fact.value for fact in host.tune(container="lxc", write=False).facts}
    assert abs(facts.pop(FactName.BOOTED) - boot_moment()) < 0.1
    assert facts == {
        FactName.KERNEL: os.uname().release,
        FactName.BOOT_ID: "first",
        FactName.CONTAINER: "lxc",
        FactName.DRIVER_MODULE: "580.159.04",
    }


def test_revert_puts_back_proves_and_forgets(host: Host) -> None:
    host.tune()
    report = host.revert()
    assert outcomes(report) == [KnobOutcome.CHANGED] * 3
    assert host.values == ["1", "60", "powersave", "powersave"]
    assert (report.originals, host.kept.originals()) == (0, {})
    assert host.kept.history()[-1]["action"] == "revert"
    assert host.revert().results == []


def test_revert_looks_at_no_profile(host: Host) -> None:
    host.put(GOVERNOR.format(1), "schedutil")
    host.tune([KNOBS[2]])
    (result,) = host.revert().results
    assert result.before == {"policy0": "performance", "policy1": "performance"}
    assert result.after == {"policy0": "powersave", "policy1": "schedutil"}
    assert result.commands == [
        "echo powersave | tee /sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
        "echo schedutil | tee /sys/devices/system/cpu/cpufreq/policy1/scaling_governor",
    ]


def test_plan_of_a_revert(host: Host) -> None:
    host.tune()
    report = host.revert(write=False)
    assert outcomes(report) == [KnobOutcome.WOULD_CHANGE] * 3
    assert report.originals == 4
    assert host.values == ["0", "1", "performance", "performance"]
    assert len(host.kept.history()) == 1


def test_revert_keeps_what_did_not_come_back(host: Host) -> None:
    host.tune()
    os.unlink(host.files.path(BALANCING))
    report = host.revert()
    assert outcomes(report) == [KnobOutcome.UNAVAILABLE, KnobOutcome.CHANGED, KnobOutcome.CHANGED]
    assert [original.name for original in host.kept.originals().values()] == ["kernel.numa_balancing"]
    assert report.originals == 1


def test_revert_tells_an_item_that_is_gone(host: Host) -> None:
    host.tune()
    os.unlink(host.files.path(GOVERNOR.format(1)))
    os.rmdir(os.path.dirname(host.files.path(GOVERNOR.format(1))))
    result = host.revert().results[2]
    assert result.after == {"policy0": "powersave"}
    assert "policy1: it is there no more" in result.detail
    assert [original.item for original in host.kept.originals().values()] == ["policy1"]


def test_crash_between_keeping_and_writing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    class CrashError(BaseException):
        pass

    def crash(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(KernelFiles, "write", crash)
        with pytest.raises(CrashError):
            host.tune()
    assert len(host.kept.originals()) == 4
    report = host.revert()
    assert outcomes(report) == [KnobOutcome.SAME] * 3
    assert (report.originals, host.values) == (0, ["1", "60", "powersave", "powersave"])
    assert host.kept.history() == []


def test_crash_and_apply_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "_write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            host.tune()
    assert outcomes(host.tune()) == [KnobOutcome.CHANGED] * 3
    host.revert()
    assert host.values == ["1", "60", "powersave", "powersave"]


def test_another_profile_in_the_same_boot_keeps_the_older_originals(host: Host) -> None:
    host.tune()
    host.put(SWAPPINESS, "30")
    host.tune([KnobSetting("sysctl", "vm.swappiness", "10")])
    host.revert()
    assert host.values == ["1", "60", "powersave", "powersave"]


def test_persisted_value_at_a_later_boot_keeps_the_older_original(host: Host) -> None:
    host.tune()
    host.reboot("second", swappiness="1")
    host.tune([KnobSetting("sysctl", "vm.swappiness", "10")])
    host.revert()
    assert host.values[1] == "60"


def test_value_of_somebody_else_at_a_later_boot_is_the_new_original(host: Host) -> None:
    host.tune()
    host.reboot("second", swappiness="30")
    host.tune()
    host.revert()
    assert host.values == ["1", "30", "powersave", "powersave"]


def test_revert_leaves_what_somebody_else_set_after_a_reboot(host: Host) -> None:
    host.tune()
    host.reboot("second", swappiness="30")
    assert outcomes(host.revert(write=False)) == [KnobOutcome.SAME] * 3
    report = host.revert()
    assert outcomes(report) == [KnobOutcome.SAME] * 3
    assert "left as it is, for somebody else set it after a reboot" in report.results[1].detail
    assert (host.values[1], report.originals) == ("30", 0)


@pytest.mark.parametrize(
    ("boot", "found", "as_written", "first"),
    [("one", "7", False, "60"), ("two", "60", False, "60"), ("two", "1", True, "60"), ("two", "7", False, "7")],
)
def test_first_value(boot: str, found: str, as_written: bool, first: str) -> None:
    kept = Original("sysctl", "vm.swappiness", "", PlaceKind.HOST, "60", "1", "one", 0.0)
    assert first_value(kept, found, as_written, boot) == first
    assert first_value(None, found, as_written, boot) == found


def test_originals_that_can_not_be_kept_mean_no_write(host: Host) -> None:
    host.state_root = "/proc/self"
    report = host.tune()
    assert outcomes(report) == [KnobOutcome.FAILED] * 3
    assert "not written, as its original value can't be kept: /proc/self/.host: " in report.results[0].detail
    assert host.values == ["1", "60", "powersave", "powersave"]


def test_broken_originals_are_not_overwritten(host: Host) -> None:
    host.tune([KNOBS[0]])
    originals = Path(host.kept.path) / "originals.json"
    originals.write_text("[{")
    report = host.tune()
    assert outcomes(report) == [KnobOutcome.SAME, KnobOutcome.FAILED, KnobOutcome.FAILED]
    assert "originals.json can't be understood" in report.results[1].detail
    with pytest.raises(AgentRefusal, match="nothing was reverted"):
        host.revert()
    assert originals.read_text() == "[{"


@pytest.mark.parametrize("content", ["{}", '[{"kind": "sysctl"}]', "[1]"])
def test_originals_of_another_shape(host: Host, content: str) -> None:
    Path(host.kept.path).mkdir(parents=True)
    (Path(host.kept.path) / "originals.json").write_text(content)
    with pytest.raises(KeptError, match="can't be understood"):
        host.kept.originals()


def test_torn_last_line_of_the_history(host: Host) -> None:
    host.tune([KNOBS[0]])
    path = Path(host.kept.path) / "history.jsonl"
    path.write_text(path.read_text() + '{"time": 1')
    host.tune([KNOBS[1]])
    assert [entry["changes"][0]["name"] for entry in host.kept.history()] == ["kernel.numa_balancing", "vm.swappiness"]


def test_history_that_can_not_be_written_is_told(host: Host) -> None:
    Path(host.kept.path).mkdir(parents=True)
    (Path(host.kept.path) / "history.jsonl").mkdir()
    report = host.tune([KNOBS[0]])
    assert outcomes(report) == [KnobOutcome.CHANGED]
    assert "not noted in the history: " in report.results[0].detail


def test_lock_names_who_holds_it_and_a_plan_does_not_care(host: Host) -> None:
    Path(host.kept.path).mkdir(parents=True)
    content = json.dumps({"operator": "bob", "reason": "kernel 6.8", "profile": "observe", "pid": 4711, "since": 1700000000.0})
    (Path(host.kept.path) / "lock").write_text(content)
    holder = subprocess.Popen(["flock", f"{host.kept.path}/lock", "sh", "-c", "echo held; read -r _"], stdin=-1, stdout=-1)
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        assert outcomes(host.tune(write=False)) == [KnobOutcome.WOULD_CHANGE] * 3
        with pytest.raises(AgentRefusal) as refused:
            host.tune()
        holder.stdin.close()
        holder.wait(10)
    failure = refused.value.failure
    assert failure.category == "locked"
    assert failure.message == "the knobs of this machine are being changed by bob since 2023-11-14 22:13:20 UTC, process 4711"
    assert failure.evidence == [f"{host.kept.path}/lock: profile observe, reason: kernel 6.8"]
    assert host.values == ["1", "60", "powersave", "powersave"]
    assert outcomes(host.tune()) == [KnobOutcome.CHANGED] * 3


def test_container_and_plain_user_write_nothing(host: Host) -> None:
    for more in ({"container": "lxc"}, {"root": False}):
        assert outcomes(host.tune(**more)) == [KnobOutcome.NOT_SETTABLE] * 3
    assert host.values == ["1", "60", "powersave", "powersave"]
    assert not Path(host.kept.path).exists()


def test_what_tuned_disturbs_is_set_after_it(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path, text in (
        ("/usr/sbin/tuned-adm", "#"),
        ("/run/tuned/tuned.pid", "71"),
        ("/proc/71/comm", "tuned"),
        ("/etc/tuned/active_profile", "balanced"),
        ("/usr/lib/tuned/lab/tuned.conf", ""),
    ):
        host.put(path, text)
    host.put(GOVERNOR.format(0), "performance")
    host.put(GOVERNOR.format(1), "performance")
    programs = tmp_path / "bin"
    programs.mkdir()
    script = [f"echo $2 >{host.files.path('/etc/tuned/active_profile')}", f"echo 10 >{host.files.path(SWAPPINESS)}"]
    script += [f"echo ondemand >{host.files.path(GOVERNOR.format(number))}" for number in range(2)]
    (programs / "tuned-adm").write_text("\n".join(["#!/bin/sh", *script]))
    (programs / "tuned-adm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}")
    report = host.tune([KNOBS[2], KnobSetting("sysctl", "vm.swappiness", "10"), KnobSetting("tuned_profile", value="lab")])
    assert outcomes(report) == [KnobOutcome.CHANGED] * 3
    assert host.values[1:] == ["10", "performance", "performance"]
    assert "set by tuned's profile" in report.results[1].detail
    assert {original.item: original.value for original in host.kept.originals().values() if original.kind == "cpu_governor"} == {
        "policy0": "performance",
        "policy1": "performance",
    }


def test_boot_files_are_those_that_persistence_makes() -> None:
    paths = find_paths("/state", KernelFiles())
    assert (str(paths.unit), str(paths.sysctl)) == tuning.BOOT_FILES
    assert str(paths.folder) == HostFolder("/state").boot


def test_what_is_applied_at_boot_is_told_and_a_revert_removes_it(host: Host) -> None:
    host.put(tuning.BOOT_FILES[1], "# profile: blackwell")
    there = host.tune([], write=False).persistence
    assert there is not None
    assert there.files == [host.files.path(tuning.BOOT_FILES[1])]
    report = host.revert(write=False)
    assert report.changes == there.files
    assert host.tune([], container="lxc").persistence is None


def test_persistence_that_fails_after_the_knobs_is_told_with_them(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[str]:
        raise AgentRefusal("refused", "systemd has not enabled it", ["LoadState=masked"])

    monkeypatch.setattr(persistence, "require", lambda *_: None)
    monkeypatch.setattr(persistence, "install", fail)
    report = host.tune(persistence=PersistenceAction.INSTALL)
    assert outcomes(report) == [KnobOutcome.CHANGED] * 3
    assert report.persistence is not None
    assert (report.persistence.enabled, report.persistence.problem) == (False, "systemd has not enabled it / LoadState=masked")


def test_persistence_that_can_not_be_is_refused_before_any_knob(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AgentRefusal("refused", "no systemd")

    monkeypatch.setattr(persistence, "require", refuse)
    with pytest.raises(AgentRefusal, match="no systemd"):
        host.tune(persistence=PersistenceAction.INSTALL)
    assert host.values == ["1", "60", "powersave", "powersave"]


def test_kept_values_survive_what_json_does_to_them(host: Host) -> None:
    odd = Original("sysctl", "kernel.core_pattern", "", PlaceKind.HOST, "|/bin/x %p \u00e4\t1", "core", "first", 1.5)
    Path(host.kept.path).mkdir(parents=True)
    host.kept.keep({odd.key: odd})
    assert host.kept.originals() == {odd.key: odd}
    assert dataclasses.asdict(odd)["value"] == "|/bin/x %p \u00e4\t1"
