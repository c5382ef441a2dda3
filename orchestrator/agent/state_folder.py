"""The service's state folder: the one place that knows its layout, and how files get there safely.

::

    ROOT/SERVICE/                     mode 700, the agent's user
      launches/LAUNCH_ID/             one start of the server
        launch.json   600             wire.Launch as started (secrets included: never leaves the box unscrubbed)
        environment   600             KEY=VALUE lines, systemd's EnvironmentFile format
        config.yaml   600, the service user's; only when there are secrets: JSON, which is YAML
        server.log    600             stdout and stderr; rotated to server.log.1
        exit                          "RESULT CODE STATUS" once the server has ended, empty before
        record-exit                   the script by which systemd writes `exit`
        before-start                  the script that systemd runs before it starts the launch again by itself
        restarts                      a line each time that it did: when, and how the server had ended
        adopted.json  600             wire_launches.Adopted, of a server that somebody else has started
        session                       which session it is and on which boot, where systemd does not run it
        waiter.py                     keeps the log within its limit; without systemd also waits for the server's end
        verified.json                 wire facts kept once the launch was proven ready
        scores.json   600             correctness.Scores, what it answered then
        footprint.json                footprints.Footprint, of a launch that was staged
      orders/ORDER_ID/
        order.json    600             wire.Order
        agent.zip                     the code that carries it out
        supervise.py                  what starts it
        journal.jsonl                 wire.StateEntry lines, fsynced
        progress.jsonl                wire.Progress lines
        previous.json 600             how to bring the old server back
        staged.json   600             what the GPUs held before a launch was staged, and what it holds of them at its gate
        before.json   600             what was known of the old server before it was touched, for whoever goes on with its stop
        cancel                        why the operator wants the order stopped safely
        result.json                   wire.OrderResult
        notice.json                   wire.Fate, what became of its notice
        hook-NAME.json                wire.Fate, what became of a command on an operator's side that follows it
        notice.lock, hooks.lock       held (flock) while that is decided; the first also by a supervisor that may still send
      sequence                        a line for each order, launch and proof, in the order in which they came to be
      verified                        the launch id of the last verified launch
      boot                            the launch id that may be started again after a crash or at boot; without it nothing is
      somebodys-unit                  the unit of somebody's in which the service's server was found last
      lock                            held (flock) by the supervisor while an order is open
      held.json     600               a person's lock: wire.PersonLock
      rolled.json   600               the lock of a roll behind the router that this service is a replica of: wire_router.RollLock
    ROOT/.gpus/UUID 600               held (flock) by the supervisor of an order that may use this GPU; names it (wire.GpuLock)
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Type, TypeVar

from orchestrator.agent import wire
from orchestrator.agent.private_files import write_private

T = TypeVar("T")

NOTICE_FILE = "notice.json"
_ORDER, _LAUNCH, _PROOF = "order", "launch", "proof"
"""What the lines of `sequence` begin with; an id follows."""


class StateFolder:
    """Paths and records of one service's state folder. Nothing is created until :meth:`create`."""

    def __init__(self, root: str, service: str) -> None:
        self.path = Path(root) / service
        self.launches = self.path / "launches"
        self.orders = self.path / "orders"
        self.lock = self.path / "lock"
        self.held = self.path / "held.json"
        self.rolled = self.path / "rolled.json"
        self._sequence = self.path / "sequence"

    def create(self) -> None:
        """Make the folder and its two sub-folders, for the agent's user alone.

        The launches are the exception: a service user must reach its own ``config.yaml``, so folders there can be
        passed through (711), not listed.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        os.chmod(self.path, 0o711)  # noqa: S103 - see above
        for folder, mode in ((self.launches, 0o711), (self.orders, 0o700)):
            folder.mkdir(exist_ok=True)
            os.chmod(folder, mode)

    def launch_folder(self, launch_id: str) -> Path:
        return self.launches / launch_id

    def order_folder(self, order_id: str) -> Path:
        return self.orders / order_id

    def write_launch(self, launch: wire.Launch) -> Path:
        """Record a launch before it is started and return its folder."""
        folder = self.launch_folder(launch.launch_id)
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o711)  # noqa: S103 - the service user passes through to its config.yaml
        write_private(folder / "launch.json", json.dumps(wire.to_json(launch)))
        with contextlib.suppress(OSError):  # no launch fails for want of its place in a list
            self._note(_LAUNCH, launch.launch_id)
        return folder

    def read_launch(self, launch_id: str) -> Optional[wire.Launch]:
        """The record of a launch, or None where there is none or it can't be understood."""
        return read_record(wire.Launch, self.launch_folder(launch_id) / "launch.json")

    def verified_launch_id(self) -> Optional[str]:
        """The id of the last launch that was proven ready."""
        try:
            return (self.path / "verified").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def mark_verified(self, launch_id: str, facts: Any) -> None:
        """Keep what was proven of a launch (for the next comparison) and make it the one to roll back to."""
        write_private(self.launch_folder(launch_id) / "verified.json", json.dumps(wire.to_json(facts)))
        self._note(_PROOF, launch_id)
        write_private(self.path / "verified", launch_id + "\n")

    def scores(self, launch_id: str) -> Path:
        """Where it is kept what a launch answered when it was verified."""
        return self.launch_folder(launch_id) / "scores.json"

    def verified_facts(self, launch_id: str) -> Optional[Any]:
        """What :meth:`mark_verified` kept."""
        return _read_json(self.launch_folder(launch_id) / "verified.json")

    def note_order(self, order_id: str) -> None:
        """Give an order its place among all others.

        Raises:
            OSError: there is no room for it.
        """
        self._note(_ORDER, order_id)

    def order_ids(self) -> List[str]:
        """Ids of all orders, oldest first, whatever time they name: each operator has a clock of their own, and clocks are set back."""
        return self._oldest_first(_ORDER, self.orders)

    def launch_ids(self) -> List[str]:
        """Ids of all launches, oldest first."""
        return self._oldest_first(_LAUNCH, self.launches)

    def proofs(self) -> Dict[str, int]:
        """Launch id -> its place among all proofs, from 1: a higher one was proven later."""
        return self._places(_PROOF)

    def _oldest_first(self, kind: str, folder: Path) -> List[str]:
        places = self._places(kind)
        return sorted(_names(folder), key=lambda name: (places.get(name, 0), name))  # those without a place are from before there were any

    def _places(self, kind: str) -> Dict[str, int]:
        try:
            lines = self._sequence.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return {}
        words = [line.split(" ", 1) for line in lines]
        return {word[1]: place for place, word in enumerate(words, 1) if len(word) == 2 and word[0] == kind}

    def _note(self, kind: str, name: str) -> None:
        descriptor = os.open(str(self._sequence), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a lost power supply
            os.write(descriptor, (b"\n" if torn else b"") + f"{kind} {name}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_record(kind: Type[T], path: Path) -> Optional[T]:
    """Read one wire type from a file; None where there is none or it can't be understood."""
    data = _read_json(path)
    if data is None:
        return None
    try:
        return wire.from_json(kind, data)
    except wire.WireError:
        return None


def _read_json(path: Path) -> Optional[Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _names(folder: Path) -> List[str]:
    try:
        return [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []
