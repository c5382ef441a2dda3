"""Print what asking many hosts takes, beside pyinfra, Ansible and plain ssh: ``python -m benchmarks.many``.

Every host is an sshd of its own on this machine, so its processors carry both ends; it sees no processes but its own, as on a machine of
its own (as root; otherwise each looks through those of all). Each has a service in a virtual environment with SGLang in it, where nothing
serves. ``fab status --all`` asks what runs, how it is, and what tunes the host at boot; the others are asked for
nothing but to run ``true`` (pyinfra's exec, Ansible's raw, which needs no Python there), which is less. Beside the seconds stand those of
the processors, of the operator's end and of the hosts': they say more on a machine that has other things to do.

With bash as root's shell every command over SSH reads ~/.bashrc first, which may take longer than all else: both are shown, and the limits
hold where it is not read. Exit 1 when a limit is exceeded. Needs root, or a user who may log in here by SSH.
"""

from __future__ import annotations

import argparse
import functools
import getpass
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab_box import STRICT
from benchmarks.prep import ENVIRONMENT, FAB, REPOSITORY, tool_of_its_own
from tests.rig.commands import wait_for
from tests.rig.inventory import write_inventory, write_service
from tests.ssh.openssh import SSHD, OpenSsh, free_port

MANY = 200
SECONDS = 10.0
"""For all of them."""
GROWTH = 1.25
"""How many times as long each may take of many as of a quarter of them."""
MEMORY = 64
"""MiB that many may take more than a quarter of them."""
_TICKS = os.sysconf("SC_CLK_TCK")
_OWN_PROCESSES = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if os.geteuid() == 0 else []


@dataclass(frozen=True)
class Cost:
    """One run. Seconds of the clock and of processors; `memory` is the largest process's, in MiB."""

    wall: float
    operator: float
    hosts: float
    memory: int


class Hosts:
    """Sshds that share their keys, and the files by which each tool knows them."""

    def __init__(self, folder: Path, number: int, *, login_shell: bool) -> None:
        self.folder = folder
        self._keys = OpenSsh(_made(folder / "keys"), options=("MaxStartups 100:30:200",), login_shell=login_shell)
        self._keys.write_files()
        ports: set[int] = set()
        while len(ports) < number:  # the same one may be free twice
            ports.add(free_port())
        self._ports = sorted(ports)
        self._sshds: list[int] = []
        self.inventory = self._write_inventory()
        self._write_others()

    @contextmanager
    def running(self) -> Iterator[Hosts]:
        """Start all of them; end them afterwards."""
        base = (self._keys.folder / "sshd_config").read_text(encoding="utf-8")
        with ExitStack() as stack:
            for port in self._ports:
                path = self.folder / f"sshd_config-{port}"
                path.write_text(base.replace(f"Port {self._keys.port}\n", f"Port {port}\n"), encoding="utf-8")
                started = stack.enter_context(_process([*_OWN_PROCESSES, SSHD, "-D", "-e", "-f", str(path)]))
                self._sshds.append(started.pid)
            for port in self._ports:
                wait_for(f"sshd on port {port}", functools.partial(_listens, port), 30)
            if _OWN_PROCESSES:
                self._sshds = [int(_children(pid)) for pid in self._sshds]
            yield self

    def cost(self, argv: Sequence[str], environment: dict[str, str]) -> Cost:
        """What one run takes.

        Raises:
            RuntimeError: it failed.
        """
        theirs, ours, begun = self._processors(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**ENVIRONMENT, **environment})
        wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        # Also of those that were given up: a shell that is killed while it starts may leave its user's things locked.
        wait_for("the end of all sessions", lambda: not any(_children(pid) for pid in self._sshds), 120)
        if done.returncode != 0:
            raise RuntimeError(f"{argv[0]} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        operator = after.ru_utime + after.ru_stime - ours.ru_utime - ours.ru_stime
        return Cost(wall, operator, self._processors() - theirs, after.ru_maxrss // 1024)

    def status(self, number: int) -> list[str]:
        """Ours, of the first `number`."""
        return [FAB, "--search-root", str(REPOSITORY), "status", "--json", "--inventory", str(self.inventory), "--host", f"first{number}"]

    def ssh(self) -> list[str]:
        """Plain ssh to all at once."""
        known = f"UserKnownHostsFile={self.inventory / 'known_hosts'}"
        login = ["ssh", *STRICT, "-o", known, "-i", str(self._keys.key), "127.0.0.1", "true"]
        return ["sh", "-c", "".join(f"{shlex.join([*login[:-2], '-p', str(port), *login[-2:]])} & " for port in self._ports) + "wait"]

    def pyinfra(self, program: str) -> list[str]:
        """pyinfra, as many side by side as it does by itself."""
        return [program, "--yes", str(self.folder / "hosts.py"), "exec", "--", "true"]

    def ansible(self, program: str) -> list[str]:
        """Ansible without its Python on the hosts."""
        return [program, "all", "-i", str(self.folder / "hosts.ini"), "-m", "raw", "-a", "true"]

    def _processors(self) -> float:
        """Seconds that the sshds and all that they have started and seen end have used."""
        return sum(_used(pid) for pid in self._sshds)

    def _write_inventory(self) -> Path:
        python = self._environment_with_sglang()
        login = {"address": "127.0.0.1", "user": getpass.getuser(), "identity_files": [str(self._keys.key)], "agent": False}
        hosts = {
            f"host{number}": {**login, "port": port, "python": "/usr/bin/python3", "state_root": str(self.folder / f"state{number}")}
            for number, port in enumerate(self._ports)
        }
        known_hosts = "".join(line for port in self._ports for line in self._keys.known_hosts_lines(port))
        inventory = write_inventory(self.folder / "inventory", hosts, known_hosts)
        groups = "".join(f"  first{number}: [{', '.join(list(hosts)[:number])}]\n" for number in sorted({len(hosts) // 4, len(hosts)}))
        with (inventory / "hosts.yml").open("a", encoding="utf-8") as stream:
            stream.write(f"groups:\n{groups}")
        for number in range(len(hosts)):
            service = {"host": f"host{number}", "place": "host", "port": 31000 + number, "model": "/models/m", "python": str(python)}
            write_service(inventory, f"service{number}", service)
        return inventory

    def _environment_with_sglang(self) -> Path:
        """What tells which SGLang is installed, and no more of it: nothing is started."""
        home = self.folder / "sglang"
        (home / "bin").mkdir(parents=True)
        (home / "lib" / "python3.11" / "site-packages" / "sglang-0.5.23.dist-info").mkdir(parents=True)
        (home / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
        (home / "bin" / "python").symlink_to("/usr/bin/python3")
        return home / "bin" / "python"

    def _write_others(self) -> None:
        user, key, known = getpass.getuser(), self._keys.key, self.inventory / "known_hosts"
        login = {"ssh_hostname": "127.0.0.1", "ssh_user": user, "ssh_key": str(key), "ssh_known_hosts_file": str(known)}
        hosts = [(f"host{number}", {**login, "ssh_port": port}) for number, port in enumerate(self._ports)]
        (self.folder / "hosts.py").write_text(f"hosts = {hosts!r}\n", encoding="utf-8")
        options = shlex.quote(f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={known}")
        told = f"ansible_host=127.0.0.1 ansible_user={user} ansible_ssh_private_key_file={key} ansible_ssh_common_args={options}"
        lines = [f"host{number} ansible_port={port} {told}\n" for number, port in enumerate(self._ports)]
        (self.folder / "hosts.ini").write_text("".join(lines), encoding="utf-8")


def report(title: str, number: int, cost: Cost) -> None:
    """One line."""
    each = f"{1000 * cost.operator / number:5.0f} ms + {1000 * cost.hosts / number:4.0f} ms a host"
    print(f"{title:44} {cost.wall:7.2f} s   processors, here and there: {each}   {cost.memory:4} MiB", flush=True)


def ours(hosts: Hosts, number: int, title: str, *, limited: bool) -> bool:
    """Ask a quarter and all; whether it is quick enough, linear in time and bounded in memory."""
    few = hosts.cost(hosts.status(number // 4), {})
    report(f"fab status, {number // 4} hosts, {title}", number // 4, few)
    many = hosts.cost(hosts.status(number), {})
    report(f"fab status, {number} hosts, {title}", number, many)
    if not limited:
        return True
    growth = (many.operator + many.hosts) / (few.operator + few.hosts) / 4
    bound = SECONDS * number / MANY
    limits = {
        f"{many.wall:.1f} s, limit {bound:g} s": many.wall <= bound,
        f"each host takes {growth:.2f} x as of a quarter, limit {GROWTH:g} x": growth <= GROWTH,
        f"{many.memory - few.memory} MiB more, limit {MEMORY} MiB": many.memory - few.memory <= MEMORY,
    }
    for words, holds in limits.items():
        print(f"    {words:64} {'ok' if holds else 'EXCEEDED'}", flush=True)
    return all(limits.values())


def others(hosts: Hosts, number: int) -> None:
    """What the others take to run ``true``."""
    report(f"ssh HOST true, {number} at once", number, hosts.cost(hosts.ssh(), {}))
    report(f"pyinfra exec true, {number} hosts", number, hosts.cost(hosts.pyinfra(tool_of_its_own("pyinfra", "pyinfra")), {}))
    tuned = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": "50", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}  # no login outlives the run
    ansible = hosts.ansible(tool_of_its_own("ansible-core", "ansible"))
    report(f"Ansible raw true, {number} hosts, 50 forks", number, hosts.cost(ansible, tuned))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=MANY)
    parser.add_argument("--alone", action="store_true", help="without the other tools")
    given = parser.parse_args()
    good = True
    for title, login_shell in (("bare shell", False), ("login shell", True)):
        with tempfile.TemporaryDirectory(prefix="orchestrator-many-") as name:
            Path(name).chmod(0o755)
            with Hosts(Path(name), given.hosts, login_shell=login_shell).running() as hosts:
                hosts.cost(hosts.status(given.hosts // 4), {})  # writes bytecode and the agent's archive, as an installed program has them
                good = ours(hosts, given.hosts, title, limited=not login_shell) and good
                if not given.alone:
                    others(hosts, given.hosts)
    return 0 if good else 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _process(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()  # unshare lets no other signal end it, and takes its sshd along


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _used(pid: int) -> float:
    """utime, stime and those of children that were waited for: fields 14 to 17 of /proc/PID/stat (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").strip()


if __name__ == "__main__":
    sys.exit(main())
