"""Which places of which hosts are asked for what, and what becomes of their answers."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_host import FactName, KnobOutcome, KnobSetting, Persistence, PersistenceAction, TuneAction
from orchestrator.config import Inventory
from orchestrator.errors import (
    AgentError,
    ConnectError,
    ConnectionLostError,
    ContainerError,
    InterruptedByOperatorError,
    LockedError,
    OrchestratorError,
    RightsError,
    UsageError,
    worst,
)
from orchestrator.flows.prep import HostPrep, PrepOptions, prep, prep_all
from tests.unit.flows.tuned import BY_PCT, BY_SSH, HMM, NUMA, Fleet, changed, knob, report, same, write_tuned

NO_ANSWER = ConnectError("gpu1: no answer from 127.0.0.1:22 within 10 s", next_step="ping 127.0.0.1")
READ = PrepOptions(write=False)
PLAN = PrepOptions(write=False, plan=True)
UNIT = Persistence("fast", "orchestrator-prep.service", enabled=True, state="active")


def prepared(inventory: Inventory, fleet: Fleet, options: PrepOptions = PrepOptions(), profile: str | None = "fast") -> HostPrep:  # noqa: B008
    host = inventory.host("gpu1")
    return prep(inventory, host, inventory.tuning(profile) if profile else None, options, fleet.open)


def prepared_all(inventory: Inventory, fleet: Fleet, options: PrepOptions = PrepOptions(), **more: Any) -> list[HostPrep]:  # noqa: B008
    return prep_all(inventory, list(inventory.hosts.values()), "fast", options, open=fleet.open, **{"told": lambda _: None, **more})


def test_a_host_is_asked_once_and_its_container_only_for_orders_at_work(tmp_path: Path) -> None:
    fleet = Fleet()
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet, PrepOptions(reason="night shift"))
    assert sorted(fleet.opened) == ["gpu1 container", "gpu1 host"]
    assert fleet.requests("gpu1 container") == []
    (request,) = fleet.requests("gpu1 host")
    assert (request.profile, request.place, request.write, request.action) == ("fast", "host", True, TuneAction.APPLY)
    assert (request.state_root, request.reason) == ("/var/lib/orchestrator", "night shift")
    assert [setting.kind for setting in request.settings] == ["sysctl", "cpu_governor"]
    assert "@" in request.operator
    assert (done.host, done.profile, done.exit_code, len(done.results)) == ("gpu1", "fast", 0, 2)


def test_host_and_container_are_asked_at_once_when_the_profile_has_knobs_in_both(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    fleet = Fleet(waits={"gpu1 host": both.wait, "gpu1 container": both.wait})
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}, container_knobs=True), fleet)
    assert [(part.kind, part.label, len(part.results)) for part in done.reports] == [("host", "gpu1", 2), ("container", "gpu1/101", 1)]
    assert done.warnings == []


def test_container_knobs_of_a_host_without_container_are_told_and_left_out(tmp_path: Path) -> None:
    done = prepared(write_tuned(tmp_path, {"gpu1": ""}, container_knobs=True), Fleet())
    assert done.warnings == ["fast has 1 knob for a container, and gpu1 has none: left out"]
    assert done.exit_code == 0


def test_of_a_host_that_can_not_be_reached_the_container_shows_the_values_and_sets_none(tmp_path: Path) -> None:
    def shown(request: Any) -> Any:
        return report(knob(NUMA, KnobOutcome.NOT_SETTABLE, commands=["sysctl -w kernel.numa_balancing=0"]), knob(NUMA, "would_change"))

    fleet = Fleet({"gpu1 container": shown}, {"gpu1 host": NO_ANSWER})
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet)
    (request,) = fleet.requests("gpu1 container")
    assert (request.write, request.place, len(request.settings)) == (False, "container", 2)
    assert done.error is NO_ANSWER
    assert [result.outcome for result in done.results] == [KnobOutcome.NOT_SETTABLE, KnobOutcome.NOT_SETTABLE]
    assert done.reports[1].stands_in
    assert done.exit_code == 4


@pytest.mark.parametrize(
    ("container", "error", "asked"),
    [
        (BY_SSH, RightsError("sudo wants a password"), True),
        (BY_PCT, NO_ANSWER, False),
        (BY_PCT, RightsError("sudo wants a password"), True),
        (BY_SSH, AgentError("it was killed"), False),
        (BY_SSH, LockedError("another prep"), False),
        (BY_SSH, ConnectionLostError("lost"), False),
        ("", NO_ANSWER, False),
    ],
)
def test_the_container_stands_in_where_it_may_be_reached(tmp_path: Path, container: str, error: OrchestratorError, asked: bool) -> None:
    fleet = Fleet(unreachable={"gpu1 host": error})
    done = prepared(write_tuned(tmp_path, {"gpu1": container}), fleet)
    assert bool(fleet.requests("gpu1 container")) == asked
    assert done.exit_code == error.exit_code


def test_a_container_that_does_not_run_yet_leaves_the_hosts_part_done(tmp_path: Path) -> None:
    stopped = ContainerError("gpu1/101: container 101 on gpu1 is not running")
    fleet = Fleet({"gpu1 host": report(changed())}, {"gpu1 container": stopped})
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_PCT}, container_knobs=True), fleet)
    assert done.error is None
    assert done.reports[1].error is stopped
    assert [result.outcome for result in done.results] == [KnobOutcome.CHANGED]
    assert done.exit_code == 4


def test_a_revert_asks_the_container_too_and_does_not_need_it(tmp_path: Path) -> None:
    inventory = write_tuned(tmp_path, {"gpu1": BY_SSH})
    fleet = Fleet(unreachable={"gpu1 container": ContainerError("it is not running")})
    done = prepared(inventory, fleet, PrepOptions(action=TuneAction.REVERT), profile=None)
    assert set(fleet.opened) == {"gpu1 container", "gpu1 host"}
    assert fleet.requests("gpu1 host")[0].settings == []
    assert done.warnings == ["whether originals are kept in gpu1/101 is not known: it is not running"]
    assert done.exit_code == 0


def test_what_is_done_at_boot_is_asked_of_the_host_alone(tmp_path: Path) -> None:
    fleet = Fleet({"gpu1 host": report(same(), persistence=UNIT)})
    done = prepared(
        write_tuned(tmp_path, {"gpu1": BY_SSH}, container_knobs=True), fleet, PrepOptions(persistence=PersistenceAction.INSTALL)
    )
    assert fleet.requests("gpu1 host")[0].persistence == PersistenceAction.INSTALL
    assert fleet.requests("gpu1 container")[0].persistence == PersistenceAction.KEEP
    assert done.warnings == ["1 knob of gpu1's container: after each start of it, run fab prep again"]
    assert done.exit_code == 0


def test_removing_what_is_done_at_boot_touches_no_knob(tmp_path: Path) -> None:
    fleet = Fleet()
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet, PrepOptions(persistence=PersistenceAction.REMOVE))
    assert fleet.opened == ["gpu1 host"]
    assert fleet.requests("gpu1 host")[0].settings == []
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("options", "there", "code"),
    [
        (PrepOptions(persistence=PersistenceAction.INSTALL), None, 1),
        (PrepOptions(persistence=PersistenceAction.INSTALL), Persistence("fast", "u", enabled=False, state="inactive"), 1),
        (PrepOptions(persistence=PersistenceAction.INSTALL), Persistence("fast", "u", True, "inactive", problem="somebody's unit"), 1),
        (PrepOptions(persistence=PersistenceAction.INSTALL, write=False, plan=True), None, 0),
        (PrepOptions(persistence=PersistenceAction.REMOVE), UNIT, 1),
        (PrepOptions(action=TuneAction.REVERT), UNIT, 1),
        (PrepOptions(), Persistence("fast", "u", enabled=True, state="failed"), 0),
    ],
)
def test_what_did_not_come_about_for_the_next_boot_is_a_failure(
    tmp_path: Path, options: PrepOptions, there: Persistence | None, code: int
) -> None:
    fleet = Fleet({"gpu1 host": report(persistence=there)})
    assert prepared(write_tuned(tmp_path, {"gpu1": ""}), fleet, options).exit_code == code


@pytest.mark.parametrize(
    ("outcome", "applied", "checked", "planned"),
    [
        (KnobOutcome.SAME, 0, 0, 0),
        (KnobOutcome.CHANGED, 0, 0, 0),
        (KnobOutcome.OBSERVED, 0, 0, 0),
        (KnobOutcome.WOULD_CHANGE, 8, 8, 0),
        (KnobOutcome.TOLD, 8, 8, 8),
        (KnobOutcome.NOT_SETTABLE, 8, 8, 8),
        (KnobOutcome.UNAVAILABLE, 0, 0, 0),
        (KnobOutcome.UNKNOWN, 8, 8, 8),
        (KnobOutcome.FAILED, 1, 1, 1),
    ],
)
def test_the_exit_code_of_each_outcome(tmp_path: Path, outcome: str, applied: int, checked: int, planned: int) -> None:
    inventory = write_tuned(tmp_path, {"gpu1": ""})
    fleet = Fleet({"gpu1 host": report(same(), knob(NUMA, outcome))})
    assert [prepared(inventory, fleet, options).exit_code for options in (PrepOptions(), READ, PLAN)] == [applied, checked, planned]


def test_the_worst_exit_code_counts() -> None:
    in_order = [130, 1, 4, 5, 8, 0]
    for position, code in enumerate(in_order):
        assert worst(list(reversed(in_order[position:]))) == code
    assert worst([0, 77, 4]) == 77


def test_a_knob_that_failed_is_worse_than_a_container_that_was_not_reached(tmp_path: Path) -> None:
    fleet = Fleet({"gpu1 host": report(knob(NUMA, KnobOutcome.FAILED))}, {"gpu1 container": ContainerError("stopped")})
    assert prepared(write_tuned(tmp_path, {"gpu1": BY_PCT}, container_knobs=True), fleet).exit_code == 1


def test_a_container_of_another_machine_is_told(tmp_path: Path) -> None:
    fleet = Fleet({"gpu1 host": report(same()), "gpu1 container": report(same(), booted=1764400099.0)})
    (warning,) = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}, container_knobs=True), fleet).warnings
    assert "gpu1/101 does not run on gpu1" in warning


def test_a_host_that_is_a_container_itself_is_told(tmp_path: Path) -> None:
    fleet = Fleet({"gpu1 host": report(same(), facts=[wire.Fact(FactName.CONTAINER, "lxc", "/run/systemd/container")])})
    (warning,) = prepared(write_tuned(tmp_path, {"gpu1": ""}), fleet).warnings
    assert "gpu1 is itself a container (lxc)" in warning


def test_a_lost_connection_is_followed_by_a_check(tmp_path: Path) -> None:
    fleet = Fleet({"gpu1 host": ConnectionLostError("gpu1: closed", next_step="fab status --host gpu1")})
    error = prepared(write_tuned(tmp_path, {"gpu1": ""}), fleet).error
    assert error is not None
    assert error.next_step == "fab prep --check --profile fast --host gpu1"


FOUR = {f"gpu{number}": "tuning: fast" for number in range(1, 5)}


def test_many_hosts_come_in_the_order_asked_and_are_told_as_they_come(tmp_path: Path) -> None:
    last = threading.Event()
    fleet = Fleet(waits={"gpu1 host": lambda: last.wait(10)})
    told: list[str] = []

    def hear(done: HostPrep) -> None:
        told.append(done.host)
        if len(told) == 3:
            last.set()

    done = prepared_all(write_tuned(tmp_path, FOUR), fleet, told=hear)
    assert [prep.host for prep in done] == list(FOUR)
    assert sorted(told[:3]) == ["gpu2", "gpu3", "gpu4"]
    assert told[3] == "gpu1"


def test_no_more_hosts_than_the_bound_are_asked_at_the_same_time(tmp_path: Path) -> None:
    lock = threading.Lock()
    at_work, most = 0, 0

    def visit() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.01)
        with lock:
            at_work -= 1

    hosts = {f"gpu{number}": "" for number in range(1, 21)}
    prepared_all(write_tuned(tmp_path, hosts), Fleet(waits={f"{name} host": visit for name in hosts}), bound=3)
    assert most == 3


def test_one_host_that_fails_in_an_unforeseen_way_harms_no_other(tmp_path: Path) -> None:
    fleet = Fleet({"gpu2 host": ZeroDivisionError("oh")}, {"gpu3 host": NO_ANSWER, "gpu4 host": SystemExit(3)})
    done = prepared_all(write_tuned(tmp_path, FOUR), fleet)
    assert [prep.exit_code for prep in done] == [0, 1, 4, 1]
    assert done[1].error is not None
    assert "gpu2: failed in a way that was not foreseen: ZeroDivisionError: oh" in done[1].error.message
    assert isinstance(done[1].error.__cause__, ZeroDivisionError)


def test_hosts_without_a_profile_are_refused_before_any_is_touched(tmp_path: Path) -> None:
    inventory = write_tuned(tmp_path, {"gpu1": "tuning: fast", "gpu2": ""})
    hosts = list(inventory.hosts.values())
    fleet = Fleet()
    with pytest.raises(UsageError, match="gpu2 has no tuning profile"):
        prep_all(inventory, hosts, None, PrepOptions(), lambda _: None, open=fleet.open)
    assert fleet.opened == []
    done = prep_all(inventory, hosts, None, PrepOptions(action=TuneAction.REVERT), lambda _: None, open=fleet.open)
    assert [prep.profile for prep in done] == ["fast", ""]


def test_each_host_has_its_own_profile_unless_one_is_named(tmp_path: Path) -> None:
    inventory = write_tuned(tmp_path, {"gpu1": "tuning: fast", "gpu2": "tuning: plain"})
    hosts = list(inventory.hosts.values())
    own = prep_all(inventory, hosts, None, PrepOptions(), lambda _: None, open=Fleet().open)
    named = prep_all(inventory, hosts, "plain", PrepOptions(), lambda _: None, open=Fleet().open)
    assert [prep.profile for prep in own + named] == ["fast", "plain", "plain", "plain"]


def test_ctrl_c_ends_the_wait_with_what_is_known(tmp_path: Path) -> None:
    """gpu1 has answered, gpu2 was asked, gpu3 is being connected to, gpu4 waits its turn."""
    asked, connecting, never = threading.Event(), threading.Event(), threading.Event()

    class Slow(Fleet):
        def open(self, inventory: Any, host: Any, kind: str) -> Any:
            if host.name == "gpu3":
                connecting.set()
                never.wait(30)
            return super().open(inventory, host, kind)

    def hang() -> None:
        asked.set()
        never.wait(30)

    def interrupt() -> None:
        assert asked.wait(10)
        assert connecting.wait(10)
        signal.raise_signal(signal.SIGINT)

    def hear(done: HostPrep) -> None:
        assert done.host == "gpu1"
        interrupt()

    fleet = Slow(waits={"gpu2 host": hang})
    started = time.monotonic()
    done = prepared_all(write_tuned(tmp_path, FOUR), fleet, told=hear, bound=2)
    assert time.monotonic() - started < 5
    never.set()
    assert [prep.exit_code for prep in done] == [0, 130, 130, 130]
    texts = [str(prep.error) for prep in done[1:]]
    assert "what was begun goes on there to its end" in texts[0]
    assert all("nothing was touched" in text for text in texts[1:])
    assert all(isinstance(prep.error, InterruptedByOperatorError) for prep in done[1:])
    for thread in threading.enumerate():
        if thread.name.startswith("side-by-side"):
            thread.join(10)
    assert {label for label, _ in fleet.asked} == {"gpu1 host", "gpu2 host"}, "nothing is asked after Ctrl-C"
    assert "gpu4 host" not in fleet.opened, "nothing is begun after Ctrl-C"


def test_settings_are_sent_as_the_profile_has_them(tmp_path: Path) -> None:
    fleet = Fleet()
    prepared(write_tuned(tmp_path, {"gpu1": ""}), fleet)
    assert fleet.requests("gpu1 host")[0].settings[0] == KnobSetting("sysctl", "kernel.numa_balancing", "0")
    assert HMM not in fleet.requests("gpu1 host")[0].settings


AT_WORK = wire.OrderStatus("O7", "relaunch", "LOADING", True, 1764400000.0, "kim@laptop", service="glm5")


def waiting(seconds: float) -> PrepOptions:
    return PrepOptions(wait=seconds)


@pytest.mark.parametrize("options", [READ, PLAN, PrepOptions(persistence=PersistenceAction.REMOVE)])
def test_a_container_is_not_even_asked_where_no_knob_is_written(tmp_path: Path, options: PrepOptions) -> None:
    fleet = Fleet(at_work=[[AT_WORK]])
    assert prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet, options).exit_code == 0
    assert fleet.opened == ["gpu1 host"]


def test_a_host_is_not_set_while_a_service_in_its_container_is_changed(tmp_path: Path) -> None:
    fleet = Fleet(at_work=[[AT_WORK]] * 2)
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet)
    assert isinstance(done.error, LockedError)
    assert "gpu1/101 is being changed: order O7 is at work on glm5: relaunch by kim@laptop" in done.error.message
    assert fleet.requests("gpu1 host") == []
    assert done.exit_code == 5


def test_a_host_waits_for_its_container_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.flows.guest.POLL_SECONDS", 0.01)
    fleet, notes = Fleet(at_work=[[AT_WORK]] * 3), list[str]()
    inventory = write_tuned(tmp_path, {"gpu1": BY_SSH})
    done = prep(inventory, inventory.host("gpu1"), inventory.tuning("fast"), waiting(30.0), fleet.open, note=notes.append)
    assert (done.exit_code, len(notes)) == (0, 1)
    assert "gpu1 waits for up to 30 s: order O7 is at work on glm5" in notes[0]
    assert fleet.at_work == []
    assert fleet.requests("gpu1 host")[0].wait == 30.0


@pytest.mark.parametrize(
    ("error", "warned"), [(NO_ANSWER, True), (ContainerError("gpu1/101: container 101 on gpu1 is not running"), False)]
)
def test_a_container_that_can_not_be_asked_keeps_no_host_from_being_set(tmp_path: Path, error: OrchestratorError, warned: bool) -> None:
    fleet = Fleet(unreachable={"gpu1 container": error})
    done = prepared(write_tuned(tmp_path, {"gpu1": BY_SSH}), fleet)
    assert (done.exit_code, len(fleet.requests("gpu1 host"))) == (0, 1)
    assert ["is being changed is not known" in warning for warning in done.warnings] == [True] * warned


def test_for_whom_the_host_itself_waits_is_told(tmp_path: Path) -> None:
    class Telling(Fleet):
        def answer(self, label: str, request: Any) -> list[Any]:
            waits = wire.Event(wire.EventKind.PROGRESS, wire.to_json(wire.Progress("PREP", "waiting", 1.0, "order O8 is at work on tiny")))
            return [waits, waits, *super().answer(label, request)]

    fleet, notes = Telling(), list[str]()
    inventory = write_tuned(tmp_path, {"gpu1": ""})
    done = prep(inventory, inventory.host("gpu1"), inventory.tuning("fast"), waiting(9.0), fleet.open, note=notes.append)
    assert notes == ["gpu1 waits for up to 9 s: order O8 is at work on tiny"]
    assert (done.exit_code, len(done.results)) == (0, 2)
