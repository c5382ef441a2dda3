"""Runs a piece of the agent inside the rig's container: the package is copied there, and each call is one Python process."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator.agent
from tests.rig.container import Container

PYTHON = "/usr/bin/python3"
CODE = "/opt/agent-under-test"
STANDIN = "/opt/standin-sglang"
STATE = "/var/lib/orchestrator-test"

_FRAME = """\
import json, sys
sys.path.insert(0, {code!r})
given = json.loads({given!r})
from orchestrator.agent import wire
from orchestrator.agent.state_folder import StateFolder
def out(value): print(json.dumps(wire.to_json(value)))
def ignore(phase, detail): pass
def folder(): made = StateFolder({state!r}, given["launch"]["service"]); made.create(); return made
def launch(): return wire.from_json(wire.Launch, given["launch"])
"""


@dataclass(frozen=True)
class AgentInContainer:
    """The agent's code in a container, for tests of what systemd and the kernel do there."""

    container: Container

    @classmethod
    def install(cls, container: Container) -> AgentInContainer:
        package = container.path(CODE) / "orchestrator"
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(Path(orchestrator.agent.__file__).parent, package / "agent", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        standin = Path(__file__).parents[1] / "agent/standin"
        shutil.copytree(standin, container.path(STANDIN), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(container)

    def python(self, script: str, timeout: float = 60.0, **given: Any) -> Any:
        """Run a script there; what it gives to `out` comes back. `given` is there as a dictionary."""
        frame = _FRAME.format(code=CODE, state=STATE, given=json.dumps(given))
        done = self.container.run(PYTHON, "-I", "-", stdin=frame + script, timeout=timeout)
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    def text(self, path: str) -> str:
        """A file in the container, "" when there is none."""
        return self.container.run("cat", path, check=False).stdout
