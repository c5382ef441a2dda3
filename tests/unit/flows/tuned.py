"""Places of hosts that answer ``tune`` from a script, and knobs as they come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.wire_host import FactName, KnobOutcome, KnobResult, KnobSetting, TuneReport, TuneRequest
from orchestrator.config import Host, Inventory, load_inventory
from tests.unit.flows.fake_agent import FakeAgent, Step, answer

NUMA = KnobSetting("sysctl", "kernel.numa_balancing", "0")
GOVERNOR = KnobSetting("cpu_governor", value="performance")
READ_REQUEST = KnobSetting("pcie_max_read_request", value="4096")
HMM = KnobSetting("module_parameter", "nvidia_uvm.uvm_disable_hmm", "1")
POLICIES = [f"policy{number}" for number in range(64)]
GPUS = [f"0000:{number:02x}:00.0" for number in range(0x41, 0x49)]

_TUNING = """
name: {name}
summary: for tests
knobs:
  - {{knob: sysctl, name: kernel.numa_balancing, value: 0}}
  - {{knob: cpu_governor, value: performance}}
"""
_CONTAINER_KNOB = "  - {knob: sysctl, name: net.core.somaxconn, value: 4096, place: container}\n"


def write_tuned(folder: Path, hosts: dict[str, str], *, container_knobs: bool = False) -> Inventory:
    """An inventory of `hosts`, each with what its entry has besides an address: YAML in one line, such as ``tuning: fast``."""
    for name in ("services", "backends", "tuning"):
        (folder / name).mkdir(parents=True)
    lines = [f"  {name}: {{address: 127.0.0.{number}, {more}}}\n" for number, (name, more) in enumerate(hosts.items(), 1)]
    (folder / "hosts.yml").write_text("hosts:\n" + "".join(lines), encoding="utf-8")
    (folder / "tuning" / "fast.yml").write_text(_TUNING.format(name="fast") + _CONTAINER_KNOB * container_knobs, encoding="utf-8")
    (folder / "tuning" / "plain.yml").write_text(_TUNING.format(name="plain"), encoding="utf-8")
    return load_inventory(folder)


BY_SSH = "container: {reached_by: ssh, id: 101, address: 127.0.1.1}"
BY_PCT = "container: {reached_by: pct, id: 101}"


def knob(setting: KnobSetting, outcome: str, before: Any = "1", after: Any = None, **more: Any) -> KnobResult:
    """A result; a text stands for a knob that there is once."""
    then, now = ({"": value} if isinstance(value, str) else value for value in (before, before if after is None else after))
    return KnobResult(setting, outcome, then, now, **{"source": "/proc/sys/kernel/numa_balancing", **more})


def same(setting: KnobSetting = NUMA) -> KnobResult:
    return knob(setting, KnobOutcome.SAME, str(setting.value))


def changed(setting: KnobSetting = NUMA) -> KnobResult:
    return knob(setting, KnobOutcome.CHANGED, "1", str(setting.value))


def report(*results: KnobResult, booted: float = 1764400000.0, **more: Any) -> TuneReport:
    facts = [wire.Fact(FactName.KERNEL, "6.8.12-9-pve", "uname"), wire.Fact(FactName.BOOTED, booted, "CLOCK_BOOTTIME")]
    return TuneReport(list(results), [*facts, *more.pop("facts", [])], **more)


Script = TuneReport | BaseException | Callable[[TuneRequest], TuneReport]


@dataclass
class Fleet:
    """Hosts' places by label kind (``gpu1 host``, ``gpu1 container``), each with what it answers; without one, a host where all is well.

    An error in `unreachable` is raised instead of a connection, whose threads are in `threads`.
    """

    answers: dict[str, Script] = field(default_factory=dict)
    unreachable: dict[str, BaseException] = field(default_factory=dict)
    waits: dict[str, Callable[[], Any]] = field(default_factory=dict)
    asked: list[tuple[str, TuneRequest]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    at_work: list[list[wire.OrderStatus]] = field(default_factory=list)
    """What a container says, one answer after the other, of orders at work in it; nothing when all are said."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self, inventory: Inventory, host: Host, kind: str) -> Iterator[FakeAgent]:
        label = f"{host.name} {kind}"
        self.opened.append(label)
        if label in self.unreachable:
            raise self.unreachable[label]
        agent = _Agent(self, label)
        yield agent

    def requests(self, label: str) -> list[TuneRequest]:
        return [request for asked, request in self.asked if asked == label]

    def answer(self, label: str, request: TuneRequest) -> list[Step]:
        with self._lock:
            self.asked.append((label, request))
        self.waits.get(label, lambda: None)()
        script = self.answers.get(label, report(*(same(setting) for setting in request.settings)))
        if isinstance(script, BaseException):
            return [script]
        return answer(script if isinstance(script, TuneReport) else script(request))


class _Agent(FakeAgent):
    def __init__(self, fleet: Fleet, label: str) -> None:
        super().__init__()
        self._fleet = fleet
        self._label = label

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        if verb == "lock":
            at_work = self._fleet.at_work.pop(0) if self._fleet.at_work else []
            yield wire.Event(wire.EventKind.RESULT, wire.to_json(wire.LockStatus(at_work=at_work)))
            return
        assert verb in ("tune", "persist")
        assert timeout is not None, "a call without a bound"
        for step in self._fleet.answer(self._label, request):
            if isinstance(step, BaseException):
                raise step
            yield step
