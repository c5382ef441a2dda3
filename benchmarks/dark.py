"""Print how long a switch leaves the real SGLang (CPU) dark, staged and sequential: ``python -m benchmarks.dark``.

Exit 1 when a limit is exceeded. Without an SGLang (``make sglang-cpu``) nothing is measured. A steady client asks all the time and is
the one who says how long nothing answered; what the program says of it is printed beside.
"""

from __future__ import annotations

import argparse
import getpass
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed import Result
from orchestrator.agent.wire import State
from tests.rig.inventory import write_backend, write_inventory, write_service
from tests.rig.operator import Operator
from tests.rig.sglang import ARGUMENTS, ENVIRONMENT, VARIABLE, SglangEnvironment, find_environment
from tests.rig.steady_client import ANSWERED, CUT, REFUSED, SteadyClient, steady_client
from tests.rig.tiny_model import write_model
from tests.ssh.openssh import OpenSsh, free_port

HOST, SERVICE = "box", "tiny"
POLICIES = ("lpm", "fcfs")
"""Of ``--schedule-policy``: another each time, so that there is always something to change."""
POLICY = {"load_total": 600, "stage_total": 600, "garbage": "warn"}
MOST_OF_SEQUENTIAL, MOST_ABOVE_OWN = 0.15, 0.5


@dataclass(frozen=True)
class Switch:
    """One relaunch, as the client saw it and as it says itself. Seconds.

    `own` is what the new server took from its activation to its first answer, SGLang's poll of its gate (once a second) included; None
    where it was not staged. `leaving` is from the old server's last answer until nothing was left of it.
    """

    dark: float
    told: float | None
    predicted: float | None
    own: float | None
    leaving: float
    counts: dict[str, int]


@dataclass(frozen=True)
class Box:
    """This machine behind an OpenSSH server, with the tiny model as a service."""

    operator: Operator
    state: Path
    url: str

    def launch(self) -> None:
        self.operator.ask("launch", "--backend", POLICIES[0], "--yes").expect(0)

    def teardown(self) -> None:
        self.operator.ask("teardown", "--yes").expect(0)

    def switch(self, backend: str, *, staged: bool) -> Switch:
        """Relaunch under a steady client.

        Raises:
            RuntimeError: it was done the other way.
        """
        flags = () if staged else ("--sequential",)
        with steady_client(self.url) as client:
            answer = self.operator.ask("relaunch", "--backend", backend, "--yes", "--no-measure", *flags, timeout=1500.0).expect(0)
        result = answer.document["result"]
        if result["staged"] is not staged:
            raise RuntimeError(f"it was {'not ' if staged else ''}staged:\n{answer.errors}")
        return self._switch(result, client)

    def _switch(self, result: dict[str, Any], client: SteadyClient) -> Switch:
        gap = client.gap()
        own = gap.first_answer - self._moment(State.ACTIVATING) if result["staged"] else None
        leaving = self._moment(State.CLEAN) - gap.last_answer
        estimate = result["estimate"]
        return Switch(gap.seconds, result["dark_seconds"], estimate and estimate["seconds"], own, leaving, client.counts())

    def _moment(self, state: str) -> float:
        """When the newest order came into a state, on the monotonic clock."""
        newest = max((self.state / SERVICE / "orders").iterdir())
        lines = (newest / "journal.jsonl").read_text(encoding="utf-8").replace("\0", "").splitlines()
        return float(next(entry["monotonic"] for entry in map(json.loads, filter(None, lines)) if entry["state"] == state))


@contextmanager
def running_box(environment: SglangEnvironment, folder: Path) -> Iterator[Box]:
    """The service is described and not started; what was started of it is torn down at the end."""
    keys, home, state = folder / "sshd", folder / "home", folder / "state"
    keys.mkdir()
    home.mkdir()
    port = free_port()
    with OpenSsh(keys).running() as server:
        login = {
            "address": "127.0.0.1",
            "port": server.port,
            "user": getpass.getuser(),
            "identity_files": [str(server.key)],
            "agent": False,
        }
        host = {**login, "state_root": str(state)}
        inventory = write_inventory(folder / "inventory", {HOST: host}, server.known_hosts.read_text(encoding="utf-8"))
        service = {
            "host": HOST,
            "place": "host",
            "python": str(environment.python),
            "model": str(write_model(folder / "model")),
            "port": port,
            "arguments": dict(ARGUMENTS),
            "environment": dict(ENVIRONMENT),
            "policy": POLICY,
        }
        write_service(inventory, SERVICE, service)
        for policy in POLICIES:
            write_backend(inventory, policy, {"--schedule-policy": policy})
        box = Box(Operator(inventory, home, ("--host", HOST)), state, f"http://127.0.0.1:{port}")
        try:
            yield box
        finally:
            box.teardown()


def measure(box: Box, repeats: int) -> tuple[list[Switch], list[Switch]]:
    """Staged and sequential switches in turns."""
    staged: list[Switch] = []
    sequential: list[Switch] = []
    box.launch()
    for _ in range(repeats):
        staged.append(_told(box.switch(POLICIES[1], staged=True), "staged"))
        sequential.append(_told(box.switch(POLICIES[0], staged=False), "sequential"))
    return staged, sequential


def _told(switch: Switch, way: str) -> Switch:
    counts = ", ".join(f"{switch.counts[outcome]} {outcome}" for outcome in (ANSWERED, REFUSED, CUT))
    itself = "" if switch.told is None else f", {switch.told:.2f} s by its own report"
    predicted = "" if switch.predicted is None else f", predicted {switch.predicted:.1f} s"
    own = "" if switch.own is None else f", {switch.own:.2f} s of it from the activation to the first answer"
    print(f"{way:10} dark for {switch.dark:6.2f} s{itself}{predicted}{own}; requests: {counts}", flush=True)
    return switch


def judge(staged: Sequence[Switch], sequential: Sequence[Switch]) -> list[Result]:
    short = statistics.median(switch.dark for switch in staged)
    long = statistics.median(switch.dark for switch in sequential)
    above = [switch.dark - switch.own for switch in staged if switch.own is not None]
    leaving = statistics.median(switch.leaving for switch in staged)
    worst = f"median of {len(above)}, worst {max(above):.2f} s"
    return [
        Result("dark time, staged / sequential", short / long, "x", MOST_OF_SEQUENTIAL, f"{short:.2f} s against {long:.2f} s"),
        Result("dark beyond activation to first answer", statistics.median(above), "s", MOST_ABOVE_OWN, worst),
        Result("  of it until the old server had gone", leaving, "s", None, "SGLang's own end after its last answer is most of it"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of each way (default: %(default)s)")
    repeats = parser.parse_args().repeats
    environment = find_environment()
    if environment is None:
        print(f"dark time is not measured: no SGLang environment; run `make sglang-cpu`, or name one in ${VARIABLE}")
        return 0
    with tempfile.TemporaryDirectory() as folder, running_box(environment, Path(folder)) as box:
        results = judge(*measure(box, repeats))
    for result in results:
        print(result)
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
