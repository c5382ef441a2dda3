"""The action of the module prep."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.action import COMMON_OPTIONS, WAIT_OPTIONS, Option, OrchestratorAction
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.orders import reason
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.prep_result import prep_result

_STATES = {"applied": [], "reverted": ["--revert"], "unpersisted": ["--unpersist"]}


class ActionModule(OrchestratorAction):
    """Bring a host to its tuning profile, or back; in check mode the program's own plan."""

    OPTIONS: ClassVar[dict[str, Option]] = {
        **COMMON_OPTIONS,
        **WAIT_OPTIONS,
        "profile": {"type": "str"},
        "state": {"type": "str", "choices": list(_STATES), "default": "applied"},
        "persist": {"type": "bool", "default": False},
    }

    def perform(self) -> dict[str, Any]:
        given = self.given
        flags = [*_STATES[given["state"]], "--reason", reason("prep", self.variables, given["reason"])]
        flags += ["--profile", given["profile"]] if given["profile"] else []
        flags += ["--persist"] if given["persist"] else []
        flags += ["--plan"] if self.checks_only else ["--wait", f"{given['wait']:g}"]
        return prep_result(self.ask("prep", *flags))
