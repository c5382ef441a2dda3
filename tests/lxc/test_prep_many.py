"""``fab prep`` on many hosts at once: one table and one exit code, whatever becomes of some of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lxc.prepared import PROFILE, Prep
from tests.rig.bare_host import BareHost, start_hosts
from tests.rig.inventory import login, write_inventory, write_tuning
from tests.rig.knob_tree import NUMA_BALANCING
from tests.rig.network import free_port
from tests.rig.operator import Operator
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

COUNT = 20
KNOBS: list[dict[str, Any]] = [
    {"knob": "sysctl", "name": "kernel.numa_balancing", "value": 0},
    {"knob": "cpu_governor", "value": "performance"},
    {"knob": "pcie_max_read_request", "value": 4096},
]


@pytest.fixture
def hosts(workspace: Workspace, tmp_path: Path) -> Iterator[list[BareHost]]:
    """Twenty hosts, fresh from a boot."""
    made = start_hosts(workspace, [f"many-{tmp_path.name}-{number}" for number in range(COUNT)])
    yield made
    for host in made:
        if host.sshd.poll() is None:
            host.stop()


def make_operator(folder: Path, hosts: list[BareHost], extra: dict[str, dict[str, Any]] | None = None) -> Operator:
    """Somebody whose inventory has all of them, called h0, h1, ..."""
    entries = {f"h{number}": {**login(host.ssh), "tuning": PROFILE} for number, host in enumerate(hosts)}
    entries |= {name: {**entries["h0"], **keys} for name, keys in (extra or {}).items()}
    known = "".join(host.ssh.known_hosts_line for host in hosts)
    inventory = write_inventory(folder / "inventory", entries, known)
    write_tuning(inventory, PROFILE, KNOBS)
    home = folder / "home"
    home.mkdir()
    return Operator(inventory, home)


@contextmanager
def listener_that_never_speaks() -> Iterator[int]:
    """Its port. The kernel takes connections, and nobody answers them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_all_of_them_are_prepared_once_and_one_that_drifts_is_found(hosts: list[BareHost], tmp_path: Path) -> None:
    operator = make_operator(tmp_path, hosts)

    first = Prep(operator.ask("prep", "--host", "all")).expect(0)
    second = Prep(operator.ask("prep", "--host", "all")).expect(0)
    hosts[13].knobs.put(NUMA_BALANCING, "1")
    third = Prep(operator.ask("prep", "--host", "all", "--check")).expect(8)

    assert [entry["host"] for entry in first.hosts] == [f"h{number}" for number in range(COUNT)]
    assert all(entry["counts"] == {"changed": 3} for entry in first.hosts)
    assert all(entry["counts"] == {"same": 3} for entry in second.hosts)
    assert [entry["host"] for entry in third.hosts if entry["exit_code"] != 0] == ["h13"]
    assert [host.knobs.text(NUMA_BALANCING) for host in hosts] == ["0"] * 13 + ["1"] + ["0"] * 6


def test_the_dead_the_silent_and_the_read_only_do_not_stop_the_others(hosts: list[BareHost], tmp_path: Path) -> None:
    dead, read_only = hosts[4], hosts[9]
    dead.stop()
    read_only.enter("mount", "-o", "remount,bind,ro", NUMA_BALANCING)
    with listener_that_never_speaks() as silent:
        nobody = {"port": free_port()}
        operator = make_operator(tmp_path, hosts, {"silent": {"port": silent}, "nobody": nobody})
        begun = time.monotonic()
        done = Prep(operator.ask("prep", "--host", "all", timeout=90)).expect(1)
        seconds = time.monotonic() - begun

    codes = {entry["host"]: entry["exit_code"] for entry in done.hosts}
    assert {name: code for name, code in codes.items() if code} == {"h4": 4, "h9": 1, "silent": 4, "nobody": 4}
    assert {host.knobs.text(NUMA_BALANCING) for host in hosts if host not in (dead, read_only)} == {"0"}
    assert seconds < 45, "a silent host is given up after ten seconds, and the others do not wait for it"

    shown = operator.show("prep", "--host", "all", "--check")

    assert shown.returncode == 4, "nothing was to be written, so nothing failed"
    for name in codes:
        assert f"\n{name} " in shown.stdout or f" {name} " in shown.stdout
    assert "Traceback" not in shown.stdout + shown.stderr
