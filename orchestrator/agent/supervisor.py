"""The process that carries an order out, next to the server and independent of the operator's connection."""

import contextlib
import errno
import json
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from orchestrator.agent import wire
from orchestrator.agent.archive import agent_archive
from orchestrator.agent.follow import wait_for_journal
from orchestrator.agent.journal import Journal, ServiceLock, lock_holder, order_status
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import launch_scrubber
from orchestrator.agent.state_folder import StateFolder, read_record, write_private

if TYPE_CHECKING:
    from orchestrator.agent.box_steps import BoxSteps

_START_SECONDS = 20.0
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from orchestrator.agent.supervisor import main; main(sys.argv[2])"


def submit(order: wire.Order, emit: Callable[[str, Any], None]) -> wire.Submitted:
    """Keep the order and the code that carries it out in the state folder, start the supervisor, and see its first line.

    Raises:
        AgentRefusal: another order holds the service (``locked``), or the supervisor did not come up.
    """
    from orchestrator.agent.runner import start_detached

    folder = StateFolder(order.state_root, order.service)
    folder.create()
    refuse_when_held(folder)
    path = folder.order_folder(order.order_id)
    path.mkdir(mode=0o700)
    try:
        write_private(path / "order.json", json.dumps(wire.to_json(order)))
        (path / "agent.zip").write_bytes(agent_archive())
        log = path / "supervisor.log"
        command = [sys.executable, "-I", "-S", "-c", _MAIN, str(path / "agent.zip"), str(path)]
        holder = start_detached(f"orchestrator-{order.service}-order-{order.order_id}", command, log)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    if not wait_for_journal(path, _START_SECONDS):
        _withdraw(folder, path, holder)
    return wire.Submitted(order.order_id, holder)


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
    evidence = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []
    shutil.rmtree(path, ignore_errors=True)
    lock.release()
    raise AgentRefusal("refused", f"the supervisor ({holder}) did not start within {_START_SECONDS:.0f} s; nothing was touched", evidence)


def refuse_when_held(folder: StateFolder) -> None:
    """Raise AgentRefusal (``locked``) when a living supervisor works on this service."""
    holder = lock_holder(folder)
    if holder is None:
        return
    status = order_status(folder, holder)
    detail = f": {status.kind} by {status.operator}, in {status.state}" if status is not None else ""
    raise AgentRefusal("locked", f"order {holder} is at work on {folder.path.name}{detail}", next_step="fab status")


def main(order_folder: str) -> None:
    """Carry out the order kept in `order_folder`. Runs in a unit or session of its own; talks through files only."""
    for ignored in (signal.SIGHUP, signal.SIGPIPE, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    path = Path(order_folder)
    order = read_record(wire.Order, path / "order.json")
    if order is None:
        raise SystemExit(f"{path / 'order.json'} is missing or damaged")
    supervise(order, path)


def supervise(order: wire.Order, path: Path) -> wire.OrderResult:
    """Take the service's lock and run the state machine; always returns a result."""
    from orchestrator.agent.box_steps import BoxSteps

    folder = StateFolder(order.state_root, order.service)
    lock = ServiceLock(folder)
    secrets = _Secrets(_launches(order, folder))
    with Journal(path, secrets.scrub) as journal:
        if not lock.take(order.order_id):
            result = _refused(order, f"order {lock_holder(folder)} is at work on this service", 5)
            _keep(result, path, secrets)
            journal.state(result.state, result.summary)
            return result
        try:
            if not (path / "order.json").exists():
                raise SystemExit("the order was withdrawn before it was begun")
            result = _carry_out(order, BoxSteps(order, folder, path, secrets.learn), journal)
            _keep(result, path, secrets)
            return result
        finally:
            lock.release()


def _carry_out(order: wire.Order, steps: "BoxSteps", journal: Journal) -> wire.OrderResult:
    from orchestrator.agent.relaunch import Relaunch

    machine = Relaunch(order, steps, journal)
    try:
        return machine.run()
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, the operator must learn where things stand
        result = _broken_off(order, error, touched=machine.touched)
    with contextlib.suppress(OSError):
        journal.state(result.state, result.summary)
    return result


def _keep(result: wire.OrderResult, path: Path, secrets: "_Secrets") -> None:
    """Where the disk is full the result is lost, and the order reads as interrupted in the last state that could be written."""
    try:
        write_private(path / "result.json", json.dumps(secrets.scrub(wire.to_json(result))))
    except OSError:
        traceback.print_exc()


class _Secrets:
    """The secrets of all launches known so far; those of a server that somebody started by hand are learned on the way."""

    def __init__(self, launches: List[wire.Launch]) -> None:
        self._launches = launches
        self._scrubber = launch_scrubber(launches)

    def learn(self, launch: wire.Launch) -> None:
        self._launches = [*self._launches, launch]
        self._scrubber = launch_scrubber(self._launches)

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
        return _refused(order, f"the journal can't be written, and nothing is changed without one: {error.strerror}", 4)
    return _refused(order, f"the supervisor failed before it changed anything: {error!r}", 1)


def _launches(order: wire.Order, folder: StateFolder) -> List[wire.Launch]:
    known: List[Optional[wire.Launch]] = [order.new]
    known += [folder.read_launch(identifier) for identifier in folder.launch_ids()]
    return [launch for launch in known if launch is not None]
