"""A relaunch, or the plan of one, as a task's result. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import REFUSED, ending, notable, sentence
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer

_TOLD = {"backend", "sweep", "drift"}
"""Origins of differences that a diff shows. Markers of the program's own differ at every launch."""


def relaunch_result(answer: Answer, *, attached_to: str | None = None) -> dict[str, Any]:
    """How a relaunch ended, or what it would do.

    A server that already is what was asked for is Ansible's unchanged, where the program refuses to restart it for nothing.

    Args:
        attached_to: the order that was watched, where one for the same thing had been begun before.
    """
    plan, order = answer.document.get("plan"), answer.document.get("result")
    told = {"attached_to": attached_to, "run": answer.document.get("run"), **_planned(plan), **_ordered(order)}
    if answer.exit_code == REFUSED and plan is not None and plan.get("changes_nothing"):
        return {**told, "changed": order is not None, "exit_code": 0, **_already(plan)}
    if order is not None:
        return {**told, "changed": order["state"] != "REFUSED", **_ended(answer, order)}
    warnings = [sentence(verdict) for verdict in plan["verdicts"] if verdict["outcome"] == "warn"] if plan else []
    changed = answer.exit_code == 0 and plan is not None
    return {**told, "changed": changed, "warnings": warnings, **ending(answer, msg=_intention(plan))}


def _already(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Whatever else speaks against a relaunch is worth a warning: there is none to be refused."""
    warnings = [sentence(verdict) for verdict in plan["verdicts"] if verdict["outcome"] == "refuse"]
    backend = plan["launch"]["backend"]
    return {
        "msg": f"{plan['service']} serves already with {backend}: nothing to do",
        "evidence": [],
        "next_step": None,
        "warnings": warnings,
    }


def _ended(answer: Answer, order: Mapping[str, Any]) -> dict[str, Any]:
    failure = order["failure"]
    why = f"{failure['summary']} [{failure['category']}]" if failure else order["summary"]
    return ending(
        answer,
        msg=f"{order['state']}: {why}; {order['service']}",
        evidence=[*failure["evidence"], *([failure["advice"]] if failure["advice"] else [])] if failure else [],
        next_step=order["next_step"],
    )


def _planned(plan: Mapping[str, Any] | None) -> dict[str, Any]:
    if plan is None:
        return {"diff": []}
    shown = [difference for difference in plan["differences"] if difference["origin"] in _TOLD]
    return {
        "host": plan["host"],
        "service": plan["service"],
        "refusals": plan["refusals"],
        "verdicts": notable(plan["verdicts"]),
        "differences": plan["differences"],
        "by_hand": plan["by_hand"],
        "staged": plan["staging"] is not None and plan["staging"]["staged"],
        "diff": [_difference(plan, shown)] if shown else [],
    }


def _difference(plan: Mapping[str, Any], shown: list[dict[str, Any]]) -> dict[str, str]:
    header = f"{plan['service']} on {plan['place']}"
    before, after = (
        "".join(f"{item['kind']} {item['name']}: {item[side]}\n" for item in shown if item[side] is not None) for side in ("old", "new")
    )
    return {"before_header": header, "after_header": header, "before": before, "after": after}


def _ordered(order: Mapping[str, Any] | None) -> dict[str, Any]:
    """What an order left, with what playbooks ask for most beside it. All of it is in the run folder."""
    if order is None:
        return {"state": None, "failure_class": None, "service_state": None, "dark_seconds": None, "lost_requests": None, "result": None}
    timings = {name: _without_samples(order[name]) for name in ("baseline", "measured")}
    return {
        "state": order["state"],
        "failure_class": order["failure"]["category"] if order["failure"] else None,
        "service_state": order["service"],
        "dark_seconds": order["dark_seconds"],
        "lost_requests": order["lost_requests"],
        "result": {**order, **timings, "verdicts": notable(order["verdicts"])},
    }


def _without_samples(timing: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if timing is None else {name: value for name, value in timing.items() if name != "samples"}


def _intention(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "no plan was made"
    if plan["launch"] is None:
        return plan["remarks"][0] if plan["remarks"] else "an order that was cut off comes first"
    return f"{plan['service']} would be relaunched with {plan['launch']['backend']}"
