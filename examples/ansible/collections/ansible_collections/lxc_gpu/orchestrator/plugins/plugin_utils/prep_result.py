"""A preparation as a task's result: changed, failed, and a diff of the knobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.endings import ending
from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.program import Answer

_WRITTEN = {"changed", "would_change"}
_LEFT = {"failed", "not_settable", "told"}
"""Outcomes of a knob that is not as it should be, and will not be after another run either."""
_ORIGINAL = "(its original value)"
"""Where items of a knob had different ones, the plan of a revert names none: they are kept on the host."""


def prep_result(answer: Answer) -> dict[str, Any]:
    """What became of one host, or (of a plan) what would."""
    host = next(iter(answer.document.get("hosts", [])), None)
    if host is None:
        return {"changed": False, **ending(answer, msg="no host was asked")}
    places = [place for place in host["places"] if place["report"] is not None]
    results = [result for place in places for result in place["report"]["results"]]
    files = [path for place in places for path in place["report"]["changes"]]
    error = host["error"] or next((place["error"] for place in host["places"] if place["error"]), None)
    left = [result for result in results if _is_left(result)]
    changed = bool(files) or any(result["outcome"] in _WRITTEN for result in results) or _half_written(results)
    return {
        "changed": changed,
        "profile": host["profile"],
        "counts": host["counts"],
        "knobs": [_knob(result) for result in results],
        "files": files,
        "warnings": host["warnings"],
        "diff": [difference for place in places if (difference := _difference(place, host["profile"])) is not None],
        **ending(
            answer,
            msg=error["message"] if error else _summary(host["counts"], left),
            evidence=error["evidence"] if error else [_sentence(result) for result in left],
            next_step=error["next_step"] if error else next((line for result in left for line in result["commands"]), None),
        ),
    }


def knob_name(result: Mapping[str, Any]) -> str:
    """How the profile names a knob: ``cpu_governor``, ``kernel.numa_balancing``."""
    return str(result["setting"]["name"] or result["setting"]["kind"])


def _is_left(result: Mapping[str, Any]) -> bool:
    unproven = result["outcome"] == "unknown" and result["setting"]["value"] is not None
    return result["outcome"] in _LEFT or unproven


def _half_written(results: list[dict[str, Any]]) -> bool:
    """Whether a knob that failed is another one than before all the same: some of its items took the value."""
    return any(result["before"] != result["after"] for result in results)


def _knob(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: result[name] for name in ("outcome", "before", "after", "detail", "source", "commands")}
    return {"knob": knob_name(result), "wanted": result["setting"]["value"], **kept}


def _summary(counts: Mapping[str, int], left: list[dict[str, Any]]) -> str:
    if left:
        return "not as the profile wants it: " + "; ".join(f"{knob_name(result)} ({result['outcome']})" for result in left)
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "nothing to compare"


def _sentence(result: Mapping[str, Any]) -> str:
    return f"{knob_name(result)}: {result['outcome']}" + (f": {result['detail']}" if result["detail"] else "")


def _difference(place: Mapping[str, Any], profile: str) -> dict[str, str] | None:
    """Before and after of what changed (or would) in one place; None where nothing did."""
    report = place["report"]
    before, after = [], []
    for result in report["results"]:
        old, new = result["before"], _values_after(result)
        if old != new:
            before += _lines(knob_name(result), old)
            after += _lines(knob_name(result), new)
    after += [f"file {path}" for path in report["changes"]]
    if before == after:
        return None
    header = f"{place['place']} ({profile})" if profile else place["place"]
    return {"before_header": header, "after_header": header, "before": _text(before), "after": _text(after)}


def _values_after(result: Mapping[str, Any]) -> dict[str, str]:
    """What was read back; of a plan, which reads nothing back, what is wanted."""
    if result["outcome"] != "would_change":
        return dict(result["after"])
    return dict.fromkeys(result["before"], result["setting"]["value"] or _ORIGINAL)


def _lines(name: str, values: Mapping[str, str]) -> list[str]:
    """A knob's values: one line where all items have the same, else a line for each item."""
    if len(set(values.values())) == 1:
        count = f" ({len(values)})" if len(values) > 1 else ""
        return [f"{name}{count}: {next(iter(values.values()))}"]
    return [f"{name} {item}: {value}" for item, value in values.items()]


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
