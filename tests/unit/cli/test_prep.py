"""``prep`` over scripted places: what is printed, kept and returned, for one host and for many."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.agent.wire_host import KnobOutcome, KnobSetting, Persistence, PersistenceAction, TuneAction
from orchestrator.cli import edge, program
from orchestrator.cli.prep_text import knob_table, values, was_and_is
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.errors import ConnectError, ContainerError, NotRootError
from orchestrator.results.redaction import Redactor
from tests.rig.documents import checked
from tests.unit.flows.tuned import (
    BY_PCT,
    BY_SSH,
    GOVERNOR,
    GPUS,
    HMM,
    NUMA,
    POLICIES,
    READ_REQUEST,
    Fleet,
    changed,
    knob,
    report,
    same,
    write_tuned,
)

REPOSITORY = Path(__file__).resolve().parents[3]
GOVERNORS = knob(
    GOVERNOR,
    KnobOutcome.CHANGED,
    dict.fromkeys(POLICIES, "powersave"),
    dict.fromkeys(POLICIES, "performance"),
    source="/sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
    commands=["echo performance | tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"],
)
READ_REQUESTS = knob(
    READ_REQUEST,
    KnobOutcome.FAILED,
    dict.fromkeys(GPUS, "512"),
    {**dict.fromkeys(GPUS, "4096"), GPUS[3]: "512"},
    source="/sys/bus/pci/devices/*/config",
    detail="0000:44:00.0 reads 512 after 4096 was written",
    commands=["setpci -s 0000:44:00.0 CAP_EXP+8.w=5000:7000"],
)
TOLD = knob(
    HMM,
    KnobOutcome.TOLD,
    "0",
    source="/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    detail="0 now; a module's parameter is set when it is loaded",
    commands=["echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/nvidia-uvm.conf"],
)
DRIFTED = knob(NUMA, KnobOutcome.WOULD_CHANGE, "1", commands=["sysctl -w kernel.numa_balancing=0"])
NO_ANSWER = ConnectError("gpu1: no answer from 127.0.0.1:22 within 10 s", evidence=["tried for 10 s"], next_step="ping 127.0.0.1")
UNIT = Persistence("fast", "orchestrator-prep.service", enabled=True, state="active")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return checked(self.out)


@dataclass(frozen=True)
class Desk:
    """An operator's desk: a folder for runs, inventories made as wanted, and the program."""

    folder: Path
    hosts: Callable[..., None]
    run: Callable[..., Done]

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ORCHESTRATOR_INVENTORY", str(tmp_path / "inventory"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")

    def hosts(entries: dict[str, str], **more: bool) -> None:
        write_tuned(tmp_path / "inventory", entries, **more)

    def run(fleet: Fleet, *words: str) -> Done:
        from orchestrator.flows import prep as flow

        monkeypatch.setitem(flow.prep_all.__kwdefaults__ or {}, "open", fleet.open)
        defaults = flow.prep_all.__defaults__
        assert defaults is not None
        monkeypatch.setattr(flow.prep_all, "__defaults__", (*defaults[:-1], fleet.open))
        made = program.make_program()
        monkeypatch.setattr(edge, "front_end", made)
        capsys.readouterr()
        try:
            made.run(["orchestrator", *words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return Desk(tmp_path, hosts, run)


ONE = {"gpu1": f"tuning: fast, {BY_SSH}"}
MANY = {f"gpu{number}": "tuning: fast" for number in range(1, 6)}


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({}, "-"),
        ({"": "0"}, "0"),
        ({"": ""}, "(empty)"),
        (dict.fromkeys(POLICIES, "powersave"), "powersave on 64 policies"),
        (dict.fromkeys(["cpu0", "cpu12"], "20"), "20 on 2 CPUs"),
        (dict.fromkeys(GPUS, "512"), "512 on 8 GPUs"),
        ({GPUS[0]: "512"}, f"512 on {GPUS[0]}"),
        ({**dict.fromkeys(GPUS, "4096"), GPUS[3]: "512"}, "4096 on 7 GPUs, 512 on 0000:44:00.0"),
        (dict.fromkeys(POLICIES[:60], "a") | dict.fromkeys(POLICIES[60:], "b"), "a on 60 policies, b on 4 policies"),
        ({"x": "1", "y": "1"}, "1 on 2 items"),
    ],
)
def test_values_of_many_items_are_short(items: dict[str, str], words: str) -> None:
    assert values(items) == words


def test_what_is_there_now_counts_its_items_only_where_they_differ() -> None:
    assert was_and_is(same()) == "0"
    assert was_and_is(GOVERNORS) == "powersave on 64 policies -> performance"
    assert was_and_is(READ_REQUESTS) == "512 on 8 GPUs -> 4096 on 7 GPUs, 512 on 0000:44:00.0"
    lost = knob(GOVERNOR, KnobOutcome.FAILED, {"policy0": "a", "policy1": "a"}, {"policy0": "b"})
    assert was_and_is(lost) == "a on 2 policies -> b on policy0"


def test_where_nothing_was_written_a_table_does_not_show_the_same_value_twice() -> None:
    assert list(knob_table([same(), DRIFTED]).columns) == ["knob", "is", "wanted", ""]
    assert list(knob_table([same(), changed()]).columns) == ["knob", "was -> is", "wanted", ""]


def test_one_host_shows_each_knob_with_its_source_and_what_is_left_for_a_person(desk: Desk) -> None:
    desk.hosts(ONE)
    fleet = Fleet(
        {"gpu1 host": report(changed(), same(), GOVERNORS, READ_REQUESTS, TOLD, originals=73, original_knobs=3, persistence=UNIT)}
    )
    ended = desk.run(fleet, "prep", "--host", "gpu1")
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert "gpu1: profile fast, kernel 6.8.12-9-pve" in lines
    (row,) = [line for line in lines if "cpu_governor" in line]
    assert row.split() == ["cpu_governor", "powersave", "on", "64", "policies", "performance", "changed"]
    assert lines[lines.index(row) + 1].split() == ["->", "performance"]
    assert "      /sys/devices/system/cpu/cpufreq/policy*/scaling_governor" in lines
    failed = lines.index("failed: pcie_max_read_request: 0000:44:00.0 reads 512 after 4096 was written")
    told = next(index for index, line in enumerate(lines) if line.startswith("to do by hand: nvidia_uvm.uvm_disable_hmm: 0 now"))
    assert lines[failed + 1] == "    setpci -s 0000:44:00.0 CAP_EXP+8.w=5000:7000"
    assert failed < told
    assert "73 original values of 3 knobs kept in gpu1; fab prep --revert --host gpu1" in ended.out
    assert "at boot: orchestrator-prep.service applies fast (applied at this boot)" in lines
    (folder,) = desk.runs
    assert lines[-2:] == ["gpu1: 5 knobs: 1 as wanted, 2 changed, 1 failed, 1 to do by hand", f"kept in {folder}"]
    commands = {line.strip() for line in lines if line.startswith("    ")} | {lines[-1]}
    assert [line for line in lines[1:] if len(line) > 80 and line.strip() not in commands] == []
    kept = json.loads((folder / "prep.json").read_text(encoding="utf-8"))
    assert kept["hosts"][0]["counts"] == {"changed": 2, "same": 1, "failed": 1, "told": 1}
    assert folder.name.endswith("-prep-gpu1")


def test_a_second_run_says_that_nothing_was_changed_and_keeps_nothing(desk: Desk) -> None:
    desk.hosts(ONE)
    ended = desk.run(Fleet(), "prep")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "gpu1: 2 knobs: 2 as wanted; nothing was changed"
    assert desk.runs == []


def test_a_check_is_short_and_8_when_the_host_has_drifted(desk: Desk) -> None:
    desk.hosts(ONE)
    fleet = Fleet({"gpu1 host": report(DRIFTED, same(GOVERNOR))})
    ended = desk.run(fleet, "prep", "--check")
    assert ended.code == 8
    assert ended.out.splitlines()[-4:] == [
        "kernel.numa_balancing: 1, wanted 0",
        "    /proc/sys/kernel/numa_balancing",
        "gpu1: 2 knobs: 1 as wanted, 1 drifted",
        "next: fab prep --host gpu1",
    ]
    assert not fleet.requests("gpu1 host")[0].write
    assert desk.run(Fleet(), "prep", "--check").out.splitlines()[-1] == "gpu1: 2 knobs: 2 as wanted"
    assert desk.runs == []


def test_a_plan_shows_the_commands_by_hand_and_writes_nothing(desk: Desk) -> None:
    desk.hosts(ONE)
    path = "/etc/sysctl.d/90-orchestrator.conf"
    fleet = Fleet({"gpu1 host": report(DRIFTED, changes=[path], contents={path: "# profile: fast\nkernel.numa_balancing = 0\n"})})
    ended = desk.run(fleet, "prep", "--plan", "--persist")
    lines = ended.out.splitlines()
    at = lines.index("by hand, on gpu1, as root, this would be")
    assert lines[at + 1] == "    sysctl -w kernel.numa_balancing=0"
    at = lines.index(f"would be written: {path}")
    assert lines[at + 1 : at + 3] == ["    # profile: fast", "    kernel.numa_balancing = 0"]
    assert lines[-2:] == [
        "gpu1: 1 knob: 1 would change, 1 file for the next boot would be written",
        "ready: the same without --plan does it: fab prep --persist",
    ]
    assert ended.code == 0
    (request,) = fleet.requests("gpu1 host")
    assert (request.write, request.persistence) == (False, PersistenceAction.INSTALL)
    assert desk.runs == []


def test_a_revert_says_what_was_put_back(desk: Desk) -> None:
    desk.hosts({"gpu1": ""})
    back = knob(NUMA, KnobOutcome.CHANGED, "0", "1")
    fleet = Fleet({"gpu1 host": report(back, changes=["/etc/systemd/system/orchestrator-prep.service"])})
    ended = desk.run(fleet, "prep", "--revert")
    assert fleet.requests("gpu1 host")[0].action == TuneAction.REVERT
    lines = ended.out.splitlines()
    assert "gpu1: originals, kernel 6.8.12-9-pve" in lines
    assert "removed: /etc/systemd/system/orchestrator-prep.service" in lines
    assert "gpu1: 1 knob: 1 put back, 1 file for the next boot removed" in lines
    assert "gpu1: no originals are kept: nothing to put back" in desk.run(Fleet({"gpu1 host": report()}), "prep", "--revert").out


def test_what_an_outcome_leaves_to_be_said_is_said_below_the_table(desk: Desk) -> None:
    desk.hosts(ONE)
    foreign = knob(NUMA, KnobOutcome.SAME, "1", detail="left as it is, for somebody else set it after a reboot")
    ended = desk.run(Fleet({"gpu1 host": report(foreign, originals=1)}), "prep", "--revert")
    assert "note: kernel.numa_balancing: left as it is, for somebody else set it after" in ended.out
    assert "1 original value still kept in gpu1" in ended.out


def test_unpersist_says_what_was_removed(desk: Desk) -> None:
    desk.hosts(ONE)
    fleet = Fleet({"gpu1 host": report(changes=["/etc/systemd/system/orchestrator-prep.service"])})
    ended = desk.run(fleet, "prep", "--unpersist")
    assert ended.code == 0
    assert "removed: /etc/systemd/system/orchestrator-prep.service" in ended.out
    assert "gpu1: 1 file for the next boot removed" in ended.out
    assert "nothing is applied at gpu1's boot any more; its knobs stay as they are" in ended.out
    assert "gpu1: nothing was set for its next boot" in desk.run(Fleet({"gpu1 host": report()}), "prep", "--unpersist").out


def test_a_unit_that_failed_at_boot_is_told_with_its_words(desk: Desk) -> None:
    desk.hosts(ONE)
    failed = Persistence("fast", "orchestrator-prep.service", True, "failed", said=["kernel.numa_balancing is 1, wanted 0"])
    fleet = Fleet({"gpu1 host": report(same(), persistence=failed)})
    for words in ((), ("--check",)):
        out = desk.run(fleet, "prep", *words).out
        assert "at boot: orchestrator-prep.service applies fast (FAILED at this boot)" in out
        assert "    kernel.numa_balancing is 1, wanted 0" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--check", "--plan"], "--check and --plan can't be had together"),
        (["--check", "--persist"], "--check writes nothing"),
        (["--check", "--unpersist"], "--check writes nothing"),
        (["--check", "--revert"], "--plan --revert shows what a revert would do"),
        (["--persist", "--unpersist"], "one sets what is done at boot, the other removes it"),
        (["--persist", "--revert"], "a revert also removes"),
        (["--host", "gpu1", "--profile", "fats"], "no tuning profile 'fats'; did you mean fast?"),
        (["--host", "gpu9"], "no host 'gpu9'"),
        (["--host", ""], "has nothing where a name should be"),
        (["--host", "gpu1,"], "has nothing where a name should be"),
        ([], "--host NAME,NAME, --host GROUP or --all"),
        (["--host", "gpu1,gpu2", "-H", "gpu2,gpu1"], "name different hosts"),
        (["-H", "gpu1", "--host", "gpu2"], "name different hosts"),
    ],
)
def test_wrong_usage_is_2_and_touches_nothing(desk: Desk, words: list[str], said: str) -> None:
    desk.hosts(MANY)
    fleet = Fleet()
    ended = desk.run(fleet, "prep", *words)
    assert ended.code == 2
    assert said in " ".join(ended.err.split())
    assert fleet.opened == []


@pytest.mark.parametrize("words", [["prep", "--host", "gpu1,gpu2"], ["prep", "-H", "gpu1,gpu2"], ["-H", "gpu1, gpu2", "prep"]])
def test_hosts_are_named_with_commas_by_either_flag(desk: Desk, words: list[str]) -> None:
    desk.hosts(MANY)
    fleet = Fleet()
    assert desk.run(fleet, *words).code == 0
    assert sorted(fleet.opened) == ["gpu1 host", "gpu2 host"]


def test_all_leaves_out_hosts_without_a_profile_and_says_so(desk: Desk) -> None:
    desk.hosts({"bastion": "", **MANY})
    fleet = Fleet()
    ended = desk.run(fleet, "prep", "--host", "all")
    assert "left out, as hosts.yml names no tuning: for them: bastion" in ended.out
    assert sorted(fleet.opened) == [f"{name} host" for name in MANY]
    assert len(desk.run(Fleet(), "prep", "--host", "all", "--profile", "plain", "--json").document["hosts"]) == 6


def test_a_host_named_by_its_container_is_set_itself(desk: Desk) -> None:
    desk.hosts(ONE)
    fleet = Fleet()
    ended = desk.run(fleet, "prep", "--host", "gpu1/101")
    assert "gpu1/101 is on gpu1: knobs of the host are set on gpu1 itself" in ended.out
    assert [label for label, _ in fleet.asked] == ["gpu1 host"]


def test_a_host_that_can_not_be_reached_is_shown_by_its_container(desk: Desk) -> None:
    desk.hosts(ONE)
    by_hand = ["sysctl -w kernel.numa_balancing=0"]
    shown = report(knob(NUMA, KnobOutcome.NOT_SETTABLE, detail="this is a container; on gpu1 type", commands=by_hand))
    ended = desk.run(Fleet({"gpu1 container": shown}, {"gpu1 host": NO_ANSWER}), "prep")
    assert ended.code == 4
    assert "gpu1: no answer from 127.0.0.1:22 within 10 s" in ended.err
    assert "next: ping 127.0.0.1" in ended.err
    assert "gpu1 as gpu1/101 shows it: profile fast" in ended.out
    assert "not settable from here: kernel.numa_balancing: this is a container" in ended.out
    assert "    sysctl -w kernel.numa_balancing=0" in ended.out.splitlines()
    assert ended.out.splitlines()[-1] == "gpu1: 1 knob: 1 not settable from here; nothing was changed"


def test_a_revert_on_a_host_that_can_not_be_reached_does_not_say_that_nothing_is_kept(desk: Desk) -> None:
    desk.hosts(ONE)
    ended = desk.run(Fleet({"gpu1 container": report()}, {"gpu1 host": NO_ANSWER}), "prep", "--revert")
    assert ended.code == 4
    assert "no originals" not in ended.out
    assert ended.out.splitlines()[-1] == "gpu1: not done"


def test_what_to_type_next_names_the_profile_that_was_named(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet({f"{host} host": report(DRIFTED) for host in MANY})
    check = desk.run(fleet, "prep", "--host", "gpu1", "--profile", "fast", "--check")
    many = desk.run(fleet, "prep", "--host", "gpu1,gpu2", "--profile", "fast", "--check")
    assert check.out.splitlines()[-1] == "next: fab prep --profile fast --host gpu1"
    assert "next: fab prep --profile fast --host gpu1,gpu2" in many.out.splitlines()


def test_knobs_of_which_the_same_is_to_be_said_share_a_line(desk: Desk) -> None:
    desk.hosts(ONE)
    why = "not written, as its original value can't be kept: /var/lib/orchestrator/.host: No space left on device"
    failed = [knob(which, KnobOutcome.FAILED, detail=why, commands=[command]) for which, command in ((NUMA, "first"), (GOVERNOR, "second"))]
    lines = desk.run(Fleet({"gpu1 host": report(*failed)}), "prep").out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("failed: kernel.numa_balancing, cpu_governor: not written"))
    assert lines[at + 2 : at + 4] == ["    first", "    second"]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (
            Persistence("fast", "u.service", True, "inactive", problem="u.service was changed by hand"),
            "at boot: u.service was changed by hand",
        ),
        (Persistence("fast", "u.service", False, "inactive"), "at boot: u.service is not enabled"),
        (Persistence("fast", "u.service", True, "failed"), "at boot: u.service failed at this boot"),
    ],
)
def test_what_is_broken_at_boot_is_told_of_many_hosts_too(desk: Desk, there: Persistence, said: str) -> None:
    desk.hosts(MANY)
    ended = desk.run(Fleet({"gpu2 host": report(same(), persistence=there)}), "prep", "--host", "all", "--check")
    assert ended.code == 0
    assert f"      {said}" in ended.out.splitlines()


def test_a_broken_unit_is_removed_before_it_is_made_anew(desk: Desk) -> None:
    desk.hosts(ONE)
    broken = Persistence("slow", "u.service", True, "inactive", problem="u.service was changed by hand", notes=["a later file sets it"])
    lines = desk.run(Fleet({"gpu1 host": report(same(), persistence=broken)}), "prep").out.splitlines()
    assert "next: fab prep --unpersist --host gpu1 && fab prep --persist --profile slow --host gpu1" in lines
    assert "note: a later file sets it" in lines


def test_all_that_many_hosts_can_come_to_fits_80_columns(desk: Desk) -> None:
    desk.hosts(MANY)
    outcomes = [KnobOutcome.SAME, KnobOutcome.CHANGED, KnobOutcome.FAILED, KnobOutcome.NOT_SETTABLE, KnobOutcome.TOLD, KnobOutcome.UNKNOWN,
                KnobOutcome.UNAVAILABLE]  # fmt: skip
    fleet = Fleet({"gpu1 host": report(*(knob(HMM, outcome, "1") for outcome in outcomes))})
    lines = desk.run(fleet, "prep", "--host", "all").out.splitlines()
    assert [line for line in lines[:-1] if len(line) > 80 and "inventory" not in line] == []


def test_a_stopped_container_is_told_beside_the_hosts_part(desk: Desk) -> None:
    desk.hosts({"gpu1": f"tuning: fast, {BY_PCT}"}, container_knobs=True)
    stopped = ContainerError("gpu1/101: container 101 on gpu1 is not running", next_step="on gpu1: pct start 101")
    ended = desk.run(Fleet({"gpu1 host": report(changed())}, {"gpu1 container": stopped}), "prep")
    assert ended.code == 4
    assert "next: on gpu1: pct start 101" in ended.err
    assert "gpu1: 1 knob: 1 changed" in ended.out


def test_many_hosts_are_one_table_one_summary_and_one_exit_code(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet(
        {
            "gpu1 host": report(changed(), same(GOVERNOR)),
            "gpu2 host": report(READ_REQUESTS, same(GOVERNOR)),
            "gpu4 host": report(TOLD, same()),
        },
        {"gpu3 host": NO_ANSWER},
    )
    ended = desk.run(fleet, "prep", "--host", "all")
    assert ended.code == 1
    lines = ended.out.splitlines()
    header = next(index for index, line in enumerate(lines) if line.startswith("  host"))
    assert lines[header].split("  ")[1] == "host"
    rows = [line.split()[0] for line in lines[header + 1 :] if re.match(r"  gpu\d", line)]
    assert rows == list(MANY)
    assert sum(bool(re.match(r"\d\d:\d\d:\d\d  \d/5  gpu\d: ", line)) for line in lines) == 5
    assert any(line.endswith("asking 5 hosts, 5 at a time, at most 120 s each") for line in lines)
    assert "gpu3, next: ping 127.0.0.1" in ended.err
    (folder,) = desk.runs
    assert lines[-3:] == [
        "next: fab prep --plan --host gpu2   # what is left to do; also for gpu4",
        "5 hosts: 2 in order, 1 with drift, 1 failed, 1 not reached; 1 knob changed",
        f"kept in {folder}",
    ]
    assert folder.name.endswith("-prep-5-hosts")
    assert [line for line in lines[:-1] if len(line) > 80 and "inventory" not in line] == []


UNREADABLE = knob(NUMA, KnobOutcome.UNKNOWN, {}, detail="could not be read: Permission denied; root may be able to: set `become: sudo`")


def test_a_knob_that_can_not_be_read_is_not_proven_and_8(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet({"gpu1 host": report(UNREADABLE, same(GOVERNOR))})
    ended = desk.run(fleet, "prep", "--check", "--host", "gpu1")
    assert ended.code == 8
    said = " ".join(ended.out.split())
    assert "kernel.numa_balancing: not proven: could not be read: Permission denied; root may be able to: set `become: sudo`" in said
    assert "gpu1: 2 knobs: 1 as wanted, 1 not proven" in said
    assert ended.out.splitlines()[-1] == "next: fab prep --plan --host gpu1   # what is left to do by hand"
    many = desk.run(fleet, "prep", "--check", "--host", "gpu1,gpu2")
    assert many.code == 8
    assert "2 hosts: 1 in order, 1 with drift" in many.out
    observed = knob(KnobSetting("cpu_governor"), KnobOutcome.UNKNOWN, {}, detail="could not be read")
    assert desk.run(Fleet({"gpu1 host": report(observed)}), "prep", "--check", "--host", "gpu1").code == 0


def test_a_plan_for_many_counts_the_hosts_that_would_change(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet({f"gpu{number} host": report(DRIFTED) for number in (1, 2, 3)})
    ended = desk.run(fleet, "prep", "--plan", "--host", "all")
    assert ended.code == 0
    assert ended.out.splitlines()[-2:] == [
        "5 hosts: 2 in order, 3 would change",
        "ready: the same without --plan does it: fab prep --host all",
    ]
    back = desk.run(fleet, "prep", "--plan", "--revert", "--host", "all")
    assert back.out.splitlines()[-2:] == [
        "5 hosts: 2 in order, 3 would go back",
        "ready: the same without --plan does it: fab prep --host all --revert",
    ]


@pytest.mark.parametrize(
    ("answered", "verdict"),
    [
        (report(same()), "nothing to do: all is as wanted"),
        (report(knob(NUMA, KnobOutcome.NOT_SETTABLE, detail="it needs root here")), "nothing to do from here: what is left takes a person"),
        (ConnectError("gpu1: closed"), "would be refused: nothing is known of gpu1"),
        (report(DRIFTED), "ready: the same without --plan does it: fab prep"),
    ],
)
def test_the_last_line_of_a_plan_is_its_verdict(desk: Desk, answered: Any, verdict: str) -> None:
    desk.hosts(ONE)
    assert desk.run(Fleet({"gpu1 host": answered}), "prep", "--plan").out.splitlines()[-1] == verdict


def test_a_check_of_many_says_what_to_type_for_all_of_them(desk: Desk) -> None:
    desk.hosts(MANY)
    by_hand = knob(NUMA, KnobOutcome.NOT_SETTABLE, detail="it needs root here")
    fleet = Fleet({"gpu1 host": report(by_hand), "gpu2 host": report(DRIFTED), "gpu4 host": report(DRIFTED), "gpu5 host": report(by_hand)})
    lines = desk.run(fleet, "prep", "--check", "--host", "all").out.splitlines()
    assert [line for line in lines if line.startswith("next: ")] == [
        "next: fab prep --host gpu2,gpu4",
        "next: fab prep --plan --host gpu1   # what is left to do; also for gpu5",
    ]


@pytest.mark.parametrize(
    ("there", "knobs", "step"),
    [
        ({"state": "failed"}, [DRIFTED], "fab prep --host gpu1"),
        ({"state": "failed"}, [same()], "on gpu1, as root: systemctl restart orchestrator-prep.service   # whether it holds now"),
        ({"state": "failed", "profile": "plain"}, [same()], "fab prep --check --profile plain --host gpu1"),
        ({"enabled": False}, [DRIFTED], "fab prep --unpersist --host gpu1 && fab prep --persist --profile fast --host gpu1"),
        ({"problem": "changed by hand"}, [same()], "fab prep --unpersist --host gpu1 && fab prep --persist --profile fast --host gpu1"),
        ({}, [same()], None),
    ],
)
def test_a_check_names_one_next_step_that_fits_the_cause(desk: Desk, there: dict[str, Any], knobs: list[Any], step: str | None) -> None:
    desk.hosts(ONE)
    fleet = Fleet({"gpu1 host": report(*knobs, persistence=dataclasses.replace(UNIT, **there))})
    lines = desk.run(fleet, "prep", "--check").out.splitlines()
    assert [line for line in lines if line.startswith("next: ")] == ([f"next: {step}"] if step else [])


def test_a_revert_of_many_says_where_nothing_was_kept(desk: Desk) -> None:
    desk.hosts(MANY)
    ended = desk.run(Fleet({"gpu1 host": report(), "gpu2 host": report()}), "prep", "--revert", "--host", "gpu1,gpu2")
    assert [line.strip() for line in ended.out.splitlines()].count("no originals are kept: nothing to put back") == 2


def test_rights_that_are_missing_on_a_host_are_8_for_a_revert_too_and_leave_no_run(desk: Desk) -> None:
    desk.hosts(ONE)
    refused = NotRootError("gpu1: the original values can't be read, so nothing was reverted", next_step="set `become: sudo` for this host")
    ended = desk.run(Fleet({"gpu1 host": refused, "gpu1 container": report()}), "prep", "--revert")
    assert (ended.code, desk.runs) == (8, [])
    assert "next: set `become: sudo` for this host" in ended.err


def test_the_document_has_the_same_shape_for_one_and_for_many(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet({"gpu1 host": report(changed())}, {"gpu2 host": NO_ANSWER})
    one, many = (desk.run(fleet, "prep", "--host", names, "--json") for names in ("gpu1", "gpu1,gpu2"))
    assert (one.code, many.code) == (0, 4)
    for ended in (one, many):
        document = ended.document
        assert (document["schema"], document["verb"]) == ("1", "prep")
        assert document["mode"] == "apply"
        assert document["exit_code"] == ended.code
        first = document["hosts"][0]
        assert first["places"][0]["report"]["results"][0]["after"] == {"": "0"}
        assert (first["host"], first["profile"], first["counts"]) == ("gpu1", "fast", {"changed": 1})
        assert Path(document["run"]) in desk.runs
    assert one.document["hosts"][0].keys() == many.document["hosts"][1].keys()
    error = many.document["hosts"][1]["error"]
    assert (error["exit_code"], error["next_step"]) == (4, "ping 127.0.0.1")
    assert "gpu2: no answer" not in many.out.partition("{")[0]


@pytest.mark.parametrize(
    ("words", "mode"),
    [(["--check"], "check"), (["--plan"], "plan apply"), (["--plan", "--revert"], "plan revert"), (["--unpersist"], "unpersist")],
)
def test_the_document_says_what_was_asked_for(desk: Desk, words: list[str], mode: str) -> None:
    desk.hosts(ONE)
    assert desk.run(Fleet(), "prep", "--json", *words).document["mode"] == mode


def test_what_is_not_foreseen_in_one_host_leaves_its_traceback_in_a_file_and_harms_no_other(desk: Desk) -> None:
    desk.hosts(MANY)
    fleet = Fleet({"gpu2 host": ZeroDivisionError("oh"), "gpu3 host": KeyError("ah"), "gpu1 host": report(changed())})
    ended = desk.run(fleet, "prep", "--host", "all")
    assert ended.code == 1
    assert "Traceback" not in ended.out + ended.err
    assert "failed in a way that was not foreseen" in " ".join(ended.out.split())
    (folder,) = desk.runs
    assert f"traceback: {folder}/traceback.txt" in ended.err
    kept = (folder / "traceback.txt").read_text(encoding="utf-8")
    assert "ZeroDivisionError: oh" in kept
    assert "KeyError: 'ah'" in kept


def test_ctrl_c_shows_what_is_known_and_is_130(desk: Desk) -> None:
    desk.hosts({"gpu1": "tuning: fast"})
    never = threading.Event()

    def interrupt_and_hang() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # to the process, as a terminal does
        never.wait(30)

    started = time.monotonic()
    ended = desk.run(Fleet(waits={"gpu1 host": interrupt_and_hang}), "prep")
    assert time.monotonic() - started < 5
    never.set()
    assert ended.code == 130
    assert "gpu1: interrupted here; what was begun goes on there to its end" in ended.err
    assert "next: fab prep --check --host gpu1" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_ctrl_c_ends_the_process_at_once_although_a_host_hangs(tmp_path: Path) -> None:
    """A host that accepts connections and says nothing would be waited for ten seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_tuned(tmp_path / "inventory", {"gpu1": f"port: {silent.getsockname()[1]}, tuning: fast"})
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "prep", "--json"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert time.monotonic() - started < 5, "it waited for the host"
    assert process.returncode == 130, err
    document = checked(out)
    assert document["exit_code"] == 130
    assert "nothing was touched" in document["hosts"][0]["error"]["message"]
    assert "Traceback" not in err


def test_a_terminal_shows_each_row_in_the_tone_of_its_outcome() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, highlight=False, soft_wrap=True, color_system="standard", no_color=False)
    screen = TerminalScreen(Redactor(), console, console)
    table = knob_table([changed(), READ_REQUESTS, same(KnobSetting("transparent_hugepage", value="madvise"))])
    screen.show([table])
    shown = stream.getvalue().splitlines()
    assert any("\x1b[32m" in line and "kernel.numa_balancing" in line for line in shown)
    assert any("\x1b[1;31m" in line and "failed" in line for line in shown)
    assert all(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) <= 80 for line in shown)
