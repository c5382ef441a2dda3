"""What is kept on a host about its preparation: ROOT/.host, beside the services' folders, whose names can't begin with a dot.

::

    ROOT/.host/                  mode 700, root's
      originals.json       600   each knob's value before our first write, until a revert has put it back
      settings.json        600   what was set and can't be read back from the driver
      history.jsonl        600   one line for each call that changed something: who, when, why, what
      lock                 600   held (flock) by the agent that changes knobs; names it
      boot/                      what applies a profile at boot (persistence.py)

Nothing is made before the first write.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.codec import WireError, from_json, record, to_json
from orchestrator.agent.private_files import DEFAULT_ROOT, sync_folder, write_private
from orchestrator.agent.refusal import AgentRefusal

if TYPE_CHECKING:
    from orchestrator.agent.wire import PersonLock

FOLDER = ".host"
_PROBE_SECONDS = 0.3
_HOLDER_BYTES = 8192
_HOLDER_LETTERS = 400

Key = Tuple[str, str, str]
"""A knob's kind and name, and the item."""


class KeptError(Exception):
    """What is kept can't be read, or can't be written; the message says why."""


@record(frozen=True)
class Original:
    """The value of one item before our first write, and what we wrote last, with the boot in which we did."""

    kind: str
    name: str
    item: str
    place: str
    value: str
    written: str
    boot_id: str
    time: float
    """Unix time at which the value was found."""

    @property
    def key(self) -> Key:
        return self.kind, self.name, self.item


class Holder(NamedTuple):
    """Who changes knobs, for whoever finds the lock taken."""

    operator: str
    reason: str
    profile: str


class HostFolder:
    """ROOT/.host of the state root `root`."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root or DEFAULT_ROOT, FOLDER)
        self.boot = os.path.join(self.path, "boot")

    def preparing(self) -> "Optional[PersonLock]":
        """Who changes knobs at the moment; None where nobody does, or it can't be known."""
        try:
            descriptor = os.open(os.path.join(self.path, "lock"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(os.pread(descriptor, _HOLDER_BYTES, 0))
        finally:
            os.close(descriptor)
        return None

    @contextlib.contextmanager
    def locked(self, holder: Holder) -> Iterator[None]:
        """Hold the lock. It ends with this process, whatever becomes of it.

        Who only looks (:meth:`preparing`) holds it for a moment, so a refusal counts only when it lasts.

        Raises:
            AgentRefusal: ``locked``: another agent changes knobs here.
            KeptError: there can be no such folder.
        """
        path = os.path.join(self.path, "lock")
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise KeptError(_told(error, self.path)) from None
        try:
            if not wait_until(lambda: _try_lock(descriptor), Deadline(_PROBE_SECONDS), 0.02):
                raise _taken(os.pread(descriptor, _HOLDER_BYTES, 0), path)
            _name_holder(descriptor, holder)
            yield
        finally:
            os.close(descriptor)

    def originals(self) -> Dict[Key, Original]:
        """The originals that a revert would put back.

        Raises:
            KeptError: they are there and can't be read.
        """
        found = (from_json(Original, entry) for entry in self._load("originals.json", list))
        try:
            return {original.key: original for original in found}
        except WireError as error:
            raise KeptError(_damaged(os.path.join(self.path, "originals.json"), error)) from None

    def keep(self, originals: Mapping[Key, Original]) -> None:
        """Replace the originals; they are on the disk when this returns.

        Raises:
            KeptError: they could not be written.
        """
        self._save("originals.json", [to_json(original) for original in originals.values()])

    def setting(self, key: Key) -> Optional[Any]:
        """What :meth:`keep_setting` kept; None where there is nothing.

        Raises:
            KeptError: it can't be read.
        """
        return self._load("settings.json", dict).get("/".join(key))

    def keep_setting(self, key: Key, value: Any) -> None:
        """Note what was set, for a knob whose driver can't be asked.

        Raises:
            KeptError: it could not be written.
        """
        self._save("settings.json", {**self._load("settings.json", dict), "/".join(key): value})

    def add_history(self, entry: Mapping[str, Any]) -> None:
        """Append one line and return when it is on the disk. A line that a crash left half-written is ended first.

        Raises:
            KeptError: it could not be written.
        """
        path = os.path.join(self.path, "history.jsonl")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                _write_all(descriptor, (b"\n" if torn else b"") + json.dumps(entry).encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if size == 0:
                sync_folder(self.path)
        except OSError as error:
            raise KeptError(_told(error, path)) from None

    def history(self) -> List[Any]:
        """All whole lines, oldest first; empty where there are none, or none that may be read."""
        try:
            with open(os.path.join(self.path, "history.jsonl"), encoding="utf-8", errors="replace") as stream:
                lines = stream.read().splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    def _load(self, name: str, kind: type) -> Any:
        path = os.path.join(self.path, name)
        try:
            with open(path, encoding="utf-8") as stream:
                content = json.load(stream)
        except FileNotFoundError:
            return kind()
        except OSError as error:
            raise KeptError(_told(error, path)) from None
        except ValueError as error:
            raise KeptError(_damaged(path, error)) from None
        if not isinstance(content, kind):
            raise KeptError(_damaged(path, f"it holds no {kind.__name__}"))
        return content

    def _save(self, name: str, content: Any) -> None:
        try:
            write_private(os.path.join(self.path, name), json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise KeptError(_told(error, os.path.join(self.path, name))) from None


def first_value(kept: Optional[Original], found: str, as_written: bool, boot_id: str) -> str:
    """The original of an item that was just found to be `found`.

    The older original stands, except where somebody else set another value at a later boot: neither the original nor what we
    wrote (`as_written`).
    """
    if kept is None:
        return found
    if kept.boot_id == boot_id or as_written or found == kept.value:
        return kept.value
    return found


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(content: bytes) -> "PersonLock":
    """Who is named in a lock that is held."""
    from orchestrator.agent.wire import PersonLock

    try:
        holder = json.loads(content.decode("utf-8", "replace"))
        why = f"prep to {holder['profile'] or 'what was before'}" + (f", {holder['reason']}" if holder["reason"] else "")
        return PersonLock(str(holder["operator"] or "somebody"), why, float(holder["since"]))
    except (ValueError, KeyError, TypeError):
        return PersonLock("somebody", "prep", time.time())


def _taken(content: bytes, path: str) -> AgentRefusal:
    try:
        holder = json.loads(content.decode("utf-8", "replace"))
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder["since"]))
        who = f"{holder['operator'] or 'somebody'} since {since}, process {holder['pid']}"
        evidence = [f"{path}: profile {holder['profile']}" + (f", reason: {holder['reason']}" if holder["reason"] else "")]
        next_step = f"wait for it, or look: ps -o pid,lstart,stat,args -p {holder['pid']}"
    except (ValueError, KeyError, TypeError):
        who, evidence, next_step = "somebody who has not yet said who", [path], f"wait for it, or look: fuser -v {path}"
    return AgentRefusal("locked", f"the knobs of this machine are being changed by {who}", evidence, next_step)


def _name_holder(descriptor: int, holder: Holder) -> None:
    named = {name: text[:_HOLDER_LETTERS] for name, text in holder._asdict().items()}
    content = json.dumps({**named, "pid": os.getpid(), "since": time.time()})
    with contextlib.suppress(OSError):  # a full disk takes only the name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content.encode(), 0)


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _told(error: OSError, path: str) -> str:
    advice = f" (df -h {os.path.dirname(path)})" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.filename or path}: {error.strerror or error}{advice}"


def _damaged(path: str, problem: object) -> str:
    return f"{path} can't be understood ({problem}); to give up what it held: mv {path} {path}.damaged"
