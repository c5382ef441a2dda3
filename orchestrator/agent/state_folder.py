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
        session                       which session it is and on which boot, where systemd does not run it
        waiter.py                     keeps the log within its limit; without systemd also waits for the server's end
        verified.json                 wire facts kept once the launch was proven ready
      orders/ORDER_ID/
        order.json    600             wire.Order
        agent.zip                     the code that carries it out
        journal.jsonl                 wire.StateEntry lines, fsynced
        progress.jsonl                wire.Progress lines
        previous.json 600             how to bring the old server back
        result.json                   wire.OrderResult
      verified                        the launch id of the last verified launch
      lock                            held (flock) by the supervisor while an order is open
"""

import json
import os
from pathlib import Path
from typing import Any, List, Optional, Type, TypeVar

from orchestrator.agent import wire

T = TypeVar("T")

DEFAULT_ROOT = "/var/lib/orchestrator"


def write_private(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace `path` by `text` so that a reader, or a crash, sees the old content or the new, never a part.

    The file is synced before it takes the name, and its folder after.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(str(temporary), str(path))
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # write(2) knows only a number, and a full disk has to be named
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StateFolder:
    """Paths and records of one service's state folder. Nothing is created until :meth:`create`."""

    def __init__(self, root: str, service: str) -> None:
        self.path = Path(root) / service
        self.launches = self.path / "launches"
        self.orders = self.path / "orders"
        self.lock = self.path / "lock"

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
        write_private(self.path / "verified", launch_id + "\n")

    def verified_facts(self, launch_id: str) -> Optional[Any]:
        """What :meth:`mark_verified` kept."""
        return _read_json(self.launch_folder(launch_id) / "verified.json")

    def order_ids(self) -> List[str]:
        """Ids of all orders, oldest first (ids start with the time)."""
        return _names(self.orders)

    def launch_ids(self) -> List[str]:
        """Ids of all launches, oldest first."""
        return _names(self.launches)


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
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return []
