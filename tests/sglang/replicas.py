"""Two real servers behind SGLang's real router, which clients of the rig ask all the while, and an operator who rolls them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.results.roll_journal import FILE, read_records
from orchestrator.results.roll_records import By, Changed, Finished, Ordered, Record
from tests.rig.inventory import BY_SSH, write_service
from tests.rig.network import Bridge, free_port
from tests.rig.operator import Answer, Operator, Running
from tests.rig.router import RealRouter
from tests.rig.sglang import ContainerProcess, SglangService, healthy, sglang_processes
from tests.rig.steady_load import SteadyLoad
from tests.sglang.stage import describe_service

PORTS = {"r1": 31011, "r2": 31012}
PATIENCE = 600.0
CLIENT_SECONDS = 300.0
"""For a request. Where a load takes most of two cores, one replica answers fewer than four requests a second, and they queue."""
STATE_ROOT = "/var/lib/orchestrator"
DRAIN, JOIN, TRAFFIC = 60.0, 60.0, 60.0
POLICY = {"load_total": 600, "generations": 1}
"""A load shares two cores with a server that answers, and with whatever else runs there."""


@dataclass
class Replicas:
    """The services `r1` and `r2` in the container, and who rolls them."""

    service: SglangService
    operator: Operator
    bridge: Bridge
    folder: Path
    router: RealRouter | None = None

    @property
    def workers(self) -> dict[str, str]:
        return {name: f"http://{self.service.container.address}:{port}" for name, port in PORTS.items()}

    def write(self) -> None:
        """Put the two services into the inventory."""
        described = describe_service(self.service, BY_SSH)
        for name, port in PORTS.items():
            write_service(self.operator.inventory, name, {**described, "port": port, "policy": {**described["policy"], **POLICY}})

    def launch(self, *names: str, backend: str) -> None:
        """Start these side by side, each proven as any launch is."""
        with ThreadPoolExecutor() as pool:
            words = ("--host", BY_SSH, "--backend", backend, "--yes")
            for answer in pool.map(lambda name: self.operator.ask("launch", "--service", name, *words, timeout=900.0), names):
                answer.expect(0)

    @contextmanager
    def behind(self, kind: str, by: str) -> Iterator[RealRouter]:
        """A router of that kind with both replicas, where the box reaches it (``supervisor``) or on a loopback that is not the box's."""
        host = self.bridge.address(1) if by == By.SUPERVISOR else "127.0.0.1"
        router = RealRouter(kind, free_port(), free_port(), self.folder / f"{kind}-{by}.log", host)
        self._write_router(router)
        try:
            router.start(list(self.workers.values()))
            self.router = router
            yield router
        finally:
            self.router = None
            router.kill()

    def _write_router(self, router: RealRouter) -> None:
        path = self.operator.inventory / "routers" / "front.yml"
        path.parent.mkdir(exist_ok=True)
        replicas = [{"service": name, "worker": url} for name, url in self.workers.items()]
        waits = {"drain": DRAIN, "join": JOIN, "traffic": TRAFFIC}
        described = {"name": "front", "url": router.url, "metrics": router.metrics_url, "replicas": replicas, **waits}
        path.write_text(yaml.safe_dump(described))

    def load(self) -> SteadyLoad:
        assert self.router is not None
        return SteadyLoad(self.router.port, self.service.model, address=self.router.address, patience=CLIENT_SECONDS)

    def roll(self, *flags: str) -> Answer:
        return self.operator.ask("roll", "--router", "front", *flags, timeout=1500.0)

    def argument(self, name: str, argument: str) -> Any:
        """One of a replica's arguments, as its server says itself."""
        answer = httpx.get(f"{self.workers[name]}/server_info", timeout=10.0, trust_env=False)
        return answer.json()[argument]

    def policies(self) -> dict[str, Any]:
        """What the tests' backends change, for each replica."""
        return {name: self.argument(name, "schedule_policy") for name in PORTS}

    def main(self, name: str) -> ContainerProcess:
        """The main process of the server that serves, where a second one waits at its gate or loads: the older one."""
        found = [process for process in sglang_processes(self.service) if f"--port {PORTS[name]}" in process.title]
        return min(found, key=lambda process: process.started)

    def kill(self, name: str) -> None:
        """SIGKILL to a replica's server, which nothing starts again; the kernel ends its schedulers with it."""
        container = self.service.container
        container.path(f"{STATE_ROOT}/{name}/boot").unlink(missing_ok=True)
        container.run("kill", "-KILL", str(self.main(name).pid))

    def clear(self) -> None:
        """End what is left of both, by the program and then without it."""
        for name, url in self.workers.items():
            if healthy(url):
                self.operator.ask("teardown", "--service", name, "--host", BY_SSH, "--yes")
        for process in sglang_processes(self.service):
            if any(f"--port {port}" in process.title for port in PORTS.values()):
                self.service.container.run("kill", "-KILL", str(process.pid), check=False)

    def records(self) -> list[Record]:
        """The newest roll's journal."""
        journals = sorted(self.operator.runs.glob(f"*-roll-front*/{FILE}"))
        return read_records(journals[-1]) if journals else []

    def changed(self) -> list[tuple[str, str]]:
        """How each order of the newest roll has ended."""
        return [(record.service, record.state) for record in self.records() if isinstance(record, Changed)]

    def said(self) -> str:
        """How the newest roll has ended, in its own words."""
        return next(record.said for record in self.records() if isinstance(record, Finished))

    def states(self) -> list[str]:
        """The states of the order that the newest roll has handed in last, by its journal on the box."""
        ordered = [record for record in self.records() if isinstance(record, Ordered)]
        if not ordered:
            return []
        path = self.service.container.path(f"{STATE_ROOT}/{ordered[-1].service}/orders/{ordered[-1].order_id}/journal.jsonl")
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines()
        return [json.loads(line)["state"] for line in lines if line.endswith("}")]

    @contextmanager
    def rolling(self, until: Callable[[list[str]], bool], *flags: str) -> Iterator[Running]:
        """A roll at work whose order has come to the states that are waited for; it is killed by being left, if it has not ended."""
        before = len(list(self.operator.runs.glob(f"*-roll-front*/{FILE}")))

        def is_there() -> bool:
            begun = len(list(self.operator.runs.glob(f"*-roll-front*/{FILE}"))) > before
            return (begun and until(self.states())) or running.process.poll() is not None

        with self.operator.watching("roll", "--router", "front", "--yes", *flags) as running:
            assert wait_until(is_there, Deadline(PATIENCE), 0.02), self.states()
            assert running.process.poll() is None, f"it has ended before that: {running.errors.read_text()}"
            yield running


@dataclass
class Fewest:
    """Looks at the router's list again and again: how many of its workers served when there were fewest."""

    router: RealRouter
    count: int = 1000
    _ended: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while not self._ended.wait(0.1):
            self.count = min(self.count, len(self.router.serving()))


@contextmanager
def fewest_serving(router: RealRouter) -> Iterator[Fewest]:
    """Look as long as the block lasts."""
    made = Fewest(router)
    thread = threading.Thread(target=made.look, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made._ended.set()
        thread.join(30.0)
