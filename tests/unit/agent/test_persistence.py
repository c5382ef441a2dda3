"""What applies a profile at boot: what is written, when it is refused, what is told of it. systemd is stood in for here."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path

import pytest

from orchestrator.agent import persistence, persistence_files, systemd
from orchestrator.agent.command import Output
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.persistence_files import UNIT, is_as_written, missing_at_boot, overriding
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_host import KnobSetting, Persistence, PersistenceAction, PlaceKind, TuneRequest

SETTINGS = [
    KnobSetting("sysctl", "kernel.numa_balancing", "0"),
    KnobSetting("sysctl", "vm.swappiness", "10", persist=False),
    KnobSetting("sysctl", "vm.zone_reclaim_mode"),
    KnobSetting("sysctl", "net.core.somaxconn", "4096", place=PlaceKind.CONTAINER),
    KnobSetting("cpu_governor", "", "performance"),
]
MOUNTS = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"

UNIT_TEXT = """\
[Unit]
Description=Host tuning profile quiet
After=systemd-modules-load.service systemd-sysctl.service
Before=pve-guests.service lxc.service incus.service

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=90
TimeoutStopSec=5
KillMode=mixed
"""


class Host:
    """A machine's /etc, /run and /proc below a folder, and a stand-in for its systemctl."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = KernelFiles(str(root))
        self.calls: list[str] = []
        self.takes_units = True
        self.active = "inactive"
        for path, text in {"/proc/self/uid_map": "0 0 4294967295\n", "/proc/self/mountinfo": MOUNTS, "/proc/cmdline": "quiet\n"}.items():
            self.put(path, text)
        self.path("/run/systemd/system").mkdir(parents=True)
        self.unit = self.path(f"/etc/systemd/system/{UNIT}")
        self.link = self.path(f"/etc/systemd/system/multi-user.target.wants/{UNIT}")
        self.sysctl = self.path("/etc/sysctl.d/90-orchestrator.conf")
        self.state = root / "state"
        self.boot = self.state / ".host/boot"

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def put(self, path: str, text: str) -> None:
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text, encoding="utf-8")

    def request(self, settings: list[KnobSetting] | None = None, *, write: bool = True) -> TuneRequest:
        return TuneRequest(
            "quiet", SETTINGS if settings is None else settings, write=write, state_root=str(self.state), operator="ann", reason="now",
            persistence=PersistenceAction.INSTALL,
        )  # fmt: skip

    def install(self, settings: list[KnobSetting] | None = None, *, write: bool = True) -> list[str]:
        return [f"/{Path(path).relative_to(self.root)}" for path in persistence.install(self.request(settings, write=write), self.files)]

    def remove(self, *, write: bool = True) -> list[str]:
        return persistence.remove(self.request(write=write), self.files)

    def describe(self) -> Persistence:
        found = persistence.describe(str(self.state), self.files)
        assert found is not None
        return found

    def systemctl(self, *words: str, seconds: float = 0) -> Output:
        self.calls.append(words[0])
        if words[0] == "enable" and self.takes_units and not self.link.is_symlink():
            self.link.parent.mkdir(parents=True, exist_ok=True)
            self.link.symlink_to(self.unit)
        if words[0] == "disable":
            self.link.unlink(missing_ok=True)
        there = self.unit.exists()
        values = {
            "LoadState": "loaded" if there else "not-found",
            "ActiveState": self.active,
            "UnitFileState": "enabled" if self.link.exists() else "disabled",
            "FragmentPath": str(self.unit),
            "NeedDaemonReload": "no",
        }
        shown = [f"{name}={values[name]}" for name in words[2].split(",")] if words[0] == "show" else []
        return Output(0, "\n".join(shown) + "\n", "")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(systemd, "systemctl", made.systemctl)
    monkeypatch.setattr("orchestrator.agent.main.container_kind", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


def test_first_install_writes_everything_and_the_second_nothing(host: Host) -> None:
    assert host.install() == [
        "/state/.host/boot/agent.zip",
        "/state/.host/boot/request.json",
        "/etc/sysctl.d/90-orchestrator.conf",
        f"/etc/systemd/system/{UNIT}",
        f"/etc/systemd/system/multi-user.target.wants/{UNIT}",
    ]
    header, _, body = host.unit.read_text(encoding="utf-8").partition("\n\n")
    assert header.splitlines()[1] == "# profile: quiet"
    kept, _, unit = body.partition("\n")
    assert kept.startswith("# kept: ")
    assert unit.startswith(UNIT_TEXT)
    assert f'"{host.boot}"\n\n[Install]\nWantedBy=multi-user.target\n' in body
    assert host.sysctl.read_text(encoding="utf-8").partition("\n\n")[2] == "kernel.numa_balancing = 0\n"
    with zipfile.ZipFile(host.boot / "agent.zip") as archive:
        assert "orchestrator/agent/at_boot.py" in archive.namelist()
    kept = json.loads((host.boot / "request.json").read_text(encoding="utf-8"))
    assert [(setting["kind"], setting["name"]) for setting in kept["settings"]] == [
        ("sysctl", "kernel.numa_balancing"),
        ("cpu_governor", ""),
    ]
    assert (kept["write"], kept["persistence"], kept["action"]) == (True, "keep", "apply")
    assert {path.stat().st_mode & 0o777 for path in host.boot.iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (host.unit, host.sysctl)} == {0o644}
    assert host.boot.stat().st_mode & 0o777 == 0o700

    host.calls.clear()
    assert host.install() == []
    assert host.calls == []


def test_another_operator_changes_nothing(host: Host) -> None:
    host.install()
    other = dataclasses.replace(host.request(), operator="bob", reason="later")
    assert persistence.install(other, host.files) == []


def test_plan_names_the_files_and_writes_none(host: Host) -> None:
    before = sorted(host.root.rglob("*"))
    assert len(host.install(write=False)) == 5
    assert sorted(host.root.rglob("*")) == before
    assert host.calls == []
    host.install()
    assert len(host.remove(write=False)) == 5
    assert host.unit.exists()


def test_a_plan_shows_what_a_person_can_read_of_the_files(host: Host) -> None:
    shown = persistence.planned(host.request(write=False), host.files)
    assert list(shown) == [str(host.sysctl), str(host.unit)]
    assert "kernel.numa_balancing = 0" in shown[str(host.sysctl)]
    host.install()
    assert shown[str(host.unit)] == host.unit.read_text()


def test_another_profile_replaces_only_what_differs(host: Host) -> None:
    host.install()
    assert host.install([KnobSetting("cpu_governor", "", "performance")]) == [
        "/state/.host/boot/request.json",
        f"/etc/systemd/system/{UNIT}",
        "/etc/sysctl.d/90-orchestrator.conf",
    ]
    assert not host.sysctl.exists(), "a profile without sysctls leaves no file of the former one"


def test_another_state_root_takes_the_former_folder_away(host: Host) -> None:
    host.install()
    former = host.boot
    host.state = host.root / "elsewhere"
    host.install()
    assert not former.exists()
    assert str(host.root / "elsewhere/.host/boot") in host.unit.read_text(encoding="utf-8")


def test_unit_finds_its_folder_whatever_is_in_the_name(host: Host) -> None:
    host.state = host.root / "100% of $HOME"
    host.install()
    host.state = host.root / "elsewhere"
    assert host.describe().problem is None, "its own folder is read from the unit"
    assert "100%% of $$HOME/.host" in host.unit.read_text(encoding="utf-8")
    assert len(host.remove()) == 5


def test_unit_that_was_disabled_is_enabled_again(host: Host) -> None:
    host.install()
    host.link.unlink()
    assert "not enabled" in str(host.describe().problem)
    assert host.install() == [f"/etc/systemd/system/multi-user.target.wants/{UNIT}"]
    assert host.describe().enabled


@pytest.mark.parametrize("edited", ["unit", "sysctl"])
def test_file_changed_by_hand_is_refused_and_told_until_it_is_removed(host: Host, edited: str) -> None:
    host.install()
    path: Path = getattr(host, edited)
    path.write_text(path.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    before = path.read_bytes()
    assert host.describe().problem == f"{path} was changed by hand"
    with pytest.raises(AgentRefusal, match="not overwritten") as refused:
        host.install()
    assert "--unpersist" in str(refused.value.failure.next_step)
    assert path.read_bytes() == before
    host.remove()
    assert len(host.install()) == 5


def test_somebodys_unit_of_that_name_and_a_mask_are_not_ours(host: Host) -> None:
    host.unit.parent.mkdir(parents=True)
    host.unit.symlink_to("/dev/null")
    with pytest.raises(AgentRefusal, match="not overwritten"):
        host.install()
    assert "changed by hand" in str(host.describe().problem)
    host.remove()
    assert not host.unit.is_symlink()


def test_remove_leaves_nothing_and_a_second_one_finds_nothing(host: Host) -> None:
    host.install()
    assert len(host.remove()) == 5
    assert not host.boot.exists()
    assert not any(path.exists() for path in (host.unit, host.sysctl, host.link))
    assert host.state.joinpath(".host").exists(), "what else is kept on the host stays"
    host.calls.clear()
    assert host.remove() == []
    assert persistence.describe(str(host.state), host.files) is None
    assert host.calls == []


def test_remove_is_refused_while_systemd_still_has_the_unit(host: Host) -> None:
    host.install()
    host.active = "activating"
    with pytest.raises(AgentRefusal, match="is not gone") as refused:
        host.remove()
    assert "activating" in refused.value.failure.evidence[-1]


def test_systemd_that_does_not_take_the_unit_is_told(host: Host) -> None:
    host.takes_units = False
    with pytest.raises(AgentRefusal, match="has not enabled it") as refused:
        host.install()
    assert "UnitFileState=disabled" in refused.value.failure.evidence


def test_what_can_not_be_written_is_named(host: Host) -> None:
    host.put("/etc/systemd", "a file where a folder should be")
    with pytest.raises(AgentRefusal, match="not persistent") as refused:
        host.install()
    assert "/etc/systemd" in refused.value.failure.message


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("container", "belongs to the host"),
        ("user namespace", "belongs to the host"),
        ("not root", "only root"),
        ("no systemd", "systemd is not running"),
        ("nothing persists", "sets nothing on the host that persists"),
        ("state on a network", "may not be there at boot"),
        ("line break", "can't be written"),
    ],
)
def test_refused_before_anything_is_written(host: Host, monkeypatch: pytest.MonkeyPatch, case: str, words: str) -> None:
    settings = None
    if case == "container":
        monkeypatch.setattr("orchestrator.agent.main.container_kind", lambda: "lxc")
    elif case == "user namespace":
        host.put("/proc/self/uid_map", "0 100000 65536")
    elif case == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    elif case == "no systemd":
        host.path("/run/systemd/system").rmdir()
    elif case == "nothing persists":
        settings = SETTINGS[1:4]
    elif case == "state on a network":
        host.put("/proc/self/mountinfo", f"{MOUNTS}30 21 0:40 / {host.state} rw - nfs4 server:/x rw\n")
    else:
        settings = [KnobSetting("sysctl", "kernel.numa_balancing", "0\nkernel.panic = 1")]
    before = sorted(host.root.rglob("*"))
    with pytest.raises(AgentRefusal, match=words):
        host.install(settings)
    assert sorted(host.root.rglob("*")) == before
    assert host.calls == []


def test_description_of_what_is_well(host: Host) -> None:
    host.install()
    host.active = "active"
    host.calls.clear()
    found = host.describe()
    assert (found.profile, found.unit, found.enabled, found.state, found.problem, found.said) == ("quiet", UNIT, True, "active", None, [])
    assert len(found.files) == 5
    assert host.calls == ["show"]


def test_description_of_a_failed_boot_has_its_last_lines(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.install()
    host.active = "failed"
    monkeypatch.setattr(persistence, "run_bounded", lambda argv, seconds: Output(0, f"{argv[0]} said\nmore\n", ""))
    assert host.describe().said == ["journalctl said", "more"]


@pytest.mark.parametrize("lost", ["agent.zip", "request.json"])
def test_description_names_what_is_missing(host: Host, lost: str) -> None:
    host.install()
    (host.boot / lost).unlink()
    assert host.describe().problem == f"{host.boot / lost} is missing"


@pytest.mark.parametrize("spoilt", ["agent.zip", "request.json"])
def test_description_tells_that_what_is_kept_is_not_what_was_written(host: Host, spoilt: str) -> None:
    host.install()
    with (host.boot / spoilt).open("ab") as stream:
        stream.write(b" ")
    assert host.describe().problem == f"what lies in {host.boot} is not what {UNIT} was written for"
    host.install()
    assert host.describe().problem is None


def test_leftovers_without_a_unit_are_described_without_running_anything(host: Host) -> None:
    host.install()
    host.unit.unlink()
    host.calls.clear()
    found = host.describe()
    assert (found.profile, found.state, found.enabled) == ("quiet", "unknown", False)
    assert "is missing" in str(found.problem)
    assert host.calls == []


def test_header_guards_the_whole_file(host: Host) -> None:
    host.install()
    text = host.unit.read_text(encoding="utf-8")
    assert is_as_written(text)
    for old, new in (("quiet", "loud"), ("TimeoutStartSec=90", "TimeoutStartSec=900"), ("[Install]", "")):
        assert not is_as_written(text.replace(old, new, 1))
    assert not is_as_written("")


OURS = "# profile: quiet\nkernel.numa_balancing = 0\nnet.ipv4.conf.eth0/100.rp_filter = 1\n"


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("/etc/sysctl.d/99-local.conf", "kernel.numa_balancing=1", ["/etc/sysctl.d/99-local.conf sets kernel.numa_balancing = 1"]),
        ("/usr/lib/sysctl.d/99-x.conf", "-kernel/numa_balancing = 2", ["/usr/lib/sysctl.d/99-x.conf sets kernel.numa_balancing = 2"]),
        ("/etc/sysctl.d/99-local.conf", "kernel.numa_balancing=0\nvm.swappiness=1", []),
        ("/etc/sysctl.d/99-local.conf", "# kernel.numa_balancing=1\n;kernel.numa_balancing=1\nkernel.numa_*=1\n-kernel.numa_balancing", []),
        ("/etc/sysctl.d/10-early.conf", "kernel.numa_balancing=1", []),
        ("/etc/sysctl.d/99-no-suffix", "kernel.numa_balancing=1", []),
        ("/proc/cmdline", "quiet sysctl.kernel.numa_balancing=1", ["the kernel command line has sysctl.kernel.numa_balancing=1"]),
        ("/proc/cmdline", "quiet sysctl.kernel/numa_balancing=1 sysctl.vm.swappiness=1",
         ["the kernel command line has sysctl.kernel/numa_balancing=1"]),
        ("/etc/sysctl.d/99-v.conf", "net/ipv4/conf/eth0.100/rp_filter = 2",
         ["/etc/sysctl.d/99-v.conf sets net.ipv4.conf.eth0/100.rp_filter = 2"]),
    ],
)  # fmt: skip
def test_what_overrides_our_sysctls(host: Host, path: str, text: str, found: list[str]) -> None:
    host.put(path, text)
    assert overriding(OURS, host.files) == found


def test_file_hidden_by_one_of_its_name_does_not_override(host: Host) -> None:
    host.put("/usr/lib/sysctl.d/99-x.conf", "kernel.numa_balancing = 1")
    host.put("/etc/sysctl.d/99-x.conf", "")
    assert overriding(OURS, host.files) == []


def test_overridden_sysctl_is_told_and_no_problem_as_the_unit_puts_it_right(host: Host) -> None:
    host.install()
    host.put("/etc/sysctl.d/99-local.conf", "kernel.numa_balancing = 1")
    found = host.describe()
    (note,) = found.notes
    assert note.startswith("/etc/sysctl.d/99-local.conf sets kernel.numa_balancing = 1, after ")
    assert found.problem is None


@pytest.mark.parametrize(
    ("path", "mount", "problem"),
    [
        ("/usr/bin/python3", "30 21 0:40 / /usr ro - nfs4 server:/usr ro", "network or user-space file system (nfs4)"),
        ("/usr/bin/python3", "30 21 8:2 / /usr ro - ext4 /dev/sda2 ro", None),
        ("/usr/bin/python3", "30 21 0:40 / /usr/bi rw - nfs4 server:/x rw", None),
        ("/opt/x y/python3", "30 21 0:41 / /opt/x\\040y rw - fuse.sshfs a:/ rw", "(fuse.sshfs)"),
        ("/run/python3", "30 21 0:41 / /run rw shared:5 - tmpfs tmpfs rw", "in memory only"),
        ("/usr/bin/python3", "30 1 0:41 / / rw - tmpfs tmpfs rw", None),
        ("/data/python3", "30 21 0:9 / /data rw - autofs systemd-1 rw\n31 30 0:10 / /data rw - ext4 /dev/sdb rw", None),
    ],
)
def test_what_may_not_be_there_at_boot(path: str, mount: str, problem: str | None) -> None:
    said = missing_at_boot(path, f"{MOUNTS}{mount}\n")
    assert said is None if problem is None else problem in str(said)


def test_bounds_of_the_code_lie_within_those_of_the_unit() -> None:
    from orchestrator.agent import at_boot

    assert at_boot.WAIT_SECONDS + at_boot.WORK_SECONDS <= persistence_files.START_SECONDS - 5
