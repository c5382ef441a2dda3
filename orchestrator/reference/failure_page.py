"""The page of each class of failure (``docs/failures/CLASS.md``): by what the agent knows it, and what was written of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.agent import failures, wire
from orchestrator.agent.failure_classes import Category, Signature, Where
from orchestrator.agent.failure_signatures import SIGNATURES, SILENT_SCHEDULER
from orchestrator.agent.oom_kills import OomKills

WRITTEN = Path(__file__).parent / "failures"
"""One file a class, with what the data has too little to say of."""

MOST_CASES = 3
_LONGEST_LINE = 200

_PLACES = {
    Where.EXCEPTION: "in an exception that ended a process",
    Where.WARM_UP: "in the exception that ended the warm-up",
    Where.LINE: "in any line",
    Where.HANG_DUMP: "in the stacks that SGLang's watchdog dumps",
}


@dataclass(frozen=True)
class Written:
    """What a person wrote of a class. `shown_by`: how it is known, where no text in the log shows it."""

    title: str
    means: str
    look_at: list[str]
    do: list[str]
    again: str
    shown_by: str = ""


@dataclass(frozen=True)
class Case:
    """A failure as the program told it, and where its log is from."""

    failure: wire.Failure
    origin: str
    captured: bool


def classes() -> list[str]:
    """Every class that an order's failure may have a category of: those of logs and loads, and those of a refusal on the box."""
    own = [value for name, value in vars(Category).items() if not name.startswith("_")]
    return sorted({*own, *(path.stem for path in WRITTEN.glob("*.yml"))})


def read_written(name: str) -> Written:
    """The part of a class that was written.

    Raises:
        OSError: there is none.
        TypeError: it lacks a part, or has one that is not known.
    """
    return Written(**yaml.safe_load((WRITTEN / f"{name}.yml").read_text(encoding="utf-8")))


def read_cases(folder: Path) -> dict[str, list[Case]]:
    """Class -> logged failures, from a folder of cases beside one of ``captures``; those of real servers first."""
    found: dict[str, list[Case]] = {}
    for path in sorted(folder.glob("*.json")):
        case = _case(json.loads(path.read_text(encoding="utf-8")), folder.parent / "captures")
        found.setdefault(case.failure.category, []).append(case)
    return {name: sorted(cases, key=lambda case: not case.captured) for name, cases in found.items()}


def _case(content: Mapping[str, Any], captures: Path) -> Case:
    captured = "log" in content
    lines = (captures / content["log"]).read_bytes().decode("utf-8").split("\n") if captured else content["lines"]
    counted = OomKills(content.get("oom_kills"), "/sys/fs/cgroup/memory.events", content.get("machine_oom_kills"))
    failure = failures.classify(lines, content["exit_status"], content["phase"], counted, content.get("version"))
    if captured:
        machine, _, version = str(Path(content["log"]).parent).partition("-")
        return Case(failure, f"from a server, SGLang {version} on {'an H200' if machine == 'h200' else 'CPU'}", captured=True)
    wrote = content.get("text_of")
    return Case(failure, f"by the text in the source of {wrote}" if wrote else "by the text in the source", captured=False)


def failure_page(name: str, cases: Sequence[Case]) -> str:
    """The page of one class, as Markdown whose paragraphs are lines."""
    written = read_written(name)
    parts = [
        f"# {name}",
        written.title,
        "## What it means",
        written.means,
        "## How it is known",
        *_known_by(name, written),
        *_told(cases),
        "## What to look at",
        _items(written.look_at),
        "## What to do",
        _items(written.do),
        "## Whether to try again",
        written.again,
    ]
    return "\n\n".join(parts) + "\n"


def index_page(names: Iterable[str]) -> str:
    """The list of all classes."""
    lines = [f"- [{name}]({name}.md): {read_written(name).title}" for name in names]
    intro = (
        "A failed change names its class in brackets; `fab docs CLASS` prints its page. Made by `make docs`, from the agent's signatures, "
        "from what `orchestrator/reference/failures/` says and from the cases of its tests."
    )
    return "\n".join(["# Classes of failure", "", intro, "", *lines]) + "\n"


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def _known_by(name: str, written: Written) -> list[str]:
    signatures = [signature for signature in (*SIGNATURES, SILENT_SCHEDULER) if signature.category == name]
    shown = [written.shown_by] if written.shown_by else []
    if signatures:
        shown.append("By what the server's log says; the first of all signatures that fits counts. As regular expressions:")
    if not shown:
        shown.append("By how the server and its processes ended, where no text in the log says more.")
    return [*shown, *(part for signature in signatures for part in _signature(signature))]


def _signature(signature: Signature) -> list[str]:
    where = _PLACES[signature.where] + (f", in phase {' or '.join(signature.stages)}" if signature.stages else "")
    retry = " The same launch may succeed when it is tried again." if signature.retry else ""
    return [
        f"- {signature.summary} ({where}). {_sentence(signature.advice)}{retry}",
        "```\n" + "\n".join(alternatives(signature.pattern.pattern)) + "\n```",
    ]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def alternatives(pattern: str) -> list[str]:
    """A regular expression in parts that any one of may match: cut at each ``|`` outside of brackets."""
    parts, depth, in_class, escaped = [""], 0, False, False
    for character in pattern:
        if not escaped and not in_class and depth == 0 and character == "|":
            parts.append("")
            continue
        parts[-1] += character
        if escaped or character == "\\":
            escaped = not escaped
        elif in_class or character == "[":
            in_class = character != "]"
        else:
            depth += {"(": 1, ")": -1}.get(character, 0)
    return parts


def _told(cases: Sequence[Case]) -> list[str]:
    """A few failures as they were told, each summary once."""
    chosen: dict[str, Case] = {}
    for case in cases:
        chosen.setdefault(case.failure.summary, case)
    if not chosen:
        return []
    parts = ["## As it was told"]
    for case in list(chosen.values())[:MOST_CASES]:
        lines = [_clip(case.failure.summary), *(f"    {_clip(line)}" for line in case.failure.evidence)]
        parts += [f"{case.origin[0].upper()}{case.origin[1:]}:", "```\n" + "\n".join(lines) + "\n```"]
    return parts


def _clip(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."
