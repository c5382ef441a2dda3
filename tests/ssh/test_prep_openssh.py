"""``fab prep`` over OpenSSH where only looking is allowed: no root needed, and this machine's own knobs are read, never written."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rig.inventory import write_inventory, write_tuning
from tests.rig.operator import Operator
from tests.ssh.openssh import OpenSsh, free_port

OBSERVED = [{"knob": "sysctl", "name": "vm.swappiness"}, {"knob": "cpu_governor"}, {"knob": "pcie_max_read_request"}]


def make_operator(folder: Path, server: OpenSsh, extra: dict[str, dict[str, Any]] | None = None) -> Operator:
    """Somebody whose inventory has the server as h0 to h7, each with a state root of its own in `folder`."""
    keys = {"address": "127.0.0.1", "user": getpass.getuser(), "identity_files": [str(server.key)], "agent": False, "tuning": "look"}
    hosts = {f"h{number}": {**keys, "port": server.port, "state_root": str(folder / f"state{number}")} for number in range(8)}
    hosts |= {name: {**keys, **changes} for name, changes in (extra or {}).items()}
    inventory = write_inventory(folder / "inventory", hosts, server.known_hosts.read_text(encoding="utf-8"))
    write_tuning(inventory, "look", OBSERVED)
    home = folder / "home"
    home.mkdir()
    return Operator(inventory, home)


@contextmanager
def listener_that_never_speaks() -> Iterator[int]:
    """Its port. The kernel takes connections, and nobody answers them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_profile_without_values_reads_and_leaves_nothing(server: OpenSsh, tmp_path: Path) -> None:
    operator = make_operator(tmp_path, server)
    swappiness = Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8").strip()

    answer = operator.ask("prep", "--host", "all", timeout=120).expect(0)

    assert len(answer.document["hosts"]) == 8
    for host in answer.document["hosts"]:
        (place,) = host["places"]
        assert place["report"]["results"][0]["before"] == {"": swappiness}
    assert not list(tmp_path.glob("state*"))


def test_a_check_of_what_differs_writes_nothing(server: OpenSsh, tmp_path: Path) -> None:
    operator = make_operator(tmp_path, server)
    swappiness = int(Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8"))
    write_tuning(operator.inventory, "look", [{"knob": "sysctl", "name": "vm.swappiness", "value": swappiness + 1}])

    for flag, code in (("--check", {8}), ("--plan", {0, 8})):
        assert operator.ask("prep", "--host", "h3", flag, timeout=60).exit_code in code
    assert int(Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8")) == swappiness
    assert not list(tmp_path.glob("state*"))


def test_the_dead_and_the_silent_do_not_stop_the_others(server: OpenSsh, tmp_path: Path) -> None:
    with listener_that_never_speaks() as silent:
        operator = make_operator(tmp_path, server, {"silent": {"port": silent}, "dead": {"port": free_port()}})
        begun = time.monotonic()
        answer = operator.ask("prep", "--host", "all", timeout=120).expect(4)
        seconds = time.monotonic() - begun

    codes = {host["host"]: host["exit_code"] for host in answer.document["hosts"]}
    assert codes == {**{f"h{number}": 0 for number in range(8)}, "silent": 4, "dead": 4}
    assert seconds < 60
