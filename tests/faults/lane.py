"""One box of the campaign: a container of its own with a service that is changed, and everybody else, who must not notice.

Cases run one after the other on a lane, several lanes beside each other. What a case leaves serving is the next one's old server.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orchestrator.agent
import orchestrator.lab
from orchestrator.agent import crash_points, wire
from orchestrator.agent.clock import Deadline, wait_until
from tests.rig.bare_host import BareHost
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.network import Bridge
from tests.rig.sglang import ARGUMENTS, ENVIRONMENT, SglangEnvironment, flags
from tests.rig.tiny_model import write_model
from tests.rig.workspace import Workspace

PYTHON = "/usr/bin/python3"
CODE = "/opt/agent-under-test"
STANDIN = "/opt/lab-standin"
DRIVER = "/opt/driver.py"
STATE = "/var/lib/orchestrator-faults"
MODEL = "/srv/models/standin"
PORT, NEIGHBOUR_PORT = 30077, 30500
PATIENCE = 240.0
"""For whatever has to come to its end on a machine where much else runs."""

QUICK: Mapping[str, str] = {
    "PYTHONPATH": STANDIN,
    "SGLANG_STANDIN_TIME_SCALE": "0.02",
    "SGLANG_STANDIN_TOKENS_PER_SECOND": "2000",
    "SGLANG_STANDIN_FIRST_TOKEN_SECONDS": "0.002",
}
"""A stand-in that loads in a second and scores in another."""

POLICY: Mapping[str, Any] = {"measure": False, "drain": 1, "grace": 10, "clean": 20, "load_total": 60}
REAL_POLICY: Mapping[str, Any] = {"measure": False, "drain": 2, "grace": 30, "clean": 30, "load_total": 240, "garbage": "warn"}

_BYSTANDERS = """
cd /root
touch sglang.launch_server.log
setsid --fork sleep 86400 >/dev/null 2>&1 </dev/null
setsid --fork tail -f sglang.launch_server.log >/dev/null 2>&1 </dev/null
setsid --fork /usr/bin/python3 -c 'import mmap, os, time
file = os.open("/dev/shm/psm_bystander", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(file, 4096)
kept = mmap.mmap(file, 4096)
time.sleep(86400)' >/dev/null 2>&1 </dev/null
setsid --fork /usr/bin/python3 -m http.server 30099 --bind 127.0.0.1 >/dev/null 2>&1 </dev/null
"""
"""An idle process, an editor of a file with a telling name, a holder of shared memory, a listener."""

_PASSING = ("systemd-udevd", "(sd-pam)", "agetty", "lxc-attach", "systemctl", "tmpfiles", "systemd --user", "sshd: root", "[")
_SERVERS = ("sglang.launch_server --", "sglang::", "multiprocessing.", "sglang.standin")


class DriverError(AssertionError):
    """What the driver was asked for failed there."""


class Driver:
    """The other end of ``in_container/driver.py``."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, verb: str, **given: Any) -> Any:
        """One question, one answer; the driver is started where there is none."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                argv = self._container.attach_argv(PYTHON, "-I", "-u", DRIVER, CODE, STATE)
                process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"verb": verb, "given": given}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            errors = process.stderr.read() if process.stderr is not None else ""
            raise DriverError(f"{verb}: the driver is gone: {errors[-2000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(f"{verb}: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        with self._lock:
            if self._process is None:
                return
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None


@dataclass
class Lane:
    """A container, the service on it, and what is known of both."""

    name: str
    container: Container
    real: SglangEnvironment | None = None
    host: BareHost | None = None
    driver: Driver = field(init=False)
    bystanders: dict[tuple[int, int], str] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def start(cls, workspace: Workspace, bridge: Bridge, name: str, real: SglangEnvironment | None = None) -> Lane:
        container = Container.start(workspace, bridge, read_only=real.folders if real else ())
        lane = cls(name, container, real)
        lane.install()
        return lane

    def __post_init__(self) -> None:
        self.driver = Driver(self.container)

    @property
    def service(self) -> str:
        return f"faults-{self.name}"

    @property
    def policy(self) -> Mapping[str, Any]:
        return REAL_POLICY if self.real else POLICY

    @property
    def root(self) -> Path:
        """Its file system as its processes see it, mounts included."""
        return Path(f"/proc/{self.container.init()}/root")

    @property
    def state(self) -> Path:
        """The service's state folder."""
        return self.root / STATE.lstrip("/") / self.service

    def install(self) -> None:
        """Put agent, stand-in, driver and model there, and everybody who must not notice."""
        package = self.container.path(CODE) / "orchestrator"
        no_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(orchestrator.agent.__file__).parent, package / "agent", ignore=no_caches)
        (package / "__init__.py").touch()
        shutil.copytree(Path(orchestrator.lab.__file__).parent / "standin", self.container.path(STANDIN), ignore=no_caches)
        shutil.copy(Path(__file__).parent / "in_container/driver.py", self.container.path(DRIVER))
        write_model(self.container.path(MODEL))
        shutil.copytree(Path(__file__).parent / "in_container", self.container.path("/opt/faults"), ignore=no_caches)
        self.populate()

    def populate(self) -> None:
        """Start everybody else, and remember them."""
        self.container.shell(_BYSTANDERS)
        argv = [PYTHON, "-m", "sglang.launch_server", "--model-path", MODEL, "--host", "127.0.0.1", "--port", str(NEIGHBOUR_PORT)]
        environment = dict(QUICK)
        self.driver.ask("start_by_hand", argv=argv, environment=environment, log="/root/neighbour.log", unit="")
        wait_for("the neighbour", lambda: bool(self.driver.ask("answers", port=NEIGHBOUR_PORT, service="")), PATIENCE, 0.1)
        self.bystanders = self._others()

    def _others(self) -> dict[tuple[int, int], str]:
        """Everybody who is not of the service: the neighbour's processes, and whatever is no server and nothing of ours."""
        neighbour = {pid for server in self.driver.ask("servers") if server["port"] == NEIGHBOUR_PORT for pid, _ in server["members"]}
        return {
            (pid, started): title
            for pid, started, title, state in self.driver.ask("processes")
            if state not in "ZX" and (pid in neighbour or not any(mark in title for mark in (*_PASSING, *_SERVERS, STATE)))
        }

    def missing_bystanders(self) -> list[str]:
        """Who of the others has gone, or has become another process."""
        alive = {(pid, started) for pid, started, _title, state in self.driver.ask("processes") if state not in "ZX"}
        return [f"{pid} {title}" for (pid, started), title in self.bystanders.items() if (pid, started) not in alive]

    def launch(
        self, name: str, *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        """A launch of the service, as the wire has it."""
        return {
            "launch_id": f"{name}-{next(self.numbers):05d}",
            "service": self.service,
            "backend": name,
            "python": str(self.real.python) if self.real else PYTHON,
            "arguments": [*self.arguments(), *arguments],
            "host": "127.0.0.1",
            "port": PORT,
            "environment": {**self.environment(), **(environment or {})},
            **more,
        }

    def arguments(self, model: str = MODEL) -> list[str]:
        own = flags(ARGUMENTS) if self.real else []
        return ["--model-path", model, "--host", "127.0.0.1", "--port", str(PORT), *own]

    def environment(self) -> dict[str, str]:
        return dict(ENVIRONMENT) if self.real else dict(QUICK)

    def server(self) -> dict[str, Any] | None:
        """What serves on the service's port, else what loads for it."""
        found = [server for server in self.driver.ask("servers") if server["port"] == PORT]
        return min(found, key=lambda server: not server["listening"], default=None)

    def wait_staged(self) -> dict[str, Any]:
        """Wait for a server on the way to its gate, or at it, beside the one that has the port."""
        seen: list[dict[str, Any]] = []

        def there() -> bool:
            ours = [server for server in self.driver.ask("servers") if server["port"] == PORT]
            seen[:] = [server for server in ours if not server["listening"] and len(ours) > 1]
            return bool(seen)

        wait_for("a staged server", there, PATIENCE, 0.02)
        return seen[0]

    def serving(self, kind: str = "own_unit", **settings: str) -> dict[str, Any]:
        """The main process of a server that serves: the one that is there when it is of this kind, else a new one.

        `kind` is the manager: ``own_unit``, ``session`` (by hand), ``systemd_unit`` (somebody's). `settings` are its stand-in's.
        """
        found = self.server()
        plain = not settings and found is not None and found["listening"] and found["manager"] == kind
        if plain and found is not None and self.driver.ask("answers", port=PORT, service=self.service):
            return dict(found["main"])
        self.clear()
        extra = {f"SGLANG_STANDIN_{name.upper()}": value for name, value in settings.items()}
        if kind == "own_unit":
            return dict(self.driver.ask("start", launch=self.launch("old", environment=extra), seconds=PATIENCE))
        argv = [str(self.real.python) if self.real else PYTHON, "-m", "sglang.launch_server", *self.arguments()]
        unit = "somebodys-sglang.service" if kind == "systemd_unit" else ""
        environment = {**self.environment(), **extra}
        self.driver.ask("start_by_hand", argv=argv, environment=environment, log="/root/by-hand.log", unit=unit)
        wait_for("a server by hand", lambda: bool((self.server() or {}).get("listening")), PATIENCE, 0.1)
        assert self.driver.ask("answers", port=PORT, service=self.service)
        by_hand = self.server()
        assert by_hand is not None
        return dict(by_hand["main"])

    def order(self, old: dict[str, Any] | None, new: dict[str, Any] | None, *, kind: str = "relaunch", **more: Any) -> dict[str, Any]:
        """An order, as the wire has it."""
        policy = {**self.policy, **more.pop("policy", {})}
        if more.get("staged"):
            self.know_footprint()
        return {
            "order_id": f"{next(self.numbers):05d}-{kind}",
            "kind": kind,
            "service": self.service,
            "state_root": STATE,
            "port": PORT,
            "policy": policy,
            "operator": "ann@laptop",
            "old": old,
            "new": new,
            **more,
        }

    def know_footprint(self) -> None:
        """Have the box know what a staged server takes: the stand-in's are small, and the machine may have no room for real ones."""
        record = json.dumps({"ranks": 1, "resident": 64 << 20, "seconds": 1.0, "gpus": {}})
        known = self.state / "launches" / "known"
        known.mkdir(parents=True, exist_ok=True)
        (known / "footprint.json").write_text(record, encoding="utf-8")

    def submit(self, order: Mapping[str, Any], point: str = "") -> str:
        """Hand it in; its supervisor dies when it passes `point`."""
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / crash_points.FILE).unlink(missing_ok=True)
        if point:
            (self.state / crash_points.FILE).write_text(point, encoding="utf-8")
        answer = self.driver.ask("submit", order=dict(order))
        if "refused" in answer:
            raise DriverError(f"submit: {answer['refused']}")
        return str(order["order_id"])

    def journal(self, order_id: str) -> list[dict[str, Any]]:
        """The journal's whole lines."""
        try:
            text = (self.state / "orders" / order_id / "journal.jsonl").read_bytes().partition(b"\0")[0]
        except OSError:
            return []
        return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def states(self, order_id: str) -> list[str]:
        return [entry["state"] for entry in self.journal(order_id)]

    def resumed(self, order_id: str) -> int:
        """How often a supervisor took the order over."""
        return max((int(entry["data"].get("resumed", 0)) for entry in self.journal(order_id)), default=0)

    def wait_state(self, order_id: str, *states: str, seconds: float = PATIENCE) -> str:
        """Wait until the journal has one of these; which."""
        found: list[str] = []

        def reached() -> bool:
            found[:] = [state for state in self.states(order_id) if state in states]
            return bool(found)

        wait_for(f"{'/'.join(states)} of {order_id}", reached, seconds, 0.005)
        return found[-1]

    def wait_end(self, order_id: str) -> None:
        """Wait until the order has come to its end and its supervisor has gone."""

        def ended() -> bool:
            if not set(self.states(order_id)[-1:]) & wire.State.FINAL:
                return False
            status = self.driver.ask("status", service=self.service, order_id=order_id)
            return status is not None and not status["live"]

        wait_for(f"the end of {order_id} ({self.states(order_id)})", ended, PATIENCE * (3 if self.real else 1), 0.03)

    def result(self, order_id: str) -> dict[str, Any]:
        """What the supervisor kept of how it ended, {} where it could not."""
        try:
            kept: dict[str, Any] = json.loads((self.state / "orders" / order_id / "result.json").read_text(encoding="utf-8"))
        except OSError:
            return {}
        return kept

    def supervisor(self, order_id: str) -> int | None:
        """The process that carries an order out, by its number in the container."""
        found: int | None = self.driver.ask("supervisor_of", order_id=order_id)
        return found

    def members(self) -> dict[str, int]:
        """The processes of the newest server on the port: title -> number."""
        found = self.server()
        return {} if found is None else {title: pid for pid, title in reversed(found["members"])}

    def wait_member(self, part: str, seconds: float = PATIENCE) -> int:
        """Wait for a process of the server whose title has `part`."""
        seen: list[int] = []

        def there() -> bool:
            seen[:] = [pid for title, pid in self.members().items() if part in title]
            return bool(seen)

        wait_for(f"a process {part}", there, seconds, 0.02)
        return seen[0]

    def signal(self, pid: int, number: int) -> None:
        self.driver.ask("send_signal", pid=pid, number=int(number))

    def shell(self, script: str, seconds: float = 60.0) -> str:
        """Run a script there through the driver; what it printed, whatever its status."""
        _, out, errors = self.driver.ask("shell", script=script, seconds=seconds)
        return str(out + errors)

    def clear(self) -> None:
        """End everything of the service without the program under test, and forget its state."""
        service = self.service
        self.shell(
            f"rm -f {STATE}/{service}/boot; systemctl kill --signal=KILL 'orchestrator-{service}*' somebodys-sglang.service\n"
            f"systemctl stop 'orchestrator-{service}*' somebodys-sglang.service\n"
            f"find /etc/systemd/system -name 'orchestrator-{service}*' -delete\n"
            "rm -rf /run/systemd/system/somebodys-sglang.service.d /etc/systemd/system/somebodys-sglang.service; systemctl daemon-reload\n"
            "systemctl reset-failed\n"
        )
        neighbours = {pid for pid, _ in self.bystanders}

        def rest() -> list[int]:
            spared = neighbours | {1}
            marks = (*_SERVERS, "/opt/faults/")
            listed = self.driver.ask("processes")
            return [pid for pid, _s, title, state in listed if state not in "ZX" and pid not in spared and any(m in title for m in marks)]

        def gone() -> bool:
            for pid in rest():
                self.signal(pid, 9)
            return not rest()

        wait_for("an empty box", gone, 30.0, 0.1)
        self.shell(f"rm -rf {STATE}/{service} {STATE}/.gpus; find /dev/shm -name 'psm_*' ! -name psm_bystander -delete")

    def repopulate(self) -> None:
        """Start everybody else afresh, once some of them have gone; what is left of them is ended first."""
        for (pid, _), title in self.bystanders.items():
            if any(mark in title for mark in ("86400", "tail -f sglang", "http.server 30099", "sglang", "multiprocessing")):
                self.signal(pid, 9)
        self.bystanders = {}
        self.clear()
        self.populate()

    def stop(self) -> None:
        self.driver.close()
        self.container.stop()


def wait(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether a condition came to hold."""
    return wait_until(condition, Deadline(seconds), 0.02)
