"""The topics of ``fab docs``, each a file: the sections of the configuration, the classes of failure, and a few pages.

What there is, the folders tell, so that names can be listed without reading anything.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["section", "failure", "page"]

PACKAGE = Path(__file__).parents[1]
EXAMPLES = Path(__file__).parent / "examples"
SINGLE_PAGES = ("exit-codes", "findings")
"""Pages of ``docs/`` that are topics themselves."""


@dataclass(frozen=True)
class Topic:
    """One thing to read about. `name` is what ``fab docs`` is given."""

    name: str
    kind: Kind
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """What it is about, in one line."""
        return title_of(self.text)


def title_of(text: str) -> str:
    """Of an example what its first paragraph says behind the file, of a page the first line that is no heading."""
    if not text.startswith(_HEADING_OF_A_FILE):
        return next((line.removesuffix(".") for line in text.splitlines()[1:] if line), "")
    _, _, said = first_paragraph(text).partition(": ")
    return said.partition(". ")[0].removesuffix(".")


_HEADING_OF_A_FILE = ("# inventory/", "# playbooks/")
"""How examples begin: with the file that they are of."""


def first_paragraph(example: str) -> str:
    """The comment that an example begins with, up to its first empty line, on one line."""
    return " ".join(line.removeprefix("# ") for line in example.partition("\n#\n")[0].splitlines())


def documents() -> Path:
    """The folder ``docs``: beside the package in a checkout, inside it where it was installed from a wheel."""
    installed = PACKAGE / "docs"
    return installed if installed.is_dir() else PACKAGE.parent / "docs"


def topics() -> Mapping[str, Topic]:
    """Every topic by its name, in the order of their kinds."""
    pages = documents()
    found = [
        *(Topic(path.stem, "section", path) for path in sorted(EXAMPLES.glob("*.yml"))),
        *(Topic(path.stem, "failure", path) for path in sorted((pages / "failures").glob("*.md")) if path.stem != "README"),
        *(Topic(name, "page", pages / f"{name}.md") for name in SINGLE_PAGES if (pages / f"{name}.md").is_file()),
    ]
    return {topic.name: topic for topic in found}


def sections_with(key: str) -> list[str]:
    """The sections whose examples have that key, set or commented out."""
    line = re.compile(rf"^\s*#?(?:- )?{re.escape(key)}:(?: |$)", re.MULTILINE)
    return [topic.name for topic in topics().values() if topic.kind == "section" and line.search(topic.text)]


def mentioning(word: str) -> list[str]:
    """The topics that speak of a word, those that do so most often first."""
    spoken = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    counted = {topic.name: len(spoken.findall(topic.text)) for topic in topics().values()}
    return sorted((name for name, count in counted.items() if count), key=lambda name: -counted[name])


def resembling(name: str, names: Sequence[str]) -> list[str]:
    """Topics whose names hold one that is none, or come near to it."""
    wanted = name.lower().replace(" ", "_")
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.7)
    return list(dict.fromkeys([*(known for known in names if wanted in known), *near]))
