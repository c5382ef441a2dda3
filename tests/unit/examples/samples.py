"""Documents as the program writes them, small."""

from __future__ import annotations

from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer

IDLE = "nothing would change: the server that serves now is what would be started"


def answer(code: int, /, *said: str, **document: Any) -> Answer:
    return Answer(["orchestrator", "verb"], code, document, said)


def error(message: str, exit_code: int, *evidence: str, next_step: str | None = None) -> dict[str, Any]:
    return {"message": message, "evidence": list(evidence), "next_step": next_step, "exit_code": exit_code}


def verdict(check: str, outcome: str, detail: str = "as it is", *evidence: str, next_step: str | None = None) -> dict[str, Any]:
    return {"check": check, "outcome": outcome, "detail": detail, "evidence": list(evidence), "next_step": next_step, "source": "/proc"}


def difference(name: str, old: str | None, new: str | None, origin: str = "backend") -> dict[str, Any]:
    return {"kind": "argument", "name": name, "old": old, "new": new, "origin": origin}


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "host": "gpu1",
        "place": "gpu1/101",
        "service": "glm5",
        "launch": {"backend": "marlin"},
        "refusals": [],
        "verdicts": [],
        "differences": [difference("--moe-runner-backend", "auto", "marlin"), difference("ORCHESTRATOR_LAUNCH", "a", "b", "ours")],
        "by_hand": ["kill -TERM 1"],
        "remarks": [],
        "staging": None,
        "changes_nothing": False,
        **changes,
    }


def order(state: str, exit_code: int, **changes: Any) -> dict[str, Any]:
    return {
        "order_id": "o1",
        "state": state,
        "exit_code": exit_code,
        "summary": "it went well",
        "service": "the new server serves",
        "failure": None,
        "next_step": None,
        "baseline": {"tokens_per_second": 41.0, "samples": [1, 2, 3]},
        "measured": None,
        "dark_seconds": 9.4,
        "lost_requests": 0,
        "verdicts": [verdict("port", "pass"), verdict("files", "unknown")],
        **changes,
    }


FAILURE = {"category": "kernel_missing", "summary": "no kernel", "evidence": ["expects arch"], "advice": "another backend", "retry": False}


def knob(name: str, outcome: str, before: dict[str, str], after: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "setting": {"kind": "sysctl", "name": name, "value": changes.pop("value", "0"), "place": "host"},
        "outcome": outcome,
        "before": before,
        "after": before if after is None else after,
        "detail": "",
        "source": "/proc/sys",
        "commands": [],
        **changes,
    }


def prepared(exit_code: int, *knobs: dict[str, Any], files: tuple[str, ...] = (), **changes: Any) -> Answer:
    """A host that answered."""
    outcomes = [item["outcome"] for item in knobs]
    report = {"results": list(knobs), "changes": list(files)}
    host = {
        "host": "gpu1",
        "profile": "tuned",
        "exit_code": exit_code,
        "counts": {outcome: outcomes.count(outcome) for outcome in outcomes},
        "error": None,
        "warnings": [],
        "places": [{"place": "gpu1", "kind": "host", "error": None, "report": report}],
        **changes,
    }
    return answer(exit_code, mode="apply", hosts=[host], exit_code=exit_code)
