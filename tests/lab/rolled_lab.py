"""Replicas of the lab's stand-in behind SGLang's real router, and an operator who rolls them under load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import JOURNAL, read_journal
from orchestrator.agent.processes import Server, find_server
from orchestrator.agent.state_folder import StateFolder
from orchestrator.lab import control
from orchestrator.lab.build import free_ports
from orchestrator.lab.layout import Layout
from orchestrator.lab.processes import kill, start_time
from orchestrator.results.roll_journal import FILE, read_records
from orchestrator.results.roll_records import Ordered, Record
from tests.rig.router import RealRouter
from tests.rig.steady_load import SteadyLoad

GOOD, FAILING = "lab-b200", "lab-rtx6000"
"""On the second one the backend flashinfer_cutedsl fails after its load."""
PATIENCE = 240.0
ROLL_SECONDS = 120.0
"""For each replica of a whole roll, on a busy machine of two cores."""


@dataclass
class RolledLab:
    """A lab, its replicas by their services, and the router before them."""

    layout: Layout
    ports: dict[str, int]
    router: RealRouter
    runs: Path

    @property
    def environment(self) -> dict[str, str]:
        named = {"ORCHESTRATOR_INVENTORY": str(self.layout.inventory), "ORCHESTRATOR_RUNS": str(self.runs), "NO_COLOR": "1"}
        return {**os.environ, **named}

    @property
    def workers(self) -> dict[str, str]:
        return {service: f"http://127.0.0.1:{port}" for service, port in self.ports.items()}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        seconds = ROLL_SECONDS * len(self.ports)
        return subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=seconds, check=False)

    def ask(self, *words: str, code: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    def load(self) -> SteadyLoad:
        return SteadyLoad(self.router.port, str(self.layout.model))

    def server(self, service: str) -> Server | None:
        return find_server(self.ports[service])

    def backend(self, service: str) -> str | None:
        """The backend that a replica runs with, by its command line."""
        server = self.server(service)
        words = [] if server is None else list(server.main.arguments)
        return words[words.index("--moe-runner-backend") + 1] if "--moe-runner-backend" in words else None

    def host(self, service: str) -> str:
        return str(yaml.safe_load((self.layout.inventory / "services" / f"{service}.yml").read_text())["host"])

    def launch(self, service: str, backend: str = "auto") -> None:
        done = self.run("launch", "--backend", backend, "--yes", "--host", self.host(service), "--service", service)
        assert done.returncode == 0, done.stderr + done.stdout

    def kill_server(self, service: str) -> None:
        """SIGKILL to all processes of a replica's server."""
        server = self.server(service)
        assert server is not None
        for member in server.members:
            kill(member.pid, start_time(member.pid))

    def asked_from(self, host: str | None) -> None:
        """Have the inventory say from where the router is asked."""
        path = self.layout.inventory / "routers" / "front.yml"
        described = yaml.safe_load(path.read_text())
        for key in ("host", "place"):
            described.pop(key, None)
        if host is not None:
            described.update(host=host, place="host")
        path.write_text(yaml.safe_dump(described))

    def records(self) -> list[Record]:
        """The newest roll's journal."""
        journals = sorted(self.runs.glob(f"*-roll-front*/{FILE}"))
        return read_records(journals[-1]) if journals else []

    def states(self, records: Sequence[Record]) -> list[str]:
        """The states of the order that a roll has handed in last, by its journal on the box; none before the box has taken it."""
        ordered = [record for record in records if isinstance(record, Ordered)]
        if not ordered:
            return []
        folder = StateFolder(str(self.layout.state_root(self.host(ordered[-1].service))), ordered[-1].service)
        return [entry.state for entry in read_journal(folder.order_folder(ordered[-1].order_id) / JOURNAL)]

    @contextmanager
    def beginning(self, until: Callable[[list[Record]], bool], *words: str) -> Iterator[subprocess.Popen[str]]:
        """A roll at work whose own journal is as it should be; it is killed if it still is when that is left."""
        before = len(list(self.runs.glob(f"*-roll-front*/{FILE}")))
        process = subprocess.Popen(
            self.command("roll", "--yes", "--json", *words),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def is_there() -> bool:
            begun = len(list(self.runs.glob(f"*-roll-front*/{FILE}"))) > before
            return (begun and until(self.records())) or process.poll() is not None

        try:
            assert wait_until(is_there, Deadline(PATIENCE), 0.01)
            assert process.poll() is None, f"it has ended before that: {process.communicate()}"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def killed(self, until: Callable[[list[Record]], bool], *words: str) -> None:
        """Begin a roll and end its process by SIGKILL as soon as its own journal is as it should be."""
        with self.beginning(until, *words):
            return


@contextmanager
def rolled_lab(folder: Path, kind: str, hosts: Sequence[str], *flags: str) -> Iterator[RolledLab]:
    """A lab with a replica for each of `hosts`, all serving with the backend auto behind a router of that kind, started with `flags`."""
    names = [f"r{number}" for number in range(1, len(hosts) + 1)]
    ports = free_ports(len(names) + 2)
    router = RealRouter(kind, ports.pop(), ports.pop(), folder / "router.log")
    try:
        control.up(folder / "lab")
        layout = Layout.of(folder / "lab")
        made = RolledLab(layout, dict(zip(names, ports, strict=True)), router, folder / "runs")
        _write(made, hosts)
        for name in names:
            made.launch(name)
        router.start(list(made.workers.values()), *flags)
        yield made
    finally:
        router.kill()
        control.down(folder / "lab")


def _write(lab: RolledLab, hosts: Sequence[str]) -> None:
    """Each replica has a GPU of its own, as two of them would not fit on one."""
    services = lab.layout.inventory / "services"
    base = {host: yaml.safe_load((services / f"{host.replace('lab', 'glm5')}.yml").read_text()) for host in (GOOD, FAILING)}
    for path in services.iterdir():
        path.unlink()
    for number, (name, host) in enumerate(zip(lab.ports, hosts, strict=True)):
        service = {**base[host], "name": name, "port": lab.ports[name], "environment": {"CUDA_VISIBLE_DEVICES": str(number)}}
        service["arguments"] = {**service["arguments"], "--tp-size": 1}
        service["policy"] = {**service["policy"], "generations": 1}
        (services / f"{name}.yml").write_text(yaml.safe_dump(service))
    for host in set(hosts):
        settings = lab.layout.python(host).parent.parent / "standin.json"
        quick = {"time_scale": 0.02, "tokens_per_second": 100}
        settings.write_text(json.dumps({**json.loads(settings.read_text()), **quick}))
    described = {
        "name": "front",
        "url": lab.router.url,
        "metrics": lab.router.metrics_url,
        "replicas": [{"service": name, "worker": url} for name, url in lab.workers.items()],
        "drain": 30.0,
        "join": 30.0,
        "traffic": 30.0,
    }
    (lab.layout.inventory / "routers").mkdir()
    (lab.layout.inventory / "routers" / "front.yml").write_text(yaml.safe_dump(described))
