"""Three replicas behind a router: boxes that remember what they serve, a router in memory, and an operator who rolls and takes up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.roll_lock import rolling
from orchestrator.agent.router_protocol import RouterFailed
from orchestrator.agent.wire_router import (
    QuietReport,
    QuietRequest,
    RollLockRequest,
    RollLockStatus,
    RouterAction,
    RouterReport,
    RouterRequest,
    RouterTrouble,
    Trouble,
)
from orchestrator.config import Host, Inventory, load_inventory
from orchestrator.flows.roll import Roll, begin
from orchestrator.flows.roll_plan import Fleet, RollPlan, chosen_replicas, plan_roll
from orchestrator.flows.router import ReachedRouter, reach
from orchestrator.flows.target import Target
from orchestrator.results.redaction import Redactor
from orchestrator.results.roll import Standing
from orchestrator.results.roll_journal import FILE, RollJournal
from orchestrator.results.roll_records import Record
from orchestrator.results.runs import RunFolders, runs_root
from orchestrator.results.sweep_records import Allowed
from tests.unit.fake_router import FakeRouter
from tests.unit.flows.fake_agent import Heard
from tests.unit.flows.samples import BACKEND_DIFFERENCE, write_inventory
from tests.unit.flows.swept_box import SweptBox

SERVICES = ("r1", "r2", "r3")
WORKERS = {name: f"http://10.0.0.{number}:30000" for number, name in enumerate(SERVICES, start=1)}
NAME = "20261130T000000Z-roll-front"


class Killed(BaseException):
    """The operator's end by SIGKILL."""


@dataclass
class RolledBox(SweptBox):
    """A replica's box. `reaches`: the router can be asked from there. `loads` are what its server says, the last one for ever."""

    worker: str = ""
    router: FakeRouter = field(default_factory=FakeRouter)
    state_root: str = ""
    reaches: bool = False
    loads: list[int] = field(default_factory=lambda: [0])
    served_out: list[bool] = field(default_factory=list)
    """For each order: whether the server was out of the router when it was stopped."""

    def on_router(self, request: RouterRequest) -> RouterReport:
        if not self.reaches:
            return RouterReport(trouble=RouterTrouble(Trouble.UNREACHABLE, "no route to host"))
        try:
            if request.action == RouterAction.REMOVE:
                self.router.router.remove(request.worker, Deadline(5))
            elif request.action == RouterAction.ADD:
                self.router.router.add(request.worker, request.worker_key, Deadline(request.seconds))
            return RouterReport(self.router.router.look())
        except RouterFailed as failed:
            return RouterReport(trouble=failed.trouble)

    def on_preflight(self, request: wire.PreflightRequest) -> wire.PreflightReport:
        """The backends differ, where they do."""
        report = super().on_preflight(request)
        assert request.launch is not None
        if self.serves is None or self.backends[self.serves] == request.launch.backend:
            return report
        return replace(report, differences=[*report.differences, BACKEND_DIFFERENCE])

    def on_rolling(self, request: RollLockRequest) -> RollLockStatus:
        return rolling(replace(request, state_root=self.state_root), lambda kind, data: None)

    def on_quiet(self, request: QuietRequest) -> QuietReport:
        load = self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]
        return QuietReport(load == 0, load, 0.9)

    def on_submit(self, order: wire.Order) -> wire.Submitted:
        if order.router is not None:
            self.router.router.remove(order.router.worker, Deadline(5))
        self.served_out.append(self.worker not in self.router.urls)
        self.router.serving.pop(self.worker, None)
        submitted = super().on_submit(order)
        if self.up:
            self.router.serving[self.worker] = "m"
        if order.router is not None and self.up:
            self.router.router.add(order.router.worker, None, Deadline(5))
        return submitted


@dataclass
class Watcher:
    """Hears of the steps."""

    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    heard: Heard = field(default_factory=Heard)

    def begins(self, step: str, doing: str) -> Heard:
        self.begun.append(f"{step} {doing}")
        return self.heard

    def ends(self, step: str, said: str, *, good: bool) -> None:
        self.ended.append(f"{'+' if good else '-'} {step} {said}")


class MortalJournal(RollJournal):
    """A journal whose writer is killed before or after one of its records."""

    def __init__(self, path: Path, dies_at: int | None) -> None:
        super().__init__(path, Redactor())
        self._dies_at = dies_at
        self._instant = 0

    def append(self, record: Record) -> None:
        self._pass()
        super().append(record)
        self._pass()

    def _pass(self) -> None:
        if self._dies_at == self._instant:
            raise Killed
        self._instant += 1


class RolledFleet:
    """An operator with three replicas behind a router."""

    def __init__(self, folder: Path, *, smg: bool = False, reaches: bool = False, **changes: Any) -> None:
        self.inventory = load_inventory(_write_fleet(folder, **changes))
        self.router = FakeRouter.of(*WORKERS.values(), smg=smg)
        root = str(folder.with_name("state"))
        self.boxes = {name: RolledBox(worker=WORKERS[name], router=self.router, state_root=root, reaches=reaches) for name in SERVICES}
        self.watcher = Watcher()
        self.allowed = Allowed()

    @property
    def fleet(self) -> Fleet:
        router = self.inventory.router("front")
        asked: ReachedRouter = replace(reach(self.inventory, router), open_router=self._open_router)
        return Fleet(self.inventory, router, asked, self.connect, self.open)

    @property
    def path(self) -> Path:
        return runs_root().absolute() / NAME / FILE

    @contextmanager
    def _open_router(self, address: object) -> Iterator[Any]:
        yield self.router.router

    @contextmanager
    def connect(self, target: Target) -> Iterator[RolledBox]:
        yield self.boxes[target.service.name]

    @contextmanager
    def open(self, inventory: Inventory, host: Host, kind: str) -> Iterator[RolledBox]:
        yield self.boxes["r1"]

    def plan(self, backend: str = "flashinfer_cutedsl", services: list[str] | None = None, standing: Standing | None = None) -> RollPlan:
        replicas = chosen_replicas(self.fleet.router, services)
        if standing is not None:
            replicas = standing.to_take
        profiles = self.inventory.backends_named(backend)
        return plan_roll(self.fleet, backend, profiles, replicas, self.allowed, Heard(), standing)

    def roll(self, backend: str = "flashinfer_cutedsl", services: list[str] | None = None, dies_at: int | None = None) -> Standing:
        planned = self.plan(backend, services)
        assert not planned.refusals, planned.refusals
        with MortalJournal(self.path, dies_at) as journal:
            begin(journal, planned, self.allowed)
            return self.hands(journal).carry_on()

    def resume(self, take_up: Callable[[str], bool] = lambda what: True) -> Standing:
        with RollJournal(self.path, Redactor()) as journal:
            hands = self.hands(journal, take_up)
            hands.finish_turn()
            standing = journal.standing
            planned = self.plan(standing.begun.backend, standing=standing)
            assert not planned.refusals, planned.refusals
            begin(journal, planned, self.allowed)
            return hands.carry_on()

    def hands(self, journal: RollJournal, take_up: Callable[[str], bool] = lambda what: False) -> Roll:
        def folders(service: str) -> RunFolders:
            return RunFolders(["gpu1", service], Redactor(), lambda text: None)

        profiles = self.inventory.backends_named(journal.standing.begun.backend)
        return Roll(self.fleet, profiles, journal, self.watcher, folders, lambda order: False, take_up)

    @property
    def serves(self) -> dict[str, str]:
        """The backend of each replica."""
        return {name: box.backends[str(box.serves)] if box.up else "nothing" for name, box in self.boxes.items()}


def _write_fleet(folder: Path, **changes: Any) -> Path:
    write_inventory(folder)
    text = (folder / "services" / "glm5.yml").read_text(encoding="utf-8")
    (folder / "services" / "glm5.yml").unlink()
    for name in SERVICES:
        (folder / "services" / f"{name}.yml").write_text(text.replace("name: glm5", f"name: {name}"), encoding="utf-8")
    (folder / "routers").mkdir()
    replicas = "".join(f"  - {{service: {name}, worker: '{url}'}}\n" for name, url in WORKERS.items())
    more = "".join(f"{key}: {value}\n" for key, value in {"drain": 5.0, "join": 0.5, "traffic": 0.5, **changes}.items())
    router = f"name: front\nurl: http://10.0.0.9:30001\nmetrics: http://10.0.0.9:29000/metrics\n{more}replicas:\n{replicas}"
    (folder / "routers" / "front.yml").write_text(router, encoding="utf-8")
    return folder
