"""The process that carries an order out, next to the server and independent of the operator's connection.

It has its own copy of the order and of the code, in the order's folder. Under systemd it is started again when it is killed, and after
a restart of the machine by a unit that exists only while an order is open (:mod:`resumption`); without systemd ``resume`` starts it
again. Either way it goes on from its journal.
"""

import contextlib
import errno
import json
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from orchestrator.agent import copies, crash_points, resumption, wire
from orchestrator.agent.archive import agent_archive
from orchestrator.agent.clock import Deadline, steady, wait_until
from orchestrator.agent.follow import order_secrets, told_by_journal, wait_for_journal
from orchestrator.agent.history import RESULT, History, read_history
from orchestrator.agent.host_folder import HostFolder
from orchestrator.agent.journal import JOURNAL, Journal, ServiceLock, lock_holder, order_status, read_journal
from orchestrator.agent.locks import (
    GpuLocks,
    environments_of,
    person_lock,
    refuse_when_held,
    refuse_when_interrupted,
    refuse_when_locked,
    refuse_when_preparing,
    union_of_gpus,
)
from orchestrator.agent.notice import Teller
from orchestrator.agent.own_session import boot_identity
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import launch_scrubber
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire_words import gpu_held_by, held_by, locked_by

if TYPE_CHECKING:
    from orchestrator.agent.box_steps import BoxSteps
    from orchestrator.agent.ranks import Group

_START_SECONDS = 20.0
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1] + "/agent.zip")
from orchestrator.agent.supervisor import main
main(sys.argv[1])
"""
"""A file, as a transient unit whose command holds ``;`` or quotes can't be started again after a daemon-reload (systemd 252)."""
_RESTART = [*resumption.RESTART, "StartLimitIntervalSec=3600", "StartLimitBurst=12"]
"""More often than the state machine goes on by itself (:data:`walk.MOST_RESUMES`), so that it has the last word."""
CANCEL = "cancel"
RANKS = "ranks.json"
_PREPARING_SECONDS = 10.0
"""How long a preparation of the machine is waited for: it is over in a moment, or something of it hangs."""
_GPU_SECONDS = 10.0
_RESTART_SECONDS = 2.0


def submit(order: wire.Order, emit: Callable[[str, Any], None]) -> wire.Submitted:
    """Keep the order and the code that carries it out in the state folder, start the supervisor, and see its first line.

    Raises:
        AgentRefusal: another order or a person holds the service (``locked``), an order was cut off half-way (``interrupted``), or
            the supervisor did not come up.
    """
    folder = StateFolder(order.state_root, order.service)
    folder.create()
    refuse_when_locked(folder)
    refuse_when_held(folder)
    refuse_when_preparing(order.state_root)
    refuse_when_interrupted(folder)
    copies.require(order)
    path = folder.order_folder(order.order_id)
    path.mkdir(mode=0o700)
    try:
        folder.note_order(order.order_id)
        write_private(path / "order.json", json.dumps(wire.to_json(order)))
        write_private(path / "agent.zip", agent_archive())
        write_private(path / "supervise.py", _PROGRAM)
        holder = _start(order.service, path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    if not wait_for_journal(path, _START_SECONDS):
        _withdraw(folder, path, holder)
    return wire.Submitted(order.order_id, holder)


def resume(reference: wire.OrderReference, emit: Callable[[str, Any], None]) -> wire.Submitted:
    """Start the supervisor of an order that was cut off again: it finishes or rolls back, with the code that began it.

    Raises:
        AgentRefusal: there is no such order, it has ended, or it is at work; or a person has locked the service.
    """
    folder = StateFolder(reference.state_root, reference.service)
    refuse_when_locked(folder)
    refuse_when_held(folder)
    status = order_status(folder, reference.order_id)
    if status is None or not status.state.startswith("INTERRUPTED"):
        told = "does not exist" if status is None else f"has ended: {status.state}"
        raise AgentRefusal("refused", f"there is nothing to resume: order {reference.order_id} {told}", next_step="fab status")
    if _restarted_by_systemd(folder, reference.order_id):
        return wire.Submitted(reference.order_id, "systemd has started its supervisor again")
    path = folder.order_folder(reference.order_id)
    if reference.ranks is not None:
        _keep_ranks(path, [*_known_ranks(path), *reference.ranks.standings])
    before = len(read_journal(path / JOURNAL))
    holder = _start(reference.service, path)
    if not wait_until(lambda: len(read_journal(path / JOURNAL)) > before, Deadline(_START_SECONDS)):
        log = path / "supervisor.log"
        raise AgentRefusal(
            "refused", f"the supervisor ({holder}) wrote nothing within {_START_SECONDS:.0f} s", _last_lines(log), f"less {log}"
        )
    return wire.Submitted(reference.order_id, holder)


def _restarted_by_systemd(folder: StateFolder, order_id: str) -> bool:
    """Whether its supervisor, which seemed to be gone, is back by itself."""
    from orchestrator.agent import systemd

    return systemd.is_available() and wait_until(lambda: lock_holder(folder) == order_id, Deadline(_RESTART_SECONDS))


def cancel(request: wire.Cancel, emit: Callable[[str, Any], None]) -> wire.OrderStatus:
    """Ask the supervisor of an order to stop safely: before the stop it changes nothing, after it the old server is brought back.

    Raises:
        AgentRefusal: the order is not at work.
    """
    folder = StateFolder(request.state_root, request.service)
    status = order_status(folder, request.order_id)
    cut_off = status is not None and status.state.startswith("INTERRUPTED")
    if status is None or not (status.live or (cut_off and _restarted_by_systemd(folder, request.order_id))):
        told = "does not exist" if status is None else f"is not at work: {status.state}"
        raise AgentRefusal("refused", f"order {request.order_id} {told}", next_step="fab status")
    write_private(folder.order_folder(request.order_id) / CANCEL, f"asked by {request.operator}\n")
    return status


def _start(service: str, path: Path) -> str:
    from orchestrator.agent.runner import start_detached

    return start_detached(f"orchestrator-{service}-order-{path.name}", _command(path), path / "supervisor.log", _RESTART)


def _command(path: Path) -> List[str]:
    return [sys.executable, "-I", "-S", str(path / "supervise.py"), str(path)]


def _withdraw(folder: StateFolder, path: Path, holder: str) -> None:
    """Take back an order that nobody has begun; one whose supervisor turns out to be at work stands.

    Under the lock, which a supervisor takes before it looks whether its order still stands.

    Raises:
        AgentRefusal: it was taken back.
    """
    lock = ServiceLock(folder)
    if not lock.take(path.name) and lock_holder(folder) == path.name:
        return
    log = path / "supervisor.log"
    evidence = _last_lines(log)
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    raise AgentRefusal("refused", f"the supervisor ({holder}) did not start within {_START_SECONDS:.0f} s; nothing was touched", evidence)


def _last_lines(log: Path) -> List[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []


def main(order_folder: str) -> None:
    """Carry out the order kept in `order_folder`. Runs in a unit or session of its own; talks through files only.

    Ends with status 0 whatever comes of the order: any other end means that it was killed, and that it is to be started again.
    """
    for ignored in (signal.SIGHUP, signal.SIGPIPE, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    steady.start()
    path = Path(order_folder)
    order = read_record(wire.Order, path / "order.json")
    if order is None:
        way_out = f"to give the order up, end what runs, move {path} away, and launch anew"
        print(f"{path / 'order.json'} is missing or damaged: nothing to do; {way_out}", flush=True)  # noqa: T201 - our log
        return
    supervise(order, path)


def supervise(order: wire.Order, path: Path) -> wire.OrderResult:
    """Take the service's lock and run the state machine from where its journal ends; always returns a result.

    What follows its end comes when the lock is free again: nothing of the order waits for it.
    """
    order = copies.filled(order)
    folder = StateFolder(order.state_root, order.service)
    lock = ServiceLock(folder)
    gpus = GpuLocks(order.state_root)
    secrets = _Secrets(_launches(order, folder), order_secrets(order))
    if not lock.take(order.order_id):
        return _turned_away(order, path, lock_holder(folder), secrets)
    teller = Teller(order, path, secrets.scrub)
    try:
        result = _supervise_alone(order, path, folder, gpus, secrets)
    finally:
        teller.hold()
        resumption.remove(order)
        gpus.release()
        lock.release()
    teller.tell()
    return result


def _supervise_alone(order: wire.Order, path: Path, folder: StateFolder, gpus: GpuLocks, secrets: "_Secrets") -> wire.OrderResult:
    """Under the service's lock: opening the journal cuts off what seems to be a torn line."""
    from orchestrator.agent.box_steps import BoxSteps

    with Journal(path, secrets.scrub) as journal:
        crash_points.arm(folder.path)
        history = read_history(read_journal(path / JOURNAL))
        if history is not None and history.ended:
            return _told(order, path, secrets)
        if not (path / "order.json").exists():
            return _refused(order, "the order was withdrawn before it was begun", 3)
        refusal = _kept_away(order, folder, gpus, history)
        if refusal is not None:
            _keep(refusal, path, secrets)
            _write_last(journal, refusal)
            return refusal
        crash_points.crash_point("before the resume unit")
        resumption.install(order, path, _command(path))
        crash_points.crash_point("the resume unit")
        result = _carry_out(order, BoxSteps(order, folder, path, secrets.learn), journal, history, path)
        _keep(result, path, secrets)
        crash_points.crash_point("the result")
        return result


def _turned_away(order: wire.Order, path: Path, holder: Optional[str], secrets: "_Secrets") -> wire.OrderResult:
    """Somebody else is at work: another order's supervisor, or this one's own, whose journal is not touched then."""
    result = _refused(order, f"order {holder} is at work on this service", 5)
    if holder == order.order_id or read_journal(path / JOURNAL):
        return result
    with Journal(path, secrets.scrub) as journal:
        _keep(result, path, secrets)
        _write_last(journal, result)
    teller = Teller(order, path, secrets.scrub)
    teller.hold()
    teller.tell()
    return result


def _kept_away(order: wire.Order, folder: StateFolder, gpus: GpuLocks, history: Optional[History]) -> Optional[wire.OrderResult]:
    """Take what else the order needs for itself. What keeps it away, if it has touched nothing: from then on nothing does.

    Looked at with the service's lock held, which a person's is taken under, and a preparation looks at with its own held.
    """
    if history is not None and history.touched:
        gpus.retake(order)
        return None
    person = person_lock(folder)
    if person is not None:
        return _refused(order, locked_by(order.service, person), 5)
    host = HostFolder(order.state_root)
    if not wait_until(lambda: host.preparing() is None, Deadline(_PREPARING_SECONDS), 0.2):
        preparing = host.preparing()
        return _refused(order, f"this machine is being prepared{' ' + held_by(preparing) if preparing else ''}", 5)
    try:
        holder = gpus.take(order, _gpus_of(order))
    except OSError as error:
        return _refused(order, f"the GPUs can't be locked: {error.filename or ''}: {error.strerror}", 3)
    crash_points.crash_point("gpus locked")
    return None if holder is None else _refused(order, gpu_held_by(holder), 5)


def _gpus_of(order: wire.Order) -> List[str]:
    """The UUIDs of the GPUs that the order's servers, old and new, may use."""
    environments = environments_of(order)
    if not environments:
        return []
    from orchestrator.agent.gpu import read_gpus

    return union_of_gpus(read_gpus(_GPU_SECONDS), environments)


def _carry_out(order: wire.Order, steps: "BoxSteps", journal: Journal, history: Optional[History], path: Path) -> wire.OrderResult:
    from orchestrator.agent.rank_link import joined

    with joined(order, _known_ranks(path), lambda standings: _keep_ranks(path, standings)) as group:
        result = _walk(order, steps, journal, history, path, group)
        if result.state in (wire.State.REFUSED, wire.State.DOWN):
            group.give_up(result.summary)
    return result


def _walk(
    order: wire.Order, steps: "BoxSteps", journal: Journal, history: Optional[History], path: Path, group: "Group"
) -> wire.OrderResult:
    from orchestrator.agent.relaunch import Relaunch
    from orchestrator.agent.router_steps import BoxRouterSteps

    router = None if order.router is None else BoxRouterSteps(order.router)
    machine = Relaunch(order, steps, journal, boot_identity(), lambda: _cancelled(path), router, group)
    try:
        copies.require(order)
        return machine.run() if history is None else machine.resume(history)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, the operator must learn where things stand
        was_touched = history is not None and history.touched and not history.only_staged
        result = _broken_off(order, error, touched=machine.touched or was_touched)
    with contextlib.suppress(OSError):
        _write_last(journal, result)
    return result


def _known_ranks(path: Path) -> List[wire.RankStanding]:
    known = read_record(wire.KnownRanks, path / RANKS)
    return [] if known is None else known.standings


def _keep_ranks(path: Path, standings: List[wire.RankStanding]) -> None:
    with contextlib.suppress(OSError):
        write_private(path / RANKS, json.dumps(wire.to_json(wire.KnownRanks(standings))))


def _cancelled(path: Path) -> Optional[str]:
    try:
        return (path / CANCEL).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _write_last(journal: Journal, result: wire.OrderResult) -> None:
    journal.state(result.state, result.summary, {"service": result.service, RESULT: result})


def _told(order: wire.Order, path: Path, secrets: "_Secrets") -> wire.OrderResult:
    """The result of an order whose supervisor was killed between its last line and its end."""
    kept = read_record(wire.OrderResult, path / "result.json")
    if kept is not None:
        return kept
    result = told_by_journal(order.order_id, read_journal(path / JOURNAL))
    _keep(result, path, secrets)
    return result


def _keep(result: wire.OrderResult, path: Path, secrets: "_Secrets") -> None:
    """Where the disk is full the result is lost, and the order reads as interrupted in the last state that could be written."""
    try:
        write_private(path / "result.json", json.dumps(secrets.scrub(wire.to_json(result))))
    except OSError:
        traceback.print_exc()


class _Secrets:
    """The secrets of all launches known so far; those of a server that somebody started by hand are learned on the way."""

    def __init__(self, launches: List[wire.Launch], more: List[str]) -> None:
        self._launches = launches
        self._more = more
        self._scrubber = launch_scrubber(launches, more)

    def learn(self, launch: wire.Launch) -> None:
        self._launches = [*self._launches, launch]
        self._scrubber = launch_scrubber(self._launches, self._more)

    def scrub(self, value: Any) -> Any:
        return self._scrubber.data(value)


def _refused(order: wire.Order, reason: str, exit_code: int) -> wire.OrderResult:
    return wire.OrderResult(order.order_id, wire.State.REFUSED, exit_code, reason, "unchanged", next_step="fab status")


def _broken_off(order: wire.Order, error: Exception, *, touched: bool) -> wire.OrderResult:
    """The result of an order whose state machine raised."""
    if isinstance(error, AgentRefusal) and not touched:
        return _refused(order, error.failure.message, 4 if error.failure.category == "rights" else 3)
    traceback.print_exc()
    if touched:
        summary = f"the supervisor failed: {error!r}"
        return wire.OrderResult(order.order_id, wire.State.DOWN, 7, summary, "not known to serve", next_step="fab status, then fab logs")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _refused(order, f"the journal can't be written, and nothing is changed without one: {error.strerror}", 3)
    return _refused(order, f"the supervisor failed before it changed anything: {error!r}", 1)


def _launches(order: wire.Order, folder: StateFolder) -> List[wire.Launch]:
    known: List[Optional[wire.Launch]] = [order.new]
    known += [folder.read_launch(identifier) for identifier in folder.launch_ids()]
    return [launch for launch in known if launch is not None]
