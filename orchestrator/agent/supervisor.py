"""The process that carries an order out, next to the server and independent of the operator's connection."""

import json
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, List, Optional

from orchestrator.agent import wire
from orchestrator.agent.archive import agent_archive
from orchestrator.agent.follow import wait_for_journal
from orchestrator.agent.journal import Journal, ServiceLock, lock_holder, order_status
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import launch_scrubber
from orchestrator.agent.state_folder import StateFolder, read_record, write_private

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
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    (path / "agent.zip").write_bytes(agent_archive())
    log = path / "supervisor.log"
    command = [sys.executable, "-I", "-S", "-c", _MAIN, str(path / "agent.zip"), str(path)]
    holder = start_detached(f"orchestrator-{order.service}-order-{order.order_id}", command, log)
    if not wait_for_journal(path, _START_SECONDS):
        evidence = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:] if log.exists() else []
        raise AgentRefusal(
            "refused", f"the supervisor ({holder}) did not start within {_START_SECONDS:.0f} s; nothing was touched", evidence
        )
    return wire.Submitted(order.order_id, str(holder))


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
    from orchestrator.agent.relaunch import Relaunch
    from orchestrator.agent.steps import BoxSteps

    folder = StateFolder(order.state_root, order.service)
    secrets = _Secrets(_launches(order, folder))
    journal = Journal(path, secrets.scrub)
    lock = ServiceLock(folder)
    if not lock.take(order.order_id):
        return _refused(order, journal, f"order {lock_holder(folder)} is at work on this service", 5)
    try:
        result = Relaunch(order, BoxSteps(order, folder, path, secrets.learn), journal).run()
    except AgentRefusal as refusal:
        result = _refused(order, journal, refusal.failure.message, 4 if refusal.failure.category == "rights" else 3)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it was, the journal must say where things stand
        traceback.print_exc()
        journal.state(wire.State.DOWN, f"the supervisor failed: {error!r}", {"traceback": traceback.format_exc().splitlines()})
        result = wire.OrderResult(
            order.order_id, wire.State.DOWN, 7, f"the supervisor failed: {error!r}", "unknown", next_step="fab status, then fab logs"
        )
    write_private(path / "result.json", json.dumps(secrets.scrub(wire.to_json(result))))
    lock.release()
    return result


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


def _refused(order: wire.Order, journal: Journal, reason: str, exit_code: int) -> wire.OrderResult:
    journal.state(wire.State.REFUSED, reason)
    return wire.OrderResult(order.order_id, wire.State.REFUSED, exit_code, reason, "unchanged", next_step="fab status")


def _launches(order: wire.Order, folder: StateFolder) -> List[wire.Launch]:
    known: List[Optional[wire.Launch]] = [order.new]
    known += [folder.read_launch(identifier) for identifier in folder.launch_ids()]
    return [launch for launch in known if launch is not None]
