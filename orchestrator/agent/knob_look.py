"""Looking at knobs: what is there, whether it is as wanted, and whether it could be set from here. Nothing here writes."""

import errno
import os
from typing import Dict, List, NamedTuple, Optional, Sequence

from orchestrator.agent.kernel_files import KernelFiles
from orchestrator.agent.knobs import AbsentError, Knob, Machine, UnreadableError, UnsuitableError, make_knob
from orchestrator.agent.wire_host import KnobOutcome, KnobResult, KnobSetting, PlaceKind

_NAMED = 4
"""How many items are named one by one before the rest is only counted."""
_HIDDEN = "a container ({}) does not show the host's value"
_BECOME_ROOT = "set `become: sudo` for this host"
_WHOLE_USER_RANGE = ["0", "0", "4294967295"]


class Standpoint(NamedTuple):
    """From where knobs are looked at: in a container (its kind, None on a bare host), and whether as root."""

    container: Optional[str]
    root: bool


def standpoint(files: KernelFiles) -> Standpoint:
    """As the kernel tells it. A user namespace that does not hold all users is a container, whoever made it."""
    from orchestrator.agent.main import container_kind

    users = (files.text("/proc/self/uid_map") or "").split()
    kind = container_kind() or (None if users in ([], _WHOLE_USER_RANGE) else "user namespace")
    return Standpoint(kind, os.geteuid() == 0)


class Case:
    """One knob under way: what is wanted of each item, how it was found, and what became of it.

    `wanted` None means the setting's value, for every item that there is.
    """

    def __init__(self, setting: KnobSetting, wanted: Optional[Dict[str, str]] = None) -> None:
        self.setting = setting
        self.outcome = KnobOutcome.UNKNOWN
        self.before: Dict[str, str] = {}
        """As first looked at."""
        self.now: Dict[str, str] = {}
        """As last looked at."""
        self.notes: List[str] = []
        """Of the last look."""
        self.remarks: List[str] = []
        """That stay, whatever a later look finds."""
        self.commands: List[str] = []
        self.problems: Dict[str, str] = {}
        """What went wrong with an item's write."""
        self.knob: Optional[Knob] = None
        self._wanted = wanted
        self._problem: Optional[str] = None
        self._missing: Dict[str, str] = {}
        try:
            self.knob = make_knob(setting)
        except UnsuitableError as error:
            self._problem = str(error)
            self.outcome = KnobOutcome.UNKNOWN if setting.value is None else KnobOutcome.FAILED

    @property
    def wanted(self) -> Dict[str, str]:
        """The wanted value of each item that could be read."""
        if self._wanted is not None:
            return {item: value for item, value in self._wanted.items() if item in self.now}
        return {} if self.setting.value is None else dict.fromkeys(self.now, self.setting.value)

    @property
    def unread(self) -> bool:
        """Whether an item that something is wanted of could not be read, so that nobody can say of the whole that it is as wanted."""
        return any(self._wanted is None or item in self._wanted for item in self._missing)

    def set_wanted(self, item: str, value: str) -> None:
        """Want another value of one item."""
        self._wanted = {**self.wanted, item: value}

    def differing(self) -> Dict[str, str]:
        """The wanted value of each item that is not so."""
        return {item: value for item, value in self.wanted.items() if self.knob and not self.knob.equal(self.now[item], value)}

    def look(self, machine: Machine, where: Standpoint, again: bool = False) -> None:
        """Read all items. `again`: what was found first stays in `before`."""
        self.now, self._missing, self.notes = {}, {}, []
        if self.knob is None:
            return
        if where.container and self.setting.place == PlaceKind.HOST and not self.knob.container_shows:
            self.outcome, self._problem = KnobOutcome.UNKNOWN, _HIDDEN.format(where.container)
            return
        try:
            readings = self.knob.read(machine)
        except AbsentError as error:
            self.outcome, self._problem = KnobOutcome.UNAVAILABLE, str(error)
            if where.container and self.setting.place == PlaceKind.HOST:  # which says nothing of the machine below
                self.outcome, self._problem = KnobOutcome.UNKNOWN, _HIDDEN.format(where.container)
            return
        except UnreadableError as error:
            self.outcome, self._problem = KnobOutcome.UNKNOWN, str(error)
            return
        self._problem = None
        gone = [item for item in self._wanted or {} if item not in readings]
        self._missing = dict.fromkeys(gone, "it is there no more")
        for item, reading in readings.items():
            if reading.value is not None:
                self.now[item] = reading.value
            elif reading.error_number == errno.EBUSY:  # cpufreq's answer for a policy whose CPUs are all offline
                self.notes.append(f"{item}: offline")
            else:
                self._missing[item] = f"could not be read: {reading.problem}"
        self.notes += listed(self._missing)
        if not again:
            self.before = dict(self.now)

    def judge(self, machine: Machine, where: Standpoint) -> None:
        """Say how it stands. :attr:`outcome` WOULD_CHANGE means that it differs and nothing is known to be in the way."""
        if self.knob is None or self._problem is not None:
            self._suggest(where)
            return
        differing = self.differing()
        if differing:
            self.commands = self.knob.commands(differing)
            self.outcome = self._obstructed(machine, where, differing) or KnobOutcome.WOULD_CHANGE
        elif self._missing or not self.now:
            self.outcome = KnobOutcome.UNKNOWN
            self._suggest(where)
        else:
            self.outcome = KnobOutcome.OBSERVED if self.setting.value is None and self._wanted is None else KnobOutcome.SAME

    def result(self) -> KnobResult:
        """What the operator is told."""
        remark = self.knob.remark(self.now) if self.knob and self.now else ""
        said = [self._problem or "", *self.remarks, *self.notes, *listed(self.problems), remark]
        return KnobResult(
            self.setting,
            self.outcome,
            self.before,
            self.now,
            "; ".join(filter(None, said)),
            self.knob.source if self.knob else "",
            self.commands,
        )

    def _obstructed(self, machine: Machine, where: Standpoint, differing: Dict[str, str]) -> Optional[str]:
        """The outcome that stands in the way of a write, noted."""
        assert self.knob is not None
        reason = self._not_from_here(self.knob, where)
        if reason:
            self.notes.append(reason)
            return KnobOutcome.NOT_SETTABLE
        if self.knob.told:
            self.notes.append(self.knob.told)
            return KnobOutcome.TOLD
        for item, value in differing.items():
            obstacle = self.knob.obstacle(machine, item, value)
            if obstacle:
                self.notes.append(f"not written: {obstacle}")
                return KnobOutcome.FAILED
        return None

    def _not_from_here(self, knob: Knob, where: Standpoint) -> str:
        if where.container and self.setting.place == PlaceKind.HOST:
            return f"it belongs to the host, and this is a container ({where.container})"
        if where.container and not knob.namespaced:
            return f"a container ({where.container}) has none of its own, so it belongs to the host: say `place: host` in the profile"
        return "" if where.root or knob.told else f"it needs root here: {_BECOME_ROOT}"

    def _suggest(self, where: Standpoint) -> None:
        """What to type for a value that could not be read from here."""
        if not self.knob or self.outcome != KnobOutcome.UNKNOWN or (where.root and not where.container):
            return
        if not where.container:
            self.notes.append(f"root may be able to: {_BECOME_ROOT}")
        if self.setting.value is not None:
            self.commands = self.knob.commands(dict.fromkeys(self._missing or self.now or {"": ""}, self.setting.value))


def look_at(settings: Sequence[KnobSetting], machine: Machine, where: Standpoint) -> List[KnobResult]:
    """Compare knobs with what a profile wants of them; for whoever will write nothing."""
    results = []
    for setting in settings:
        case = Case(setting)
        case.look(machine, where)
        case.judge(machine, where)
        results.append(case.result())
    return results


def listed(problems: Dict[str, str]) -> List[str]:
    """``ITEM: PROBLEM`` for each; where many items say the same, they share one line."""
    items: Dict[str, List[str]] = {}
    for item, problem in problems.items():
        items.setdefault(problem, []).append(item)
    return [f"{_names(names)}{problem}" for problem, names in items.items()]


def _names(items: Sequence[str]) -> str:
    if list(items) == [""]:
        return ""
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more + ": "
