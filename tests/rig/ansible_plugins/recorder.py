"""A callback of Ansible's that keeps what became of each task, one JSON line each, in the file that $RECORDER_FILE names."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: recorder
type: notification
short_description: keeps each task's result for the tests
description: [keeps each task's result for the tests]
"""


class CallbackModule(CallbackBase):
    """Hears of every result as Ansible has understood it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "recorder"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result: Any) -> None:
        self._keep("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._keep("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._keep("unreachable", result)

    def _keep(self, outcome: str, result: Any) -> None:
        line = {"outcome": outcome, "host": result.host.get_name(), "action": result.task.action, "result": result.result}
        with open(os.environ["RECORDER_FILE"], "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, default=str) + "\n")
