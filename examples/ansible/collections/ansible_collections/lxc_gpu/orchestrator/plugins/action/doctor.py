"""The action of the module doctor."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.action import COMMON_OPTIONS, SERVICE_OPTION, Option, OrchestratorAction
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.doctor_result import doctor_result


class ActionModule(OrchestratorAction):
    """Diagnose; reads only, so check mode does the same."""

    OPTIONS: ClassVar[dict[str, Option]] = {**COMMON_OPTIONS, **SERVICE_OPTION, "backend": {"type": "str"}}

    def perform(self) -> dict[str, Any]:
        backend = self.given["backend"]
        return doctor_result(self.ask("doctor", *(["--backend", backend] if backend else [])))
