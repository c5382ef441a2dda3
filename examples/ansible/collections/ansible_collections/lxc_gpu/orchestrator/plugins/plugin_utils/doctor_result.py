"""A diagnosis as a task's result: it never changes anything, and fails where a relaunch would be refused. Pure."""

from __future__ import annotations

from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import ending, notable, sentence
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer


def doctor_result(answer: Answer) -> dict[str, Any]:
    """What :command:`orchestrator doctor` found. Warnings are Ansible's warnings too: they fail nothing, and somebody should see them."""
    report = answer.document.get("report") or {"sections": []}
    verdicts = [{**verdict, "section": section["heading"]} for section in report["sections"] for verdict in section["verdicts"]]
    refused = [verdict for verdict in verdicts if verdict["outcome"] == "refuse"]
    warned = [verdict for verdict in verdicts if verdict["outcome"] == "warn"]
    return {
        "changed": False,
        "verdicts": notable(verdicts),
        "passed": len(verdicts) - len(notable(verdicts)),
        "warnings": [sentence(verdict) for verdict in warned],
        **ending(
            answer,
            msg="; ".join(sentence(verdict) for verdict in refused) or f"{len(verdicts)} checks, nothing speaks against a relaunch",
            evidence=[line for verdict in refused for line in verdict["evidence"]],
            next_step=next((verdict["next_step"] for verdict in refused if verdict["next_step"]), None),
        ),
    }
