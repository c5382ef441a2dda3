"""What the value of each flag could be.

Every flag that takes one stands in a table here, also those of whose values nothing is known (:data:`FREE`): a test looks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.cli.completion import SHELLS
from orchestrator.cli.names import Names


class Files(enum.Enum):
    """What of the disk may stand there where no candidate fits. The values are words that the shells' scripts know."""

    NONE = "none"
    FILES = "files"
    FOLDERS = "folders"


@dataclass(frozen=True)
class Candidate:
    """A whole word that could stand there, and what it is."""

    value: str
    help: str = ""


@dataclass(frozen=True)
class Answer:
    """The candidates in a sensible order, and what else may stand there."""

    candidates: Sequence[Candidate] = ()
    files: Files = Files.NONE


@dataclass(frozen=True)
class Flag:
    """A flag of a verb, or of the program. `spellings` is how it may be written; `optional`: it may come without its value."""

    name: str
    spellings: tuple[str, ...]
    help: str = ""
    takes_value: bool = False
    optional: bool = False
    several: bool = False
    positional: bool = False


@dataclass(frozen=True)
class Verb:
    """A verb by its whole name.

    `gathers` names the flag that words without one are for; `gathers_verbs`: also words that are verbs' names, so that no verb can follow.
    """

    name: str
    flags: tuple[Flag, ...] = ()
    gathers: str | None = None
    gathers_verbs: bool = False


@dataclass(frozen=True)
class Asked:
    """A value that is being typed. `given` are the flags before it, by name; `verbs` all verbs, each with a word on it."""

    verb: Verb | None
    flag: Flag
    partial: str
    given: Mapping[str, str]
    verbs: Mapping[str, str]


Source = Callable[[Asked, Names], Iterable[Candidate]]


def values(asked: Asked, names: Names) -> Answer:
    """What could stand there; candidates that do not fit what is typed so far may be among them."""
    verb = asked.verb.name if asked.verb is not None else ""
    source = _BY_VERB.get((verb, asked.flag.name)) or _BY_FLAG.get(asked.flag.name)
    files = _ON_DISK.get(asked.flag.name, Files.NONE)
    return Answer(list(source(asked, names)) if source is not None else [], files)


def is_known(verb: str, flag: str) -> bool:
    """Whether anything is said here on the values of a verb's flag."""
    return (verb, flag) in _BY_VERB or flag in _BY_FLAG or flag in _ON_DISK or flag in FREE


def _described(found: Mapping[str, str]) -> list[Candidate]:
    return [Candidate(name, text) for name, text in found.items()]


def _hosts(asked: Asked, names: Names) -> Iterable[Candidate]:
    only = names.services.get(asked.given.get("service", ""))
    return [item for item in _described(names.hosts) if only in (None, item.value)]


def _places(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described({**names.hosts, **names.containers})


def _several(asked: Asked, names: Names) -> Iterable[Candidate]:
    """Hosts, and what means several; where a service is named already, its host."""
    if "service" in asked.given:
        return _hosts(asked, names)
    groups = [Candidate(name, f"the hosts {', '.join(hosts)}") for name, hosts in names.groups.items()]
    everything = [] if "," in asked.partial else [Candidate("all", "every host of the inventory")]
    return [*_described(names.hosts), *groups, *everything]


def _fleet(asked: Asked, names: Names) -> Iterable[Candidate]:
    return [*_several(asked, names), *([] if "service" in asked.given else _described(names.containers))]


def _services(asked: Asked, names: Names) -> Iterable[Candidate]:
    host = asked.given.get("host")
    hosts = None if host is None else names.hosts_of(host)
    return [Candidate(name, f"on {where}") for name, where in names.services.items() if hosts is None or where in hosts]


def _backends(asked: Asked, names: Names) -> Iterable[Candidate]:
    """A backend, or after a ``+`` the overlays that it does not have yet."""
    begun = asked.partial.rpartition(",")[2]
    before, plus, _ = begun.rpartition("+")
    named = before.split("+")
    return [
        Candidate(f"{before}{plus}{name}", backend.summary)
        for name, backend in names.backends.items()
        if backend.overlay == bool(plus) and name not in named
    ]


def _tunings(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.tunings)


def _sweeps(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.sweeps)


def _routers(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.routers)


def _runbooks(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.runbooks)


def _runs(verb: str | None = None) -> Source:
    return lambda _asked, names: [Candidate(name) for name in names.runs(verb)]


def _any_run(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return [Candidate("last", "the newest"), *(Candidate(name) for name in names.runs())]


def _steps(asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.steps(asked.given.get("name", "")))


def _inputs(asked: Asked, names: Names) -> Iterable[Candidate]:
    """``INPUT=`` of a runbook, and its value where the input is called like a flag with known ones."""
    name, equals, _ = asked.partial.partition("=")
    if not equals:
        return [Candidate(f"{name}=", text) for name, text in names.inputs(asked.given.get("name", "")).items()]
    source = _BY_FLAG.get(name)
    inner = Asked(asked.verb, asked.flag, asked.partial[len(name) + 1 :], asked.given, asked.verbs)
    return [Candidate(f"{name}={item.value}", item.help) for item in (source(inner, names) if source is not None else ())]


def _verbs(asked: Asked, _names: Names) -> Iterable[Candidate]:
    return _described(asked.verbs)


def _topics(_asked: Asked, names: Names) -> Iterable[Candidate]:
    return _described(names.topics)


def _first_tunings(_asked: Asked, names: Names) -> Iterable[Candidate]:
    """What a new host's profile can begin with: one that comes with the program, or one of the inventory."""
    return _described({**dict.fromkeys(names.shipped_tunings, "comes with the program"), **names.tunings})


def _words(*words: str) -> Source:
    return lambda _asked, _names: [Candidate(word) for word in words]


def _listed(source: Source) -> Source:
    """Several with commas: what stands before the last comma stays, and is not named again."""

    def listed(asked: Asked, names: Names) -> Iterable[Candidate]:
        before, comma, _ = asked.partial.rpartition(",")
        named = before.split(",")
        return [
            Candidate(f"{before}{comma}{item.value}", item.help) for item in source(asked, names) if not comma or item.value not in named
        ]

    return listed


_BY_FLAG: Mapping[str, Source] = {
    "host": _hosts,
    "hosts": _listed(_several),
    "service": _services,
    "backend": _backends,
    "backends": _listed(_backends),
    "profile": _tunings,
    "router": _routers,
    "file": _sweeps,
    "runs": _listed(_any_run),
    "run": _listed(_any_run),
    "first": _listed(_runs("measure")),
    "second": _listed(_runs("measure")),
    "measured": _runs("measure"),
    "from": _steps,
    "done": _listed(_steps),
    "verb": _verbs,
    "shell": _words(*SHELLS),
    "print-completion-script": _words(*SHELLS),
    "topics": _listed(_topics),
    "become": _words("sudo", "none"),
    "format": _words("sglang"),
}
_BY_VERB: Mapping[tuple[str, str], Source] = {
    **{(verb, "host"): _listed(_fleet) for verb in ("status", "doctor", "preflight", "boot", "lock.status", "prep", "hosts", "services")},
    ("history", "host"): _listed(_hosts),
    ("trust", "host"): _places,
    ("runbook.run", "name"): _runbooks,
    ("runbook.show", "name"): _runbooks,
    ("runbook.run", "set"): _inputs,
    ("runbook.show", "set"): _inputs,
    ("sweep", "resume"): _runs("sweep"),
    ("roll", "resume"): _runs("roll"),
    ("roll", "service"): _listed(_services),
    ("init", "service"): _words(),
    ("init", "tuning"): _first_tunings,
}
_ON_DISK: Mapping[str, Files] = {
    "inventory": Files.FOLDERS,
    "directory": Files.FOLDERS,
    "search-root": Files.FOLDERS,
    "file": Files.FILES,
    "identity": Files.FILES,
    "out": Files.FILES,
    "run": Files.FOLDERS,
    "runs": Files.FOLDERS,
    "first": Files.FOLDERS,
    "second": Files.FOLDERS,
    "measured": Files.FOLDERS,
}
FREE = frozenset(
    {
        *("batch", "best-at", "grace", "input", "launch", "limit", "lines", "message", "order", "output", "port", "reason", "repeats"),
        *("address", "container", "fingerprint", "forks", "model", "name", "python", "state-root"),
        *("rounds", "set", "sglang", "since", "steps", "temperature", "to", "wait", "collection", "list-depth", "list-format"),
    }
)
"""Flags whose values nobody but the one who types can know: numbers, reasons, and ids that only the box remembers."""
