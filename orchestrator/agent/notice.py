"""What follows an order's end, once: the supervisor's notice, and who of those that watch may do what is left to them.

The order's folder has a small file for the notice (``notice.json``) and for each command (``hook-NAME.json``), which says by whom it was
begun and what became of it. It is written before anything is done: of many that watch one does it, and a supervisor that is killed in
between and goes on sends a second time at most. While a supervisor may still send, it holds a lock of the kernel's beside that file,
taken before the service's own is released; so whoever asks what became of a notice waits for it, and for nobody who has gone.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.follow import order_secrets, told_by_journal
from orchestrator.agent.journal import JOURNAL, read_journal, try_lock
from orchestrator.agent.notice_text import ending, notice_text
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import Scrubber, launch_scrubber
from orchestrator.agent.state_folder import NOTICE_FILE, StateFolder, read_record
from orchestrator.agent.wire_notice import NOTICE, SUPERVISOR, Afterwards, ClaimReport, ClaimRequest, Fate, FateOutcome

if TYPE_CHECKING:
    from orchestrator.agent.webhook import Posted

SEND_SECONDS = 5.0
"""All that a notice may take of the supervisor's time, which nobody waits for any more but those who watch."""
MOST_ATTEMPTS = 2
_HOLD_SECONDS = 1.0
_CLAIM_SECONDS = SEND_SECONDS + 3.0
_COMMAND_NAME = re.compile(r"[0-9a-f]{8,64}")

Send = Callable[[str, str], "Posted"]
"""Posts a text to a URL, in bounded time."""


def _send(url: str, text: str) -> "Posted":
    from orchestrator.agent.webhook import post  # brings TLS, which most orders need nothing of

    return post(url, text, SEND_SECONDS)


class Teller:
    """The supervisor's part: sends the notice when the order has ended and nothing waits for it any more.

    Whatever goes wrong here changes nothing of the order.
    """

    def __init__(self, order: wire.Order, path: Path, scrub: Callable[[Any], Any] = lambda value: value, send: Send = _send) -> None:
        self._order = order
        self._path = path
        self._scrub = scrub
        self._send = send
        self._lock: Optional[int] = None

    def hold(self) -> None:
        """Have whoever asks for the notice's fate from now on wait for it. Before the service's lock is released."""
        if self._order.afterwards is not None and self._order.afterwards.webhook is not None:
            self._lock = _locked(self._path / f"{NOTICE}.lock", _HOLD_SECONDS)

    def tell(self) -> None:
        """Send what is to be sent, and keep what became of it."""
        if self._lock is None:
            return
        try:
            self._tell(self._order.afterwards)
        except Exception as error:  # noqa: BLE001 - the order has ended, and how it ended must not be changed by a notice of it
            outcome = FateOutcome.UNREACHED if isinstance(error, ImportError) else FateOutcome.FAILED
            self._keep(Fate(SUPERVISOR, outcome, f"{type(error).__name__}: it could not be sent"))
        finally:
            os.close(self._lock)
            self._lock = None

    def _tell(self, afterwards: Optional[Afterwards]) -> None:
        kept = read_record(Fate, self._path / NOTICE_FILE)
        if afterwards is None or afterwards.webhook is None or not _is_next(kept):
            return
        result = _result(self._order.order_id, self._path)
        if result is None or ending(result) not in afterwards.notice:
            return
        attempts = 1 if kept is None else kept.attempts + 1
        crash_point("before the notice")
        self._keep(Fate(SUPERVISOR, FateOutcome.BEGUN, attempts=attempts))
        posted = self._send(afterwards.webhook, self._scrub(notice_text(self._order, afterwards, result)))
        crash_point("the notice")
        self._keep(Fate(SUPERVISOR, posted.outcome, self._scrub(posted.detail), attempts=attempts))

    def _keep(self, fate: Fate) -> None:
        with contextlib.suppress(OSError):
            _keep(self._path / NOTICE_FILE, fate)


def _is_next(kept: Optional[Fate]) -> bool:
    """Whether the supervisor sends: nobody has begun, or it did so itself and was killed in between, once."""
    return kept is None or (kept.by == SUPERVISOR and kept.outcome == FateOutcome.BEGUN and kept.attempts < MOST_ATTEMPTS)


def claim(request: ClaimRequest, emit: Callable[[str, Any], None]) -> ClaimReport:
    """Give what follows an order's end to whoever asks first, or keep how it went.

    Raises:
        AgentRefusal: there is no such order, or no such thing can follow one.
    """
    path = StateFolder(request.state_root, request.service).order_folder(request.order_id)
    order = read_record(wire.Order, path / "order.json")
    if order is None:
        raise AgentRefusal("refused", f"there is no order {request.order_id} of {request.service}", next_step="fab status")
    if request.what != NOTICE and _COMMAND_NAME.fullmatch(request.what) is None:
        raise AgentRefusal("request", f"{request.what!r} is nothing that follows an order")
    if order.afterwards is None:
        return ClaimReport(False, operator=order.operator, reason=order.reason)
    is_notice = request.what == NOTICE
    lock = _locked(path / (f"{NOTICE}.lock" if is_notice else "hooks.lock"), _CLAIM_SECONDS)
    if lock is None:
        return _report(order, False, Fate(SUPERVISOR, FateOutcome.BEGUN, "it is being sent"))
    try:
        return _decide(request, order, path, path / (NOTICE_FILE if is_notice else f"hook-{request.what}.json"))
    finally:
        os.close(lock)


def _decide(request: ClaimRequest, order: wire.Order, path: Path, kept_in: Path) -> ClaimReport:
    kept = read_record(Fate, kept_in)
    if request.fate is not None:
        if kept is not None and kept.token == request.token:
            _keep(kept_in, request.fate)
        return _report(order, False, read_record(Fate, kept_in))
    afterwards, result = order.afterwards, _result(order.order_id, path)
    assert afterwards is not None
    wanted = result is not None and (ending(result) in afterwards.notice if request.what == NOTICE else afterwards.hooks)
    if result is None or not wanted or not _may_take(request, kept):
        return _report(order, False, kept)
    attempts = 1 if kept is None or kept.token == request.token else kept.attempts + 1
    _keep(kept_in, Fate(request.by, FateOutcome.BEGUN, attempts=attempts, token=request.token))
    text = _scrubber(order).text(notice_text(order, afterwards, result)) if request.what == NOTICE else ""
    return _report(order, True, kept, text)


def _may_take(request: ClaimRequest, kept: Optional[Fate]) -> bool:
    """Whether it is left to do. The supervisor has gone where this is asked of the notice, as its lock was to be had."""
    if kept is None or kept.token == request.token or kept.outcome == FateOutcome.UNREACHED:
        return True
    return kept.by == SUPERVISOR and kept.outcome == FateOutcome.BEGUN and kept.attempts < MOST_ATTEMPTS


def _report(order: wire.Order, granted: bool, fate: Optional[Fate], text: str = "") -> ClaimReport:
    assert order.afterwards is not None
    return ClaimReport(granted, fate, dataclasses.replace(order.afterwards, webhook=None), order.operator, order.reason, text)


def _scrubber(order: wire.Order) -> Scrubber:
    folder = StateFolder(order.state_root, order.service)
    launch = order.new if order.launch_id is None else folder.read_launch(order.launch_id) or order.new
    return launch_scrubber([] if launch is None else [launch], order_secrets(order))


def _result(order_id: str, path: Path) -> Optional[wire.OrderResult]:
    """How the order ended; None where it has not."""
    entries = read_journal(path / JOURNAL)
    if not entries or entries[-1].state not in wire.State.FINAL:
        return None
    return read_record(wire.OrderResult, path / "result.json") or told_by_journal(order_id, entries)


def _keep(path: Path, fate: Fate) -> None:
    write_private(path, json.dumps(wire.to_json(dataclasses.replace(fate, time=time.time()))))


def _locked(path: Path, seconds: float) -> Optional[int]:
    """The descriptor that holds a lock of the kernel's; None where it can't be had within `seconds`, or the folder has gone."""
    try:
        descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if wait_until(lambda: try_lock(descriptor, fcntl.LOCK_EX), Deadline(seconds)):
        return descriptor
    os.close(descriptor)
    return None
