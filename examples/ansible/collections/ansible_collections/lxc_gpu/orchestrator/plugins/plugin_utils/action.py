"""What the three actions share: their common options, and calling the program on the controller.

Nothing is copied to the managed host by Ansible: the program connects by itself, as its inventory says, and brings its agent along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer, ProgramMissingError, ask, find_program

Option = dict[str, Any]

COMMON_OPTIONS: dict[str, Option] = {
    "host": {"type": "str"},
    "inventory": {"type": "path"},
    "executable": {"type": "path"},
    "runs": {"type": "path"},
}
SERVICE_OPTION: dict[str, Option] = {"service": {"type": "str"}}
_WHOLE_LINES = "500"
"""Columns: Ansible's output has lines of its own, which must not be wrapped twice."""
WAIT_OPTIONS: dict[str, Option] = {"reason": {"type": "str"}, "wait": {"type": "float", "default": 0.0}}


class OrchestratorAction(ActionBase):
    """One verb of the program."""

    _requires_connection = False

    OPTIONS: ClassVar[dict[str, Option]]
    EXCLUSIVE: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the options and do it."""
        super().run(tmp, task_vars)
        self.variables: Mapping[str, Any] = task_vars or {}
        _, self.given = self.validate_argument_spec(self.OPTIONS, mutually_exclusive=self.EXCLUSIVE)
        try:
            result = self.perform()
        except ProgramMissingError as error:
            raise AnsibleActionFail(str(error)) from error
        if not self._task.diff:
            result.pop("diff", None)
        return result

    def perform(self) -> dict[str, Any]:
        """Call the program and say what came of it.

        Raises:
            ProgramMissingError: there is no program on this controller.
        """
        raise NotImplementedError

    @property
    def checks_only(self) -> bool:
        """Whether nothing may be changed."""
        return bool(self._task.check_mode)

    def ask(self, verb: str, *flags: str) -> Answer:
        """Call a verb about this task's host. Its progress is shown with -v.

        Raises:
            ProgramMissingError: it can't be run.
        """
        host = self.given["host"] or self.variables.get("orchestrator_host") or self.variables["inventory_hostname"]
        command = [find_program(self.given["executable"]), verb, "--json", "--host", str(host), *self._inventory_flag(), *flags]
        if verb != "prep" and self.given.get("service"):
            command += ["--service", self.given["service"]]
        return ask(command, self._environment(), lambda line: self._display.v(line, host=self.variables["inventory_hostname"]))

    def _inventory_flag(self) -> list[str]:
        """The program's own inventory. A relative folder counts from the playbook's."""
        folder = self.given["inventory"] or self.variables.get("orchestrator_inventory")
        return [] if folder is None else ["--inventory", str(self._beside_playbook(str(folder)))]

    def _beside_playbook(self, path: str) -> Path:
        return Path(str(self.variables.get("playbook_dir", "."))) / Path(path).expanduser()

    def _environment(self) -> dict[str, str]:
        """The controller's variables, which AWX puts its credentials into, with those of the task's and the play's ``environment:``."""
        own: dict[str, Any] = {}
        self._compute_environment_string(own)
        folder = {"ORCHESTRATOR_RUNS": str(self._beside_playbook(self.given["runs"]))} if self.given["runs"] else {}
        given = {name: str(value) for name, value in own.items()}
        return {**os.environ, **folder, **given, "NO_COLOR": "1", "COLUMNS": _WHOLE_LINES}
