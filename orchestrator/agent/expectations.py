"""What a service's owner expects of its greedy answers: asked of the old server while it serves, and of the new one.

An expectation that the old server did not meet either is told and does not count against the new one.
"""

import json
import sys
from dataclasses import dataclass
from typing import List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.command import run_bounded
from orchestrator.agent.generation import BadGeneration, chat, complete
from orchestrator.agent.http import Client, HttpError

CHECK = "expectations"

_SEARCH = "import json, re, sys; words = json.load(sys.stdin); sys.exit(0 if re.search(words[0], words[1], re.DOTALL) else 3)"
_SEARCH_SECONDS = 5.0
_LONGEST_SEARCHED = 20_000
_LONGEST_SHOWN = 200
_LONGEST_PROMPT = 60


@dataclass(frozen=True)
class Answer:
    """How one expectation was met. `wrong` is empty when it was; `asked` is false when there was no time left to ask."""

    prompt: str
    text: str = ""
    wrong: str = ""
    asked: bool = True


def ask(client: Client, expected: Sequence[wire.Expectation], deadline: Deadline) -> List[Answer]:
    """Ask for each, until the deadline; never raises for what a server does."""
    return [_ask(client, expectation, deadline) for expectation in expected]


def _ask(client: Client, expectation: wire.Expectation, deadline: Deadline) -> Answer:
    prompt = shown(expectation.prompt, _LONGEST_PROMPT)
    if deadline.passed:
        return Answer(prompt, wrong="there was no time left to ask", asked=False)
    try:
        if expectation.chat:
            text = chat(client, expectation.prompt, expectation.max_tokens, deadline.left())
        else:
            text = complete(client, expectation.prompt, expectation.max_tokens, deadline.left()).text
    except (HttpError, BadGeneration) as error:
        return Answer(prompt, wrong=f"no answer: {error}", asked=not deadline.passed)
    return Answer(prompt, shown(text), wrong_in(expectation, text) or "")


def wrong_in(expectation: wire.Expectation, text: str) -> Optional[str]:
    """What the text lacks; None when it is as expected."""
    missing = [part for part in expectation.contains if part not in text]
    if missing:
        return f"it does not contain {shown(missing[0], _LONGEST_PROMPT)!r}"
    if expectation.matches is None:
        return None
    # In a child: an expression can take for ever, and nothing in this process would run meanwhile.
    given = json.dumps([expectation.matches, text[:_LONGEST_SEARCHED]]).encode()
    found = run_bounded([sys.executable, "-I", "-S", "-c", _SEARCH], _SEARCH_SECONDS, given=given)
    if found.good:
        return None
    what = shown(expectation.matches, _LONGEST_PROMPT)
    return f"it does not match {what!r}" if found.status == 3 else f"{what!r} could not be searched for: {shown(found.errors[-200:])}"


def judge(old: Sequence[Answer], new: Sequence[Answer]) -> wire.Verdict:
    """Judge the new server's answers; `old` is empty where there was no old server, or it could not be asked."""
    before: Sequence[Optional[Answer]] = old if len(old) == len(new) else [None] * len(new)
    failed: List[str] = []
    excused: List[str] = []
    for was, now in zip(before, new):  # noqa: B905 - equal lengths
        if not now.wrong:
            continue
        line = f'"{now.prompt}": {now.wrong}' + (f'; the answer: "{now.text}"' if now.text else "")
        if was is not None and was.wrong and was.asked:
            excused.append(f"{line} (the old server failed it too)")
        elif not now.asked:
            excused.append(line)
        else:
            failed.append(line)
    if failed:
        step = "do not use this backend with this model, or correct the service's expectations"
        return wire.Verdict(CHECK, wire.Outcome.REFUSE, f"{len(failed)} of {len(new)} not met: {failed[0]}", failed + excused, step)
    if excused:
        return wire.Verdict(CHECK, wire.Outcome.WARN, f"{len(excused)} of {len(new)} not met, and not counted: {excused[0]}", excused)
    return wire.Verdict(CHECK, wire.Outcome.PASS, f"{len(new)} of {len(new)} met")


def shown(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """A model's text for a person: in one line, cut, and without what a terminal would obey."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: longest + 1])
    return line if len(line) <= longest else line[: longest - 3] + "..."
