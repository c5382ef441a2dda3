"""A person with a runbook on paper and two shells, who pastes its blocks where the paper says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from tests.lxc.standin_box import StandinBox
from tests.rig.keyboard import PastedShell
from tests.rig.ssh import SshServer

_PLACES = {"On the host:": "host", "Where SGLang runs:": "place", "At your own machine:": "here"}


@dataclass(frozen=True)
class Paste:
    """One block of commands, and where it is pasted. What comes before the paper names a place has none."""

    step: str
    place: str
    text: str

    @property
    def heading(self) -> str:
        """Its comment, by which a person tells it from the others of its step; "" where it has none."""
        first = self.text.splitlines()[0]
        return first if first.startswith("#") else ""


def read_paper(markdown: str) -> list[Paste]:
    """Every block of a rendered runbook, in order. Those before the first step belong to step ``""``."""
    pastes: list[Paste] = []
    step = place = ""
    block: list[str] | None = None
    for line in markdown.splitlines():
        if block is not None:
            if line == "```":
                pastes.append(Paste(step, place, "\n".join(block) + "\n"))
                block = None
            else:
                block.append(line)
        elif line == "```sh":
            block = []
        elif found := re.match(r"## \d+\. (\S+)$", line):
            step, place = found[1], ""
        else:
            place = _PLACES.get(line, place)
    return pastes


class Person:
    """Two shells as the paper says, with its variables set in both."""

    def __init__(self, box: StandinBox, runbook: str, *flags: str) -> None:
        done = box.operator.show("runbook.show", runbook, "--markdown", *flags)
        assert done.returncode == 0, done.stderr
        self.pastes = read_paper(done.stdout)
        _, logins, variables = (paste.text for paste in self.pastes if paste.step == "")
        self._variables = variables
        host, place = (line for line in logins.splitlines() if line.startswith("ssh "))
        known = str(box.operator.inventory / "known_hosts")
        self._ways = {"host": _login(host, box.host.ssh, known), "place": _login(place, box.container.ssh, known)}
        self._open = ExitStack()
        self._shells: dict[str, PastedShell] = {}

    def __enter__(self) -> Person:
        for place, argv in self._ways.items():
            self._shells[place] = self._open.enter_context(PastedShell(argv))
            self.type(place, self._variables)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    def type(self, place: str, text: str) -> str:
        """Type something of one's own there; what was printed."""
        return self._shells[place].paste(text)

    def do(self, step: str, *headings: str, fill: Mapping[str, str] | None = None) -> str:
        """Paste the blocks of a step, all of them or those with these words in their comments; what was printed.

        `fill` is what a person writes for the words in capitals that stand open.
        """
        of_step = [paste for paste in self.pastes if paste.step == step and paste.place in self._shells]
        chosen = [_find(of_step, words) for words in headings] if headings else of_step
        assert chosen, f"nothing to type in step {step}"
        open_words = [word for word in fill or {} if not any(word in paste.text for paste in chosen)]
        assert not open_words, f"nowhere in step {step}: {open_words}"
        return "".join(self.type(paste.place, _filled(paste.text, fill or {})) for paste in chosen)


def _login(line: str, server: SshServer, known_hosts: str) -> list[str]:
    """The paper's line, with this rig's key: a person's own lies where ssh looks."""
    ssh, *words = shlex.split(line, comments=True)
    return [ssh, "-tt", "-i", str(server.key), "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={known_hosts}", *words]


def _find(pastes: list[Paste], words: str) -> Paste:
    found = [paste for paste in pastes if words in paste.heading]
    assert len(found) == 1, (words, [paste.heading for paste in pastes])
    return found[0]


def _filled(text: str, fill: Mapping[str, str]) -> str:
    for word, value in fill.items():
        text = text.replace(word, value)
    assert "FILL_IN" not in text, text
    return text
