"""What the tests of ``fab prep`` on real parts have in common: a host of their own, a profile, and an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.bare_host import BareHost
from tests.rig.container import Container
from tests.rig.inventory import login, rig_hosts, write_inventory, write_tuning
from tests.rig.operator import Answer, Operator
from tests.rig.workspace import Workspace

PROFILE = "rig-profile"

KNOBS: list[dict[str, Any]] = [
    {"knob": "gpu_persistence_mode", "value": "Enabled"},
    {"knob": "gpu_power_limit", "value": 450},
    {"knob": "pcie_max_read_request", "value": 4096},
    {"knob": "module_parameter", "name": "nvidia_uvm.uvm_disable_hmm"},
    {"knob": "cpu_governor", "value": "performance"},
    {"knob": "cpu_energy_preference", "value": "performance"},
    {"knob": "cpu_resume_latency", "value": 99},
    {"knob": "transparent_hugepage", "value": "never"},
    {"knob": "sysctl", "name": "kernel.numa_balancing", "value": 0},
    {"knob": "sysctl", "name": "vm.swappiness", "value": 10},
]
"""What a host of the rig does not have after a boot, and one knob that is only read."""
SET = len(KNOBS) - 1

HOST_FOLDER = "/var/lib/orchestrator/.host"


@dataclass(frozen=True)
class Prepared:
    """A host whose inventory names one profile for it, and somebody who may call ``fab prep``."""

    host: BareHost
    operator: Operator
    name: str = "box"

    @property
    def inventory(self) -> Path:
        return self.operator.inventory

    def prep(self, *flags: str, host: str | None = None, timeout: float = 120.0) -> Prep:
        """Run ``fab prep`` on the host to its end."""
        return Prep(self.operator.ask("prep", "--host", host or self.name, *flags, timeout=timeout))

    def use(self, knobs: Sequence[Mapping[str, Any]]) -> None:
        """Let the profile have these knobs from now on."""
        write_tuning(self.inventory, PROFILE, knobs)

    def kept(self, name: str) -> Path:
        """A file of what is kept on the host."""
        return self.host.path(f"{HOST_FOLDER}/{name}")


@dataclass(frozen=True)
class Prep:
    """What one call answered."""

    answer: Answer

    @property
    def code(self) -> int:
        return self.answer.exit_code

    @property
    def hosts(self) -> list[dict[str, Any]]:
        found = self.answer.document.get("hosts")
        assert found is not None, f"exit {self.code}, no hosts\n{self.answer.errors}\n{self.answer.document}"
        return list(found)

    @property
    def places(self) -> list[dict[str, Any]]:
        """The places of the first host, itself first."""
        return list(self.hosts[0]["places"])

    @property
    def results(self) -> list[dict[str, Any]]:
        """Every knob of the first host."""
        return [result for place in self.places for result in (place["report"] or {"results": []})["results"]]

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each knob, by its kind, or a sysctl's key."""
        return {_name(result): result["outcome"] for result in self.results}

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.hosts[0]["counts"])

    def result(self, name: str) -> dict[str, Any]:
        """The result of one knob."""
        return next(result for result in self.results if _name(result) == name)

    def expect(self, code: int) -> Prep:
        """Return itself.

        Raises:
            AssertionError: it ended with another exit code.
        """
        assert self.code == code, f"exit {self.code}, not {code}\n{self.answer.errors}\n{self.answer.document}"
        return self


def _name(result: dict[str, Any]) -> str:
    return str(result["setting"]["name"] or result["setting"]["kind"])


@contextmanager
def prepared(
    workspace: Workspace,
    folder: Path,
    *,
    container: Container | None = None,
    host: BareHost | None = None,
    **host_keys: Any,
) -> Iterator[Prepared]:
    """A fresh host (or `host`), alone or with `container` by each way in, and an operator whose files are in `folder`.

    `host_keys` go into each host's entry in hosts.yml.
    """
    made = host or BareHost.start(workspace, f"prep-{folder.name}")
    try:
        entries = rig_hosts(made, container) if container else {"box": login(made.ssh)}
        known = made.ssh.known_hosts_line + (container.ssh.known_hosts_line if container else "")
        for entry in entries.values():
            entry |= {"tuning": PROFILE, **host_keys}
        inventory = write_inventory(folder / "inventory", entries, known)
        home = folder / "home"
        home.mkdir()
        ready = Prepared(made, Operator(inventory, home))
        ready.use(KNOBS)
        yield ready
    finally:
        if made.sshd.poll() is None:
            made.stop()
