"""The verb ``tune``: bring the knobs of a machine to a profile, or back to what they were.

One path for a plan, a check and the real thing: read all knobs and compare. Where something is to be written: take the host's lock, read
again, keep the originals on the disk, then write each knob and read it back. One knob that fails does not stop the others.
"""

import contextlib
import errno
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from orchestrator.agent.clock import BOOTED_SOURCE, Deadline, boot_moment
from orchestrator.agent.host_folder import Holder, HostFolder, KeptError, Key, Original, first_value
from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knob_look import Case, Standpoint, standpoint
from orchestrator.agent.knobs import BOOT_ID, DRIVER_VERSION, WRITE_ORDER, AbsentError, Machine
from orchestrator.agent.private_files import DEFAULT_ROOT
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_base import EventKind, Fact
from orchestrator.agent.wire_host import (
    FactName,
    KnobOutcome,
    KnobSetting,
    Persistence,
    PersistenceAction,
    TuneAction,
    TuneReport,
    TuneRequest,
)

BOOT_FILES = ("/etc/systemd/system/orchestrator-prep.service", "/etc/sysctl.d/90-orchestrator.conf")
"""What :mod:`persistence` makes outside of the host's folder. Where there is none of it, that module is not even imported."""

_POLL_SECONDS = 1.0

_MEANINGS = {
    errno.EROFS: "it is mounted read-only here: findmnt -T {path}",
    errno.EPERM: "root itself is refused: kernel lockdown (cat /sys/kernel/security/lockdown), or a capability is missing",
    errno.EACCES: "root itself is refused: a security module, or a capability is missing",
    errno.EINVAL: "the kernel does not take this value",
}


def tune(request: TuneRequest, emit: Any) -> TuneReport:
    """Answer a :class:`TuneRequest`. Raises as :func:`apply`."""
    begun = time.monotonic()

    def waits(whom: str) -> None:
        from orchestrator.agent.wire import Progress

        emit(EventKind.PROGRESS, Progress("PREP", "waiting", round(time.monotonic() - begun, 1), whom))

    return apply(request, KernelFiles(), waits=waits)


def apply(
    request: TuneRequest, files: KernelFiles, where: Optional[Standpoint] = None, waits: Callable[[str], None] = lambda whom: None
) -> TuneReport:
    """Plan, check, apply or revert. What is wrong with a knob is an outcome. `waits` hears for whom a write waits.

    Raises:
        AgentRefusal: ``locked``: another agent changes knobs here, or an order is at work on a service of this place, and is so for
            longer than the request waits. ``rights`` or ``refused``: a revert can't read what it would put
            back, or the profile can't be made persistent here; then nothing was written.
    """
    where = where or standpoint(files)
    machine = Machine(files, HostFolder(request.state_root))
    if request.persistence == PersistenceAction.INSTALL:
        from orchestrator.agent.persistence import require

        require(request, files)
    work = _Work(request, machine, where)
    work.look()
    if request.write and work.has_to_write:
        work.write(waits)
    persistence, changes = _persist(request, files, where)
    kept = work.kept()
    return TuneReport(
        results=[case.result() for case in work.cases],
        facts=_facts(files, where),
        persistence=persistence,
        changes=changes,
        originals=len(kept),
        original_knobs=len({(kind, name) for kind, name, _ in kept}),
        contents=_planned(request, files, changes),
    )


class _Work:
    """The knobs of one request, from the first look to the last."""

    def __init__(self, request: TuneRequest, machine: Machine, where: Standpoint) -> None:
        self._request = request
        self._machine = machine
        self._where = where
        self._reverting = request.action == TuneAction.REVERT
        self._boot_id = machine.boot_id()
        self._originals: Dict[Key, Original] = self._read_originals() if self._reverting else {}
        self.cases = _revert_cases(self._originals.values()) if self._reverting else [Case(setting) for setting in request.settings]

    def look(self) -> None:
        """Read all knobs and compare."""
        for case in self.cases:
            case.look(self._machine, self._where)
            self._leave_foreign(case)
            case.judge(self._machine, self._where)

    @property
    def has_to_write(self) -> bool:
        return any(case.outcome == KnobOutcome.WOULD_CHANGE for case in self.cases) or bool(self._reverted())

    def write(self, waits: Callable[[str], None]) -> None:
        """Write what differs, and what there is to be kept about it.

        Whoever changes a service looks whether the host's lock is held, so it is let go again while an order is waited for.

        Raises:
            AgentRefusal: ``locked``.
        """
        request, deadline = self._request, Deadline(self._request.wait)
        try:
            while True:
                with self._locked(deadline, waits):
                    orders = _orders_at_work(request.state_root)
                    if not orders:
                        return self._write_locked()
                if deadline.passed:
                    raise _held_by_order(orders)
                waits("; ".join(orders))
                time.sleep(min(_POLL_SECONDS, deadline.left()))
        except KeptError as error:
            for case in self.cases:
                if case.outcome == KnobOutcome.WOULD_CHANGE:
                    _not_kept(case, error)

    @contextlib.contextmanager
    def _locked(self, deadline: Deadline, waits: Callable[[str], None]) -> Iterator[None]:
        """Hold the host's lock, once it is free."""
        request = self._request
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self._machine.folder.locked(Holder(request.operator, request.reason, request.profile)))
                except AgentRefusal as refusal:
                    if deadline.passed:
                        raise
                    waits(refusal.failure.message)
                else:
                    yield
                    return
            time.sleep(min(_POLL_SECONDS, deadline.left()))

    def kept(self) -> List[Key]:
        """The originals that a revert would put back; none also where they may not be read."""
        try:
            return list(self._machine.folder.originals())
        except KeptError:
            return []

    def _write_locked(self) -> None:
        for case in self.cases:  # somebody may have been at work since the first look
            if case.outcome == KnobOutcome.WOULD_CHANGE:
                case.look(self._machine, self._where)
                self._leave_foreign(case)
                case.judge(self._machine, self._where)
        self._originals = self._machine.folder.originals()
        if not self._reverting:
            self._keep_originals([case for case in self.cases if case.outcome == KnobOutcome.WOULD_CHANGE])
        disturbed = False
        for case in sorted(self.cases, key=lambda case: WRITE_ORDER.get(case.setting.kind, 0)):
            if disturbed:
                self._look_again(case)
            if case.outcome == KnobOutcome.WOULD_CHANGE:
                _write(case, self._machine, self._where)
                disturbed = disturbed or (case.knob is not None and case.knob.disturbs)
        self._tell_history()
        self._forget_reverted()

    def _look_again(self, case: Case) -> None:
        """What was read before tuned set its profile may be so no more."""
        case.look(self._machine, self._where, again=True)
        case.judge(self._machine, self._where)
        if case.outcome == KnobOutcome.WOULD_CHANGE and not self._reverting:
            try:
                self._keep_originals([case])
            except KeptError as error:
                _not_kept(case, error)
        elif case.outcome == KnobOutcome.SAME and case.now != case.before:
            case.outcome = KnobOutcome.CHANGED
            case.remarks.append("set by tuned's profile")

    def _keep_originals(self, cases: Sequence[Case]) -> None:
        """Keep what was found, before the first write.

        Raises:
            KeptError: it could not be kept, so nothing may be written.
        """
        for case in cases:
            assert case.knob is not None
            setting = case.setting
            for item, wanted in case.differing().items():
                found, kept = case.before.get(item, case.now[item]), self._originals.get((setting.kind, setting.name, item))
                as_written = kept is not None and case.knob.equal(found, kept.written)
                value = first_value(kept, case.knob.original(found), as_written, self._boot_id)
                found_at = kept.time if kept is not None and value == kept.value else time.time()
                original = Original(setting.kind, setting.name, item, setting.place, value, wanted, self._boot_id, found_at)
                self._originals[original.key] = original
        if cases:
            self._machine.folder.keep(self._originals)

    def _read_originals(self) -> Dict[Key, Original]:
        try:
            return self._machine.folder.originals()
        except KeptError as error:
            category = "refused" if self._where.root else "rights"
            step = f"ls -la {self._machine.folder.path}" if self._where.root else "set `become: sudo` for this host"
            raise AgentRefusal(category, f"the original values can't be read, so nothing was reverted: {error}", next_step=step) from None

    def _leave_foreign(self, case: Case) -> None:
        """Nothing is put back over what somebody set at a later boot: neither the original nor ours (:func:`first_value`)."""
        if not self._reverting or case.knob is None:
            return
        for item, wanted in list(case.wanted.items()):
            original = self._originals[(case.setting.kind, case.setting.name, item)]
            now = case.now[item]
            known = [(now, original.written), (case.knob.original(now), wanted)]
            if original.boot_id != self._boot_id and not any(case.knob.equal(*pair) for pair in known):
                case.set_wanted(item, now)
                case.remarks.append(f"{item}: left as it is, for somebody else set it after a reboot".lstrip(": "))

    def _reverted(self) -> List[Key]:
        """The originals that are proven to be back."""
        if not self._reverting:
            return []
        cases = ((case, case.differing()) for case in self.cases)
        return [(case.setting.kind, case.setting.name, item) for case, left in cases for item in case.wanted if item not in left]

    def _forget_reverted(self) -> None:
        keys = set(self._reverted())
        if not keys:
            return
        try:
            self._machine.folder.keep({key: original for key, original in self._originals.items() if key not in keys})
        except KeptError as error:
            for case in self.cases:
                case.remarks.append(f"it is as it was, and still kept as an original: {error}")

    def _tell_history(self) -> None:
        request = self._request
        changed = [
            {"knob": case.setting.kind, "name": case.setting.name, "item": item, "before": case.before.get(item), "after": value}
            for case in self.cases
            for item, value in case.now.items()
            if case.before.get(item) != value
        ]
        if not changed:
            return
        entry = {"time": time.time(), "boot_id": self._boot_id, "operator": request.operator, "reason": request.reason}
        try:
            self._machine.folder.add_history({**entry, "profile": request.profile, "action": request.action, "changes": changed})
        except KeptError as error:
            for case in self.cases:
                if case.now != case.before:
                    case.remarks.append(f"not noted in the history: {error}")


def _orders_at_work(root: str) -> List[str]:
    """Who changes a service of this place now. Nothing is imported for it where no service has ever been changed."""
    root = root or DEFAULT_ROOT
    try:
        if not any(not name.startswith(".") for name in os.listdir(root)):
            return []
    except OSError:
        return []
    from orchestrator.agent.journal import orders_at_work
    from orchestrator.agent.wire_words import at_work

    return [at_work(order) for order in orders_at_work(root)]


def _held_by_order(orders: Sequence[str]) -> AgentRefusal:
    step = "fab prep --wait SECONDS waits for it; fab status shows how far it is"
    return AgentRefusal("locked", f"nothing was set while a service is being changed: {orders[0]}", orders[1:], step)


def _not_kept(case: Case, error: KeptError) -> None:
    case.outcome = KnobOutcome.FAILED
    case.notes.append(f"not written, as its original value can't be kept: {error}")


def _write(case: Case, machine: Machine, where: Standpoint) -> None:
    """Write the items that differ, read all of them back, and say how it went."""
    assert case.knob is not None
    tried = case.differing()
    refused = case.knob.write_all(machine, tried)
    case.look(machine, where, again=True)
    left = case.differing()
    case.problems = {item: _explain(refused.get(item), value, case.now.get(item), case.knob.source) for item, value in left.items()}
    case.problems.update({item: "written, and can't be read back" for item in tried if item not in case.now})
    if not case.problems:
        case.outcome = KnobOutcome.UNKNOWN if case.unread else KnobOutcome.CHANGED
        case.commands = case.knob.commands(tried)
    elif all(isinstance(refused.get(item), AbsentError) for item in case.problems):
        case.outcome = KnobOutcome.UNAVAILABLE
    else:
        case.outcome = KnobOutcome.FAILED


def _explain(error: Optional[Exception], wanted: str, now: Optional[str], path: str) -> str:
    if isinstance(error, OSError):
        meaning = _MEANINGS.get(error.errno or 0)
        return f"writing {wanted}: {error.strerror}" + (f": {meaning.format(path=path)}" if meaning else "")
    if isinstance(error, AbsentError):
        return str(error)
    if error is not None:
        return f"writing {wanted}: {error}"
    return f"{wanted} was written, {now or 'nothing'} is read back"


def _revert_cases(originals: Iterable[Original]) -> List[Case]:
    """A case for each knob with originals, whatever a profile says now."""
    items: Dict[Tuple[str, str, str], Dict[str, str]] = {}
    for original in originals:
        items.setdefault((original.kind, original.name, original.place), {})[original.item] = original.value
    cases = []
    for (kind, name, place), wanted in items.items():
        values = set(wanted.values())
        cases.append(
            Case(KnobSetting(kind, name, values.pop() if len(values) == 1 else None, place=place, why="its original value"), wanted)
        )
    return cases


def _persist(request: TuneRequest, files: KernelFiles, where: Standpoint) -> "Tuple[Optional[Persistence], List[str]]":
    """What is applied at boot, and the files made or removed for it."""
    reverting = request.action == TuneAction.REVERT
    installing = request.persistence == PersistenceAction.INSTALL
    removing = reverting or request.persistence == PersistenceAction.REMOVE
    traces = [files.path(path) for path in BOOT_FILES] + [HostFolder(request.state_root).boot]
    if where.container or not (installing or any(map(os.path.lexists, traces))):
        return None, []
    from orchestrator.agent import persistence

    changes: List[str] = []
    problem = None
    try:
        if installing:
            changes = persistence.install(request, files)
        elif removing:
            changes = persistence.remove(request, files)
    except AgentRefusal as refusal:  # the knobs have been dealt with by now, and what became of them must be told
        told = refusal.failure
        problem = " / ".join([told.message, *told.evidence]) + (f"; next: {told.next_step}" if told.next_step else "")
    found = persistence.describe(request.state_root, files)
    if problem is not None:
        import dataclasses

        found = found or Persistence(request.profile, os.path.basename(BOOT_FILES[0]), enabled=False, state="unknown")
        found = dataclasses.replace(found, problem=problem)
    return found, changes


def _planned(request: TuneRequest, files: KernelFiles, changes: Sequence[str]) -> Dict[str, str]:
    """What a plan would write into the files outside of our own folder."""
    if request.write or request.persistence != PersistenceAction.INSTALL:
        return {}
    from orchestrator.agent.persistence import planned

    return {path: text for path, text in planned(request, files).items() if path in changes}


def _facts(files: KernelFiles, where: Standpoint) -> List[Fact]:
    return [
        Fact(FactName.KERNEL, os.uname().release, "uname -r"),
        Fact(FactName.BOOT_ID, files.text(BOOT_ID), BOOT_ID),
        Fact(FactName.BOOTED, boot_moment(), BOOTED_SOURCE),
        Fact(FactName.CONTAINER, where.container, "/run/systemd/container, /proc/1/environ, /proc/self/uid_map"),
        Fact(FactName.DRIVER_MODULE, files.text(DRIVER_VERSION), DRIVER_VERSION),
    ]
