"""The action of the module relaunch."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.action import (
    COMMON_OPTIONS,
    SERVICE_OPTION,
    WAIT_OPTIONS,
    Option,
    OrchestratorAction,
)
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import LOCKED
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.orders import reason, same_order
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.relaunch_result import relaunch_result

_SWITCHES = ("accept_drift", "force", "sequential")


class ActionModule(OrchestratorAction):
    """Have a service run with another backend; in check mode the program's own plan."""

    OPTIONS: ClassVar[dict[str, Option]] = {
        **COMMON_OPTIONS,
        **SERVICE_OPTION,
        **WAIT_OPTIONS,
        "backend": {"type": "str", "required": True},
        "grace": {"type": "float"},
        "measure": {"type": "bool", "default": True},
        **{name: {"type": "bool", "default": False} for name in _SWITCHES},
    }

    def perform(self) -> dict[str, Any]:
        answer = self.ask("relaunch", *self._flags())
        busy = answer.exit_code == LOCKED and not self.checks_only
        order_id = self._order_for_the_same() if busy else None
        if order_id is None:
            return relaunch_result(answer)
        return relaunch_result(self.ask("attach", "--order", order_id), attached_to=order_id)

    @property
    def _subject(self) -> str:
        return f"relaunch to {self.given['backend']}"

    def _flags(self) -> list[str]:
        given = self.given
        flags = ["--backend", given["backend"], "--reason", reason(self._subject, self.variables, given["reason"])]
        flags += [f"--{name.replace('_', '-')}" for name in _SWITCHES if given[name]]
        flags += [] if given["measure"] else ["--no-measure"]
        flags += [] if given["grace"] is None else ["--grace", f"{given['grace']:g}"]
        return [*flags, *(["--plan"] if self.checks_only else ["--yes", "--wait", f"{given['wait']:g}"])]

    def _order_for_the_same(self) -> str | None:
        """The order at work that an earlier run of this task has begun, whose controller was ended."""
        report = self.ask("status").document.get("report") or {}
        return same_order(report.get("order"), self._subject)
