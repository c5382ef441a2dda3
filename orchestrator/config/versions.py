"""SGLang's version numbers, compared: just enough of PEP 440 for ``0.5.10.post1`` and ``>=0.5.11,<0.5.20``.

The order is the plain one: 0.5.10.dev1 < 0.5.10rc1 < 0.5.10 < 0.5.10.post1 < 0.5.11. Unlike in PEP 440's specifiers,
``<=0.5.10`` and ``>0.5.10`` follow that order without exceptions: the latter includes 0.5.10.post1.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import total_ordering

_VERSION = re.compile(
    r"""v?(?P<release>\d{1,9}(?:\.\d{1,9}){0,5})
        (?:[-_.]?(?P<phase>a|b|rc)[-_.]?(?P<phase_number>\d{0,9}))?
        (?:[-_.]?post(?P<post>\d{0,9}))?
        (?:[-_.]?dev(?P<dev>\d{0,9}))?
        (?:\+[a-z0-9._-]+)?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_SPECIFIER = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*")
_OPERATORS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_PHASES = {"a": 0, "b": 1, "rc": 2}
_FINAL = 3


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version number. What follows a ``+`` (a local build) does not count.

    `post` is -1 without one; `dev` is None without one.
    """

    release: tuple[int, ...]
    phase: tuple[int, int]
    post: int
    dev: int | None

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version number.

        Raises:
            ValueError: `text` is none.
        """
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a version number such as 0.5.11 or 0.5.10.post1")
        release = [int(part) for part in match["release"].split(".")]
        while len(release) > 1 and release[-1] == 0:
            release.pop()
        phase = (_FINAL, 0) if match["phase"] is None else (_PHASES[match["phase"].lower()], int(match["phase_number"] or 0))
        post = -1 if match["post"] is None else int(match["post"] or 0)
        dev = None if match["dev"] is None else int(match["dev"] or 0)
        return cls(tuple(release), phase, post, dev)

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[tuple[int, ...], tuple[int, int], int, float]:
        dev = float("inf") if self.dev is None else float(self.dev)
        of_the_release_itself = self.dev is not None and self.phase == (_FINAL, 0) and self.post == -1
        phase = (-1, 0) if of_the_release_itself else self.phase
        return self.release, phase, self.post, dev


@dataclass(frozen=True)
class VersionRange:
    """Specifiers joined by commas, all of which must hold."""

    text: str
    specifiers: tuple[tuple[str, Version], ...]

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Read ``>=0.5.11,<0.5.20``.

        Raises:
            ValueError: a part is not an operator (>= <= == != > <) followed by a version number.
        """
        specifiers = []
        for part in text.split(","):
            match = _SPECIFIER.fullmatch(part)
            if match is None:
                raise ValueError(f"{part.strip()!r} is not a version specifier: write >=, <=, ==, !=, > or < and a version number")
            specifiers.append((match[1], Version.parse(match[2])))
        return cls(text, tuple(specifiers))

    def __contains__(self, version: Version) -> bool:
        return all(_OPERATORS[name](version, bound) for name, bound in self.specifiers)

    def __str__(self) -> str:
        return self.text
