"""A box to change again and again: one host of the lab, whose stand-in server loads and stops in set times."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.timing import EndWatch
from orchestrator.lab import control
from orchestrator.lab.layout import Layout
from orchestrator.lab.processes import members
from tests.ssh.openssh import OpenSsh

HOST = "lab-b200"
PROGRAM = str(Path(sys.executable).with_name("orchestrator"))
STRICT = ("-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR")


@dataclass(frozen=True)
class LabBox:
    """The lab's host behind a real OpenSSH server, so that plain ``ssh`` and the program knock at the same door."""

    layout: Layout
    server: OpenSsh
    inventory: Path
    service: dict[str, Any]

    def program(self, verb: str, *flags: str) -> list[str]:
        """The command line of one verb of ours."""
        return [PROGRAM, verb, "--json", "--host", HOST, "--inventory", str(self.inventory), *flags]

    def ssh(self, command: str) -> list[str]:
        """The command line of OpenSSH's client."""
        known = f"UserKnownHostsFile={self.server.known_hosts}"
        return ["ssh", *STRICT, "-o", known, "-i", str(self.server.key), "-p", str(self.server.port), "127.0.0.1", command]

    def call(self, verb: str, *flags: str) -> float:
        """Run one verb of ours and return the monotonic time at which it ended."""
        done = subprocess.run(
            self.program(verb, *flags), cwd=self.layout.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        end = time.monotonic()
        if done.returncode != 0:
            raise RuntimeError(f"{verb} exited with {done.returncode}\n{done.stdout}{done.stderr}")
        return end

    def serving(self) -> None:
        """Make sure that a server of ours serves."""
        if not self.members():
            self.call("launch", "--yes")

    def members(self) -> list[int]:
        """The processes of the host's server."""
        folder = str(self.layout.host(HOST) / "sglang").encode()
        return [
            item.pid for item in members(self.layout) if any(folder in word for word in item.arguments) or item.title.startswith("sglang::")
        ]

    def main(self) -> int:
        """The main process of the host's server."""
        [pid] = [item.pid for item in members(self.layout) if b"sglang.launch_server" in item.arguments]
        return pid

    def good_answer(self) -> bool:
        """Whether a generation succeeds now."""
        body = json.dumps({"text": "ready?", "sampling_params": {"max_new_tokens": 1}}).encode()
        request = urllib.request.Request(f"{self.url}/generate", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.service['port']}"

    def first_answer(self) -> float:
        """Wait for a generation that succeeds; its monotonic time."""
        while not self.good_answer():
            time.sleep(0.005)
        return time.monotonic()

    def journal_time(self, state: str) -> float:
        """When the newest order first reached `state`, on the monotonic clock."""
        newest = max((self.layout.state_root(HOST) / self.service["name"] / "orders").iterdir())
        lines = (newest / "journal.jsonl").read_text(encoding="utf-8").replace("\0", "").splitlines()
        entries = [json.loads(line) for line in lines if line]
        return float(next(entry["monotonic"] for entry in entries if entry["state"] == state))

    def relaunch_by_hand(self, backend_flags: list[str]) -> None:
        """The least that a careful person would do: stop it, wait for it, start the new one, wait for three good answers."""
        arguments = ["--model-path", self.service["model"], "--host", "127.0.0.1", "--port", str(self.service["port"])]
        for flag, value in self.service["arguments"].items():
            arguments += [flag] if value is True else [flag, str(value)]
        server = shlex.join([self.service["python"], "-m", "sglang.launch_server", *arguments, *backend_flags])
        pid = self.main()
        watch = EndWatch(self.members())
        subprocess.run(self.ssh(f"kill -TERM {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.1; done"), check=True)
        watch.wait()
        subprocess.run(self.ssh(f"cd /tmp; setsid nohup {server} >/dev/null 2>&1 </dev/null &"), check=True)
        self.first_answer()
        assert self.good_answer()
        assert self.good_answer()


@contextmanager
def lab_box(folder: Path, *, login_shell: bool = False) -> Iterator[LabBox]:
    """Bring the lab up in `folder`, put an OpenSSH server before it, and take both away at the end.

    With `login_shell` a command over ssh starts as it does for this user anywhere, ~/.bashrc included.
    """
    layout = Layout.of(folder / "lab")
    control.up(layout.directory)
    try:
        keys = folder / "sshd"
        keys.mkdir(parents=True)
        with OpenSsh(keys, login_shell=login_shell).running() as server:
            inventory = _behind_openssh(layout, server)
            [service] = [item for item in _services(layout.inventory) if item["host"] == HOST]
            yield LabBox(layout, server, inventory, service)
    finally:
        control.down(layout.directory)


def _behind_openssh(layout: Layout, server: OpenSsh) -> Path:
    """Point the lab's own inventory at that server instead of the lab's."""
    path = layout.inventory / "hosts.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    python = str(getattr(sys, "_base_executable", sys.executable))
    data["hosts"][HOST] |= {"port": server.port, "identity_files": [str(server.key)], "python": python}
    del data["hosts"][HOST]["gpus"]  # the stand-in nvidia-smi is on the PATH of the lab's own server only
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    (layout.inventory / "known_hosts").write_text(server.known_hosts.read_text(encoding="utf-8"), encoding="utf-8")
    return layout.inventory


def _services(inventory: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((inventory / "services").glob("*.yml"))]
