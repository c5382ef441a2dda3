"""What crosses for every verb: the request, the events, a failure, and the two kinds of answer that all checks give.

Apart from the rest (:mod:`wire`), because each call of the agent makes the types that it loads anew. Annotations are read at run time by
Python 3.9, so they use typing's spelling.
"""

from typing import Any, Dict, List, Optional

from orchestrator.agent.codec import WireError, field, from_json, record, to_json

__all__ = ["PROTOCOL", "WireError", "from_json", "to_json"]  # the types are all the other names here

PROTOCOL = 1
"""Raised whenever a type here changes its meaning; both ends refuse another number."""


@record(frozen=True)
class Request:
    """One phase's question to the agent. `verb` names an entry of the agent's dispatch table (main.py)."""

    verb: str
    body: Dict[str, Any]
    protocol: int = PROTOCOL


class EventKind:
    """The values of :attr:`Event.kind`."""

    STATE = "state"
    """data is a :class:`StateEntry`: one line of the journal."""
    PROGRESS = "progress"
    """data is a :class:`Progress`."""
    LOG = "log"
    """data is ``{"text": str}``: server log lines, secrets scrubbed."""
    COLLECTED = "collected"
    """data is a :class:`Collected`: what an order left, just before the result of following it."""
    MODULES = "modules"
    """The agent misses a module: what was not sent with the request is wanted now. data is empty; whoever asks never sees it."""
    FILE = "file"
    """data is a :class:`wire_budget.FilePiece`: a part of a file that belongs to the result."""
    RESULT = "result"
    """data is the verb's answer (see the table in main.py). Always the last event."""
    ERROR = "error"
    """data is a :class:`AgentFailure`. Always the last event."""


@record(frozen=True)
class Event:
    """One framed line from the agent."""

    kind: str
    data: Dict[str, Any]


@record(frozen=True)
class AgentFailure:
    """Why the agent could not answer.

    `category` is one of: ``python`` (too old or lacks a package), ``kernel``, ``rights``, ``disk_full``, ``request``
    (does not fit the protocol), ``refused`` (the agent will not do it, see message), ``locked``, ``interrupted`` (an order that was
    cut off comes first), ``traceback``.
    """

    category: str
    message: str
    evidence: List[str] = field(default_factory=list)
    next_step: Optional[str] = None


@record(frozen=True)
class PingRequest:
    """Who and where are you? Nothing to say with it."""


@record(frozen=True)
class PlaceFacts:
    """The answer to a ping. `container` is its kind (``lxc``), None on a bare host or where nobody says."""

    python: str
    kernel: str
    host_name: str
    user_id: int
    container: Optional[str] = None


class Outcome:
    """The values of :attr:`Verdict.outcome`."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    REFUSE = "refuse"
    UNKNOWN = "unknown"


@record(frozen=True)
class Verdict:
    """The answer of one check: what was asked, what came out, what was seen, what to type next, and where it was read."""

    check: str
    outcome: str
    detail: str
    evidence: List[str] = field(default_factory=list)
    next_step: Optional[str] = None
    source: str = ""
    """A path or a command, with the place where that is not the obvious one."""


@record(frozen=True)
class Fact:
    """One thing that is true of a place, with how it is known (a path or a command)."""

    name: str
    value: Any
    source: str
