"""A controller of Ansible's: the real ansible-playbook on the shipped playbooks, or on a test's own, and what became of each task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples" / "ansible"
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
SECONDS = 240.0

_FATAL, _UNREACHABLE = 2, 4
"""Exit codes of ansible-playbook: a host failed, a host was not reached."""


@dataclass(frozen=True)
class TaskResult:
    """What one task came to on one host. `outcome` is ``ok``, ``failed`` or ``unreachable``, as Ansible has understood it."""

    outcome: str
    host: str
    action: str
    result: dict[str, Any]


@dataclass(frozen=True)
class Played:
    """One run of ansible-playbook."""

    exit_code: int
    output: str
    results: list[TaskResult]

    @property
    def ours(self) -> list[TaskResult]:
        """The results of our own actions, host by host; which of several hosts ends first is chance."""
        return sorted((item for item in self.results if item.action.startswith("lxc_gpu.orchestrator.")), key=lambda item: item.host)

    def one(self, outcome: str) -> dict[str, Any]:
        """The result of the one task of ours.

        Raises:
            AssertionError: there are none or several, or it came to something else; the message is what somebody would have seen.
        """
        found = [(item.outcome, item.result) for item in self.ours]
        codes = {"ok": 0, "failed": _FATAL, "unreachable": _UNREACHABLE}
        assert [item[0] for item in found] == [outcome], self.output
        assert self.exit_code == codes[outcome], self.output
        return found[0][1]


class Controller:
    """Somebody who has Ansible, and an inventory of its own with the names of hosts only."""

    def __init__(self, folder: Path, inventory: Path, hosts: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._hosts = folder / "ansible-hosts.yml"
        self._records = folder / "results.jsonl"
        variables = {"orchestrator_inventory": str(inventory)}
        self._hosts.write_text(yaml.safe_dump({"gpus": {"hosts": dict.fromkeys(hosts), "vars": variables}}), encoding="utf-8")
        self._environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(EXAMPLES / "ansible.cfg"),
            "ANSIBLE_HOME": str(folder / "ansible"),
            "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).with_name("ansible_plugins")),
            "ANSIBLE_CALLBACKS_ENABLED": "recorder",
            "ANSIBLE_COLLECTIONS_PATH": str(EXAMPLES / "collections"),
            "RECORDER_FILE": str(self._records),
            "ORCHESTRATOR_RUNS": str(folder / "runs"),
            "LC_ALL": "C.UTF-8",
            **(environment or {}),
        }

    def play(self, playbook: str | Path, *words: str) -> Played:
        """Run a playbook to its end; a name is one of the shipped ones."""
        process = self.start(playbook, *words)
        output, _ = process.communicate(timeout=SECONDS)
        return Played(process.returncode, output, self._read())

    def start(self, playbook: str | Path, *words: str) -> subprocess.Popen[str]:
        """Begin to run a playbook, in a session of its own."""
        self._records.unlink(missing_ok=True)
        return subprocess.Popen(
            [ANSIBLE_PLAYBOOK, "-i", self._hosts, EXAMPLES / playbook, *words],
            env=self._environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def task(self, action: str, options: Mapping[str, Any], **keywords: Any) -> Path:
        """Write a playbook of one task."""
        play = {"hosts": "gpus", "gather_facts": False, "tasks": [{f"lxc_gpu.orchestrator.{action}": dict(options), **keywords}]}
        path = self.folder / "one-task.yml"
        path.write_text(yaml.safe_dump([play]), encoding="utf-8")
        return path

    def _read(self) -> list[TaskResult]:
        if not self._records.exists():
            return []
        return [TaskResult(**json.loads(line)) for line in self._records.read_text(encoding="utf-8").splitlines()]
