"""What follows an order's end, once: its notice to a webhook, and commands on the operator's side. Part of :mod:`wire`."""

from typing import List, Optional

from orchestrator.agent.codec import field, record


class Told:
    """The values of :attr:`Afterwards.notice`: which endings are told."""

    SUCCESS = "success"
    """The exit code is 0."""
    FAILURE = "failure"
    """It is not, whether the order was refused, the old server serves again, or nothing does."""


@record(frozen=True)
class Afterwards:
    """What is to follow the end of an order, as its plan said, and what a notice tells that the box can't know.

    `verb` is what the operator typed (a rollback is a relaunch to the box), `host` the inventory's name. `hooks`: commands on the
    operator's side are to follow. `notice` holds the endings that are told; none: there is no notice. `webhook` is where it goes, as a
    URL, which is a secret; None: the supervisor does not send it, and the operator's end does.
    """

    verb: str
    host: str
    old_backend: Optional[str] = None
    new_backend: Optional[str] = None
    hooks: bool = False
    notice: List[str] = field(default_factory=list)
    webhook: Optional[str] = None


class FateOutcome:
    """The values of :attr:`Fate.outcome`."""

    BEGUN = "begun"
    """Nobody has said yet how it went."""
    DONE = "done"
    FAILED = "failed"
    """It was tried and answered with a refusal, or its command failed."""
    UNREACHED = "unreached"
    """Nothing was handed over to anybody: it may be tried from elsewhere."""
    UNKNOWN = "unknown"
    """The message was handed over and no answer came: it may have arrived."""


SUPERVISOR = "the box itself"
"""The value of :attr:`Fate.by` where no operator's end did it."""


@record(frozen=True)
class Fate:
    """What became of a notice or a command after an order's end. `by` is ``user@host`` or :data:`SUPERVISOR`, `time` Unix time.

    `token` tells a question that is asked again, since its answer was lost, from somebody else's.
    """

    by: str
    outcome: str
    detail: str = ""
    time: float = 0.0
    attempts: int = 1
    token: str = ""


NOTICE = "notice"
"""The value of :attr:`ClaimRequest.what` for the notice; any other names a command."""


@record(frozen=True)
class ClaimRequest:
    """Ask to do what follows an order's end (`what`), which is done once, whoever watches; or, with a `fate`, tell how it went.

    `by` is ``user@host``; of two questions with one `token` the second is the first, asked again.
    """

    service: str
    state_root: str
    order_id: str
    what: str
    by: str
    token: str
    fate: Optional[Fate] = None


@record(frozen=True)
class ClaimReport:
    """Whether it is the asker's to do now; if not, `fate` says what became of it, None where it is not to be done at all.

    `afterwards` is without its secret; None: nothing follows that order. `text` is the notice's.
    """

    granted: bool
    fate: Optional[Fate] = None
    afterwards: Optional[Afterwards] = None
    operator: str = ""
    reason: str = ""
    text: str = ""


@record(frozen=True)
class ReachRequest:
    """Whether a connection can be made from the place, with `tls` a trusted one. Nothing is sent over it."""

    host: str
    port: int
    tls: bool


@record(frozen=True)
class ReachReport:
    """`problem` is None where it could be made."""

    problem: Optional[str] = None
