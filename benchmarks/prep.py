"""Print how fast hosts are prepared, beside pyinfra, Ansible and plain ssh: ``python -m benchmarks.prep``.

The same three knobs (NUMA balancing, the governor of four policies, MaxReadReq of eight GPUs) on hosts of the tests' rig: each a real
sshd with knobs of its own. Every run begins with the values of a fresh boot and is checked to have set them. Whole processes are timed, in
turns, each with its bytecode written, as an installed package has it. pyinfra and ansible-core are installed into environments of their own
below .cache/. Ansible is timed as it comes (five hosts at a time, facts gathered), which has the limit, and tuned. Beside the many hosts
stand as many plain ssh at once: what logins alone take on this machine. Exit 1 when a limit is exceeded. Needs root.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.lab_box import STRICT
from benchmarks.timing import Run, seconds
from orchestrator.agent.pci import ConfigSpace, max_read_request
from tests.rig.bare_host import BareHost, start_hosts
from tests.rig.knob_tree import CPUS, NUMA_BALANCING, KnobTree
from tests.rig.pci_tree import GPUS
from tests.rig.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parents[1]
FAB = str(Path(sys.executable).with_name("fab"))
MANY = 50
SSH, SSH_TO_ALL = "ssh HOST true", "ssh HOST true, all at once"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
GOVERNORS = "for f in /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do echo performance > $f; done"
READ_REQUESTS = "for a in $(lspci -Dn -d 10de: | cut -d' ' -f1); do setpci -s $a CAP_EXP+8.w=5000:7000; done"


@dataclass(frozen=True)
class Shell:
    """What sshd starts for a command. Only by the user's own login shell, with what it reads at start, are there limits."""

    name: str
    login: bool
    limited: bool

    def bound(self, limit: float) -> float | None:
        return limit if self.limited else None


SHELLS = (Shell("login", login=True, limited=True), Shell("bare", login=False, limited=False))


@dataclass(frozen=True)
class Tool:
    """One way to prepare all hosts. `name` is for the report."""

    name: str
    argv: list[str]
    environment: dict[str, str]


class Fleet:
    """Hosts, and the files by which each tool knows them."""

    def __init__(self, hosts: Sequence[BareHost], folder: Path) -> None:
        self.hosts = hosts
        self._folder = folder
        self._known_hosts = folder / "inventory" / "known_hosts"
        self._fresh = [host.knobs.contents() for host in hosts]
        self._write()

    def prep(self) -> Tool:
        """Ours."""
        argv = [FAB, "--search-root", str(REPOSITORY), "prep", "--inventory", str(self._folder / "inventory"), "--host", "all"]
        return Tool("fab prep", argv, {})

    def pyinfra(self, program: str) -> Tool:
        """pyinfra, hosts side by side as it does by itself."""
        return Tool("pyinfra", [program, "--yes", str(self._folder / "hosts.py"), str(self._folder / "deploy.py")], {})

    def ansible(self, program: str) -> Tool:
        """Ansible as it comes."""
        return Tool("Ansible", [program, "-i", str(self._folder / "hosts.ini"), str(self._folder / "play.yml")], {})

    def tuned_ansible(self, program: str) -> Tool:
        """Ansible as one would tune it: pipelining, a fork for each host, no facts gathered."""
        tuned = {"ANSIBLE_PIPELINING": "1", "ANSIBLE_FORKS": str(len(self.hosts)), "ANSIBLE_GATHERING": "explicit"}
        return Tool("Ansible, tuned", self.ansible(program).argv, tuned)

    def ssh(self) -> Tool:
        """``ssh HOST true`` on the first host."""
        return Tool(SSH, self._ssh_argv(self.hosts[0]), {})

    def ssh_to_all(self) -> Tool:
        """``ssh HOST true`` on all hosts at once."""
        logins = "".join(f"{shlex.join(self._ssh_argv(host))} & " for host in self.hosts)
        return Tool(SSH_TO_ALL, ["sh", "-c", f"{logins}wait"], {})

    def _ssh_argv(self, host: BareHost) -> list[str]:
        ssh = host.ssh
        options = ["-o", f"UserKnownHostsFile={self._known_hosts}", "-i", str(ssh.key), "-p", str(ssh.port)]
        return ["ssh", *STRICT, *options, f"{ssh.user}@{ssh.address}", "true"]

    def reset(self) -> None:
        """What a fresh boot gives."""
        for host, contents in zip(self.hosts, self._fresh, strict=True):
            for path, content in contents.items():
                if path == NUMA_BALANCING or path.endswith(("/scaling_governor", "/config")):
                    host.knobs.path(path).write_bytes(content)

    def prepared(self) -> bool:
        """Whether all knobs of all hosts are as wanted."""
        return all(_is_prepared(host.knobs) for host in self.hosts)

    def _write(self) -> None:
        inventory = self._folder / "inventory"
        for name in ("services", "backends", "tuning"):
            (inventory / name).mkdir(parents=True)
        self._known_hosts.write_text("".join(host.ssh.known_hosts_line for host in self.hosts), encoding="utf-8")
        knobs: list[dict[str, object]] = [
            {"knob": "sysctl", "name": "kernel.numa_balancing", "value": 0},
            {"knob": "cpu_governor", "value": "performance"},
            {"knob": "pcie_max_read_request", "value": 4096},
        ]
        profile = {"name": "three", "summary": "three knobs", "knobs": [{**knob, "why": "to be timed"} for knob in knobs]}
        _dump(inventory / "tuning" / "three.yml", profile)
        entries = {f"host{number}": _entry(host) for number, host in enumerate(self.hosts)}
        _dump(inventory / "hosts.yml", {"hosts": entries})
        (self._folder / "hosts.py").write_text(f"hosts = {[self._pyinfra_host(*item) for item in enumerate(self.hosts)]!r}\n")
        (self._folder / "deploy.py").write_text(
            "from pyinfra.operations import server\n"
            'server.sysctl(key="kernel.numa_balancing", value=0)\n'
            f"server.shell(commands=[{GOVERNORS!r}])\n"
            f"server.shell(commands=[{READ_REQUESTS!r}])\n"
        )
        (self._folder / "hosts.ini").write_text("".join(self._ansible_line(*item) for item in enumerate(self.hosts)))
        commands = ["sysctl -w kernel.numa_balancing=0", GOVERNORS, READ_REQUESTS]
        tasks = [{"ansible.builtin.shell": command} for command in commands]
        _dump(self._folder / "play.yml", [{"hosts": "all", "tasks": tasks}])

    def _pyinfra_host(self, number: int, host: BareHost) -> tuple[str, dict[str, object]]:
        ssh = host.ssh
        login = {"ssh_hostname": ssh.address, "ssh_port": ssh.port, "ssh_user": ssh.user, "ssh_key": str(ssh.key)}
        return f"host{number}", {**login, "ssh_known_hosts_file": str(self._known_hosts)}

    def _ansible_line(self, number: int, host: BareHost) -> str:
        ssh = host.ssh
        options = shlex.quote(f"-F none -o IdentitiesOnly=yes -o UserKnownHostsFile={self._known_hosts}")
        login = f"ansible_host={ssh.address} ansible_port={ssh.port} ansible_user={ssh.user} ansible_ssh_private_key_file={ssh.key}"
        return f"host{number} {login} ansible_ssh_common_args={options} ansible_python_interpreter=/usr/bin/python3\n"


def _is_prepared(knobs: KnobTree) -> bool:
    governors = knobs.values(f"{CPUS}/cpufreq/policy*/scaling_governor")
    requests = {max_read_request(ConfigSpace(knobs.config(address).read_bytes())) for address in GPUS}
    return (knobs.text(NUMA_BALANCING), governors, requests) == ("0", {"performance"}, {4096})


def _entry(host: BareHost) -> dict[str, object]:
    ssh = host.ssh
    login = {"address": ssh.address, "port": ssh.port, "user": ssh.user, "identity_files": [str(ssh.key)], "agent": False}
    return {**login, "python": "/usr/bin/python3", "tuning": "three"}


def _dump(path: Path, data: object) -> None:
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def tool_of_its_own(package: str, program: str) -> str:
    """The program of a package in an environment of its own, installed when it isn't there yet."""
    folder = REPOSITORY / ".cache" / "benchmarks" / package
    path = folder / "bin" / program
    if not path.exists():
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", package], check=True)
    return str(path)


def timed(fleet: Fleet, tool: Tool, *, checked: bool) -> Run:
    """A whole run of a tool.

    Raises:
        RuntimeError: it failed, or (with `checked`) did not set what it should.
    """

    def run() -> None:
        done = subprocess.run(
            tool.argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**ENVIRONMENT, **tool.environment},
            cwd=fleet.hosts[0].knobs.folder,
        )
        if done.returncode != 0 or (checked and not fleet.prepared()):
            raise RuntimeError(
                f"{tool.name} did not prepare the hosts (exit {done.returncode})\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )

    return run


def compare(fleet: Fleet, tools: Sequence[Tool], repeats: int) -> dict[str, float]:
    """Median seconds of each tool, taken in turns; a first turn is not counted."""
    taken: dict[str, list[float]] = {tool.name: [] for tool in tools}
    for turn in range(repeats + 1):
        for tool in tools if turn % 2 else reversed(tools):
            fleet.reset()
            spent = seconds(timed(fleet, tool, checked=tool.name not in (SSH, SSH_TO_ALL)))
            if turn:
                taken[tool.name].append(spent)
    return {name: statistics.median(values) for name, values in taken.items()}


def report(title: str, medians: dict[str, float], limits: dict[str, float | None]) -> bool:
    """Print a ratio a line; whether each limit holds."""
    ours = medians["fab prep"]
    good = True
    for name, limit in limits.items():
        ratio = ours / medians[name]
        holds = limit is None or ratio <= limit
        good = good and holds
        bound = "" if limit is None else f"limit {limit:g} x   {'ok' if holds else 'TOO SLOW'}"
        print(f"{title + ' / ' + name:52} {ratio:6.2f} x   {bound:24}   {ours:.2f} s against {medians[name]:.2f} s", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="for one host; many hosts are repeated a quarter as often")
    parser.add_argument("--hosts", type=int, default=MANY)
    given = parser.parse_args()
    pyinfra, ansible = tool_of_its_own("pyinfra", "pyinfra"), tool_of_its_own("ansible-core", "ansible-playbook")
    good = True
    with Workspace() as workspace, tempfile.TemporaryDirectory() as name:
        for shell in SHELLS:
            one = Fleet(start_hosts(workspace, [f"one-{shell.name}"], login_shell=shell.login), _made(Path(name) / f"one-{shell.name}"))
            medians = compare(one, [one.prep(), one.ssh(), one.pyinfra(pyinfra)], given.repeats)
            limits = {SSH: shell.bound(3.0), "pyinfra": shell.bound(0.6)}
            good = report(f"fab prep, one host, {shell.name} shell", medians, limits) and good
        many = Fleet(
            start_hosts(workspace, [f"many-{number}" for number in range(given.hosts)], login_shell=True), _made(Path(name) / "many")
        )
        side_by_side = [many.prep(), many.ssh_to_all(), many.pyinfra(pyinfra), many.tuned_ansible(ansible)]
        medians = compare(many, side_by_side, max(1, given.repeats // 4)) | compare(many, [many.ansible(ansible)], 1)
        bounds: dict[str, float | None] = {SSH_TO_ALL: None, "pyinfra": 0.4, "Ansible": 0.06, "Ansible, tuned": None}
        good = report(f"fab prep, {given.hosts} hosts", medians, bounds) and good
    return 0 if good else 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
