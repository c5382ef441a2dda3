"""What the tests do to the service on the box, and what they look at there, past the program under test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.rig.commands import wait_for
from tests.rig.inventory import write_service
from tests.rig.operator import Operator
from tests.rig.sglang import (
    ARGUMENTS,
    ENVIRONMENT,
    ContainerProcess,
    ServerByHand,
    SglangService,
    healthy,
    listening_ports,
    sglang_processes,
)

SERVICE = "tiny"
PORT, NEIGHBOUR_PORT = 31001, 31002
"""In the container, whose network is its own."""

# The tiny model has random weights, and writes accordingly.
POLICY = {"measure_input_tokens": 64, "measure_output_tokens": 32, "measure_repeats": 3, "load_total": 240, "garbage": "warn"}


def describe_service(service: SglangService, host: str) -> dict[str, Any]:
    """The service as its YAML says it."""
    return {
        "host": host,
        "python": str(service.environment.python),
        "model": service.model,
        "bind": "0.0.0.0",
        "port": PORT,
        "arguments": dict(ARGUMENTS),
        "environment": dict(ENVIRONMENT),
        "policy": POLICY,
    }


def write_tiny_service(inventory: Path, description: Mapping[str, Any]) -> None:
    """Put the service into an inventory."""
    write_service(inventory, SERVICE, description)


@dataclass(frozen=True)
class Stage:
    """The service `tiny` on port `PORT` of the container."""

    service: SglangService
    operator: Operator

    @property
    def url(self) -> str:
        return f"http://{self.service.container.address}:{PORT}"

    def main(self) -> ContainerProcess | None:
        """The main process of whatever server runs, or loads, on the service's port."""
        mains = self.mains()
        assert len(mains) <= 1, f"more than one server for port {PORT}: {mains}"
        return mains[0] if mains else None

    def mains(self) -> list[ContainerProcess]:
        """The main processes of all servers for the service's port, of which one may wait at its gate."""
        return [process for process in sglang_processes(self.service) if f"--port {PORT}" in process.title]

    def serving(self) -> ContainerProcess:
        """The main process of a server that serves: the one that is there, else one started by hand."""
        found = self.main()
        if found is not None and healthy(self.url):
            return found
        return self.serving_by_hand()

    def serving_by_hand(self) -> ContainerProcess:
        """Start one with nohup, in place of any other, and wait until it serves."""
        self.clear()
        self.service.start_by_hand(PORT).wait_serving()
        return self.loaded()

    def serving_as_unit(self, unit: str) -> ContainerProcess:
        """Start one as a systemd unit that is always started again, in place of any other, and wait until it serves."""
        self.clear()
        self.service.start_as_unit(unit, PORT).wait_serving()
        return self.loaded()

    def loaded(self) -> ContainerProcess:
        """The main process of the server that must be there."""
        found = self.main()
        assert found is not None, f"no server on port {PORT}"
        return found

    def clear(self) -> None:
        """End what runs on the service's port, without the program under test."""
        for unit in self.units():
            self.service.container.run("systemctl", "kill", "--signal=KILL", unit, check=False)
            self.service.container.run("systemctl", "stop", unit, check=False)
        found = self.main()
        if found is not None:
            ServerByHand(self.service.container, PORT, found.pid, "").kill()
        wait_for(f"port {PORT} free", lambda: PORT not in listening_ports(self.service.container), 30.0, 0.1)

    def units(self) -> list[str]:
        """The systemd units that run, or keep starting, a server on the service's port."""
        listed = self.service.container.run("systemctl", "list-units", "--plain", "--no-legend", "--type=service", "--all").stdout
        names = [line.split()[0] for line in listed.splitlines()]
        shown = [(name, self.service.container.run("systemctl", "show", "--property=ExecStart", name).stdout) for name in names]
        return [name for name, command in shown if "sglang.launch_server" in command and f"--port {PORT}" in command]

    def processes_of(self, pid: int) -> set[ContainerProcess]:
        """A server's processes: the main one and those in its session."""
        listed = self.service.container.run("ps", "--no-headers", "-o", "pid", "--ppid", str(pid), check=False).stdout.split()
        pids = {pid, *map(int, listed)}
        return {process for process in sglang_processes(self.service) if process.pid in pids}

    def argument(self, name: str) -> Any:
        """One of the running server's arguments, as it says itself."""
        return httpx.get(f"{self.url}/server_info", timeout=10.0, trust_env=False).json()[name]

    def left_over(self) -> list[ContainerProcess]:
        """SGLang's processes that are not the neighbour's."""
        everyone = sglang_processes(self.service)
        neighbours = [process.pid for process in everyone if f"--port {NEIGHBOUR_PORT}" in process.title]
        spared = set().union(*(self.processes_of(pid) for pid in neighbours))
        return [process for process in everyone if process not in spared]

    def assert_gone(self) -> None:
        """Nothing of the service is left: no process, no listener."""
        assert self.left_over() == []
        assert PORT not in listening_ports(self.service.container)

    def files(self) -> set[str]:
        """Every file of its own file system that is neither in the state folder, nor a log, nor SGLang's own (its sockets in /tmp)."""
        root = self.service.container.folder / "rootfs"
        expected = ("var/lib/orchestrator/", "var/log/", "var/lib/systemd/", "root/.cache/", "root/.triton/", "tmp/tmp", "run/")
        paths = (str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        return {path for path in paths if not path.startswith(expected)}

    def orders(self) -> list[Path]:
        """The journals of all orders, oldest first."""
        return sorted(self.service.container.path(f"/var/lib/orchestrator/{SERVICE}/orders").glob("*/journal.jsonl"))

    def journal(self) -> list[str]:
        """The states that the newest order has gone through."""
        return [entry["state"] for entry in self._entries()]

    def gate_port(self) -> int:
        """The port of the newest order's gate."""
        return next(int(entry["data"]["gate_port"]) for entry in reversed(self._entries()) if entry["data"].get("gate_port"))

    def _entries(self) -> list[dict[str, Any]]:
        lines = self.orders()[-1].read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
