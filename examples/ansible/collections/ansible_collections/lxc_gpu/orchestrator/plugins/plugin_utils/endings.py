"""What the program's exit codes mean to Ansible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer

DONE, REFUSED, UNREACHABLE, LOCKED = 0, 3, 4, 5
"""Of the table in the program's README, those that are told apart here. Whatever else isn't 0 is a failure."""


def ending(answer: Answer, *, msg: str, evidence: Iterable[str] = (), next_step: str | None = None) -> dict[str, Any]:
    """How a call ended, as every result has it. The words are those for when the answer holds no error of its own."""
    error = answer.document.get("error")
    if error is not None:
        msg, evidence, next_step = error["message"], error["evidence"], error["next_step"]
    elif not answer.document:
        msg, evidence = f"{answer.command[0]} ended with exit code {answer.exit_code} and no answer", answer.said
    told = {"exit_code": answer.exit_code, "msg": msg, "evidence": list(evidence), "next_step": next_step}
    return {**told, **outcome(answer.exit_code)}


def outcome(exit_code: int) -> dict[str, bool]:
    """``unreachable`` where a place could not be reached, entered or trusted, ``failed`` for everything else that isn't 0."""
    if exit_code == DONE:
        return {}
    return {"unreachable": True} if exit_code == UNREACHABLE else {"failed": True}


def notable(verdicts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts that did not pass."""
    return [dict(verdict) for verdict in verdicts if verdict["outcome"] != "pass"]


def sentence(verdict: Mapping[str, Any]) -> str:
    """A verdict as one line."""
    next_step = f"; next: {verdict['next_step']}" if verdict["next_step"] else ""
    return f"{verdict['check']}: {verdict['detail']}{next_step}"
