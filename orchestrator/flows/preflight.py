"""preflight: the first step of a relaunch by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.flows.observer import Observer
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.prep import Open, open_agent
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.target import Connect, Target, connect

if TYPE_CHECKING:
    from orchestrator.config import Backend


def preflight(
    target: Target,
    backends: Sequence[Backend],
    name: str,
    options: Options,
    observer: Observer,
    connect: Connect = connect,
    open: Open = open_agent,  # noqa: A002
) -> Outcome:
    """Check everything that a relaunch checks, the way it does, and stop there. Changes nothing.

    Args:
        name: how the profiles were named, for what to type next.

    Raises:
        RefusedError: something speaks against it.
        UnreachableError, LockedError: it could not be looked at.
    """
    outcome = relaunch(target, backends, dataclasses.replace(options, plan_only=True), observer, _nobody, connect, open)
    flags = [f"--backend {name}", *(["--force"] if options.force else []), *(["--accept-drift"] if options.accept_drift else [])]
    observer.note(f"nothing was changed, and nothing speaks against: {target.command('relaunch', *flags)}")
    return outcome


def _nobody(plan: Plan) -> bool:
    """A plan that is only shown is confirmed by nobody."""
    return False
