"""Framing and dispatch: one request in, framed events out, anything that goes wrong as data.

:mod:`boot` calls :func:`run` with both ends of the channel; standard output already points at standard error, so a
print in a verb can't be mistaken for an event. An event is one line, or several: the random token that came with the request, the
protocol's number, ``+`` when more of it follows or a space when not, and a piece of JSON.
"""

import gc
import importlib
import json
import os
import sys
import threading
from typing import Any, Callable, Dict, NamedTuple, NoReturn, Optional

from orchestrator.agent import wire_base
from orchestrator.agent.refusal import AgentRefusal


class Verb(NamedTuple):
    """One thing that the agent can be asked. `module` is imported only when its verb is asked for.

    `ends_with_reader` is False where stopping half-way would leave something half-done: such a verb runs to its end
    although nobody listens any more.
    """

    module: str
    function: str
    request: str
    """The name of the request's type in `types`."""
    ends_with_reader: bool = True
    keeps_code: bool = False
    """The archive that is sent stays on the box and carries on with everything, so it is sent whole."""
    types: str = "wire"
    """The module of the request's and the answer's types: those of a host are not made for a question about a service."""


VERBS: Dict[str, Verb] = {
    "ping": Verb("main", "ping", "PingRequest"),
    "survey": Verb("survey", "survey", "SurveyRequest"),
    "status": Verb("place_status", "status", "StatusRequest", types="wire_status"),
    "signs": Verb("kernel_probes", "signs", "SignsRequest"),
    "preflight": Verb("preflight", "preflight", "PreflightRequest"),
    "submit": Verb("supervisor", "submit", "Order", ends_with_reader=False, keeps_code=True),
    "resume": Verb("supervisor", "resume", "OrderReference", ends_with_reader=False),
    "cancel": Verb("supervisor", "cancel", "Cancel", ends_with_reader=False),
    "lock": Verb("locks", "lock", "LockRequest", ends_with_reader=False),
    "follow": Verb("follow", "follow", "OrderReference"),
    "claim": Verb("notice", "claim", "ClaimRequest", ends_with_reader=False, types="wire_notice"),
    "reach": Verb("webhook", "reach", "ReachRequest", types="wire_notice"),
    "logs": Verb("follow", "logs", "LogRequest"),
    "boot": Verb("boot_unit", "boot", "BootRequest", ends_with_reader=False, types="wire_launches"),
    "launches": Verb("known_launches", "launches", "LaunchesRequest", types="wire_launches"),
    "adopt": Verb("adopt", "adopt", "AdoptRequest", ends_with_reader=False, types="wire_launches"),
    "tune": Verb("tuning", "tune", "TuneRequest", ends_with_reader=False, types="wire_host"),
    "persist": Verb("tuning", "tune", "TuneRequest", ends_with_reader=False, keeps_code=True, types="wire_host"),
    "measure": Verb("measure", "measure", "MeasureRequest", types="wire_measure"),
    "budget": Verb("budget", "budget", "BudgetRequest", types="wire_budget"),
    "profile": Verb("profile", "profile", "ProfileRequest", types="wire_budget"),
    "router": Verb("box_router", "router", "RouterRequest", ends_with_reader=False, types="wire_router"),
    "rolling": Verb("roll_lock", "rolling", "RollLockRequest", ends_with_reader=False, types="wire_router"),
    "quiet": Verb("quiet", "quiet", "QuietRequest", types="wire_router"),
    "doctor": Verb("doctor", "doctor", "DoctorRequest", types="wire_host"),
    "discover": Verb("discovery", "discover", "DiscoverRequest", types="wire_discovery"),
}

DISK_FULL = (28, 122)
"""ENOSPC and EDQUOT on Linux."""
READ_ONLY = (30,)
"""EROFS on Linux: also what a file system turns to after an error of its disk."""


LINE = 4096
"""Bytes. Linux writes no more than this (PIPE_BUF) to a pipe in one piece; in longer lines, others' output could land in the middle."""


class Output:
    """The channel back to the operator's end. Threads may share it."""

    def __init__(self, descriptor: int, token: str) -> None:
        self._descriptor = descriptor
        self._prefix = f"{token}{wire_base.PROTOCOL}".encode()
        self._lock = threading.Lock()

    def emit(self, kind: str, data: Any) -> None:
        """Send one event at once. A reader who has gone is no error: :func:`watch_reader` decides what that means."""
        text = json.dumps({"kind": kind, "data": wire_base.to_json(data)}, ensure_ascii=False, separators=(",", ":"))
        rest = text.encode("utf-8", "replace")  # undecodable file names hold lone surrogates
        room = LINE - len(self._prefix) - 2
        with self._lock:
            try:
                while len(rest) > room:
                    self._write(self._prefix + b"+" + rest[:room] + b"\n")
                    rest = rest[room:]
                self._write(self._prefix + b" " + rest + b"\n")
            except BrokenPipeError:
                return

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]


class Rest:
    """The modules that were not sent with the request. Threads may share it.

    Most questions never need them, and their share of the bytes would take longer to arrive than it takes to answer.
    """

    def __init__(self, size: int, ask: Callable[[], None]) -> None:
        self._size = size
        self._ask = ask
        self._lock = threading.Lock()
        self._asked = False
        self._whole = threading.Event()
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what the operator's end has sent."""
        self._data += data
        if len(self._data) >= self._size:
            self._whole.set()

    def fetch(self) -> bytes:
        """All of it, asked for by the first who misses something. Whoever waits here for an operator who has gone is ended."""
        with self._lock:
            if not self._asked:
                self._asked = True
                self._ask()
        self._whole.wait()
        return bytes(self._data)


def run(token: str, request: bytes, channel_in: int, channel_out: int, modules: Any, rest_size: int) -> NoReturn:
    """Answer one request and leave the process without waiting for threads or buffers.

    `modules` is what finds those that came with the request; `rest_size` bytes more of them can be asked for.
    """
    output = Output(channel_out, token)
    rest = Rest(rest_size, lambda: output.emit(wire_base.EventKind.MODULES, {}))
    try:
        verb, body = parse_request(request)
        require_pidfd()
        if verb.ends_with_reader:
            watch_reader(channel_in, rest.feed)
        if rest_size:
            modules.fetch = rest.fetch
        answer = resolve(verb)
        gc.freeze()  # what was imported stays; the boot code has put off all looking for garbage until here
        gc.enable()
        output.emit(wire_base.EventKind.RESULT, answer(body, output.emit))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it travels as data
        output.emit(wire_base.EventKind.ERROR, describe(error))
        os._exit(1)
    os._exit(0)


def parse_request(request: bytes) -> "tuple[Verb, Any]":
    """The verb that is asked for, and its request decoded.

    Raises:
        AgentRefusal: ``request``: another protocol, an unknown verb or a body that does not fit.
    """
    try:
        asked = wire_base.from_json(wire_base.Request, json.loads(request.decode("utf-8")))
        if asked.protocol != wire_base.PROTOCOL:
            raise wire_base.WireError(f"protocol {asked.protocol} was asked for, this agent speaks {wire_base.PROTOCOL}")
        if asked.verb not in VERBS:
            raise wire_base.WireError(f"no verb {asked.verb!r}; there are {', '.join(VERBS)}")
        verb = VERBS[asked.verb]
        types = importlib.import_module("orchestrator.agent." + verb.types)
        return verb, wire_base.from_json(getattr(types, verb.request), asked.body)
    except ValueError as error:
        raise AgentRefusal("request", f"the request can't be understood: {error}") from None


def resolve(verb: Verb) -> Any:
    """Import the one function that answers `verb`."""
    return getattr(importlib.import_module("orchestrator.agent." + verb.module), verb.function)


def require_pidfd() -> None:
    """Processes are signalled through pidfd only, so without it nothing else is worth trying.

    Raises:
        AgentRefusal: ``kernel``: older than 5.3, or a seccomp filter that denies the call.
    """
    release = os.uname().release
    if not hasattr(os, "pidfd_open"):
        raise AgentRefusal(
            "kernel", f"this python3 was built without pidfd_open (the kernel here is {release}, 5.3 or newer is needed)", [sys.version]
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise AgentRefusal(
            "kernel",
            f"kernel {release} has no usable pidfd_open ({error.strerror}): 5.3 or newer is needed, and no seccomp filter that denies it",
        ) from None


def watch_reader(channel_in: int, feed: Callable[[bytes], None]) -> None:
    """End this process, with all children that it did not detach, as soon as the operator's end closes the channel.

    What still comes through it goes to `feed`.
    """
    import signal  # makes enumerations of all signals: not for verbs that run to their end

    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)

    def wait() -> None:
        while True:
            data = os.read(channel_in, 1 << 16)
            if not data:
                break
            feed(data)
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def describe(error: BaseException) -> wire_base.AgentFailure:
    """What the operator is told about an exception."""
    if isinstance(error, AgentRefusal):
        return error.failure
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        where = error.filename or "a file system"
        return wire_base.AgentFailure("disk_full", f"{where}: {error.strerror}", next_step="df -h; df -i")
    if isinstance(error, OSError) and error.errno in READ_ONLY and error.filename:
        step = "findmnt; dmesg says why a disk went read-only"
        return wire_base.AgentFailure("rights", f"{error.filename}: {error.strerror}", next_step=step)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("orchestrator"):
        message = f"python3 {sys.version.split()[0]} lacks the module {error.name} (a minimal build)"
        return wire_base.AgentFailure("python", message, next_step="apt install python3")
    import traceback

    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
    return wire_base.AgentFailure("traceback", f"{type(error).__name__}: {error}", lines[-60:])


def ping(request: wire_base.PingRequest, emit: Any) -> wire_base.PlaceFacts:
    """Who and where the agent is."""
    uname = os.uname()
    return wire_base.PlaceFacts(
        python=sys.version.split()[0],
        kernel=uname.release,
        host_name=uname.nodename,
        user_id=os.getuid(),
        container=container_kind(),
    )


def container_kind() -> Optional[str]:
    """``lxc`` and the like, as systemd's container interface tells it; None on a bare host or where nobody says."""
    try:
        with open("/run/systemd/container", encoding="utf-8") as stream:
            return stream.read().strip() or None
    except OSError:
        pass
    try:
        with open("/proc/1/environ", "rb") as stream:
            entries = stream.read().split(b"\0")
    except OSError:
        return None
    kinds = [entry[len(b"container=") :].decode() for entry in entries if entry.startswith(b"container=")]
    return kinds[0] if kinds else None
