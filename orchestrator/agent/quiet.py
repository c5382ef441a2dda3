"""Waiting until a server has no request left, while it goes on serving: what sends it requests has been told to send no more."""

import time
from typing import Any, Callable, Optional

from orchestrator.agent import sglang, survey, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.http import Client, RefusedError
from orchestrator.agent.processes import find_server
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_router import QuietReport, QuietRequest

LOOKS = 3
"""Looks in a row without a request: SGLang's own /health runs one for a moment (0.5.23), and a request may be on its way."""
EVERY = 0.3
_ANSWER_SECONDS = 2.0
STATE = "QUIET"

Load = Callable[[], Optional[int]]
Told = Callable[[Optional[int], float], None]


def wait_quiet(load: Load, seconds: float, told: Told = lambda load, waited: None) -> QuietReport:
    """Wait until `load` is 0 at three looks in a row. A server that does not say is never quiet; one that has gone is.

    Args:
        load: running and queued requests, None when the server does not say; raises RefusedError once nobody listens.
        told: hears the load at each look, and how long it was waited.
    """
    began = time.monotonic()
    seen = _Seen()

    def is_quiet() -> bool:
        try:
            seen.load = load()
        except RefusedError:
            seen.load = 0
            return True
        told(seen.load, time.monotonic() - began)
        seen.quiet = seen.quiet + 1 if seen.load == 0 else 0
        return seen.quiet >= LOOKS

    quiet = wait_until(is_quiet, Deadline(seconds), EVERY)
    return QuietReport(quiet, seen.load, round(time.monotonic() - began, 2))


class _Seen:
    def __init__(self) -> None:
        self.load: Optional[int] = None
        self.quiet = 0


def quiet(request: QuietRequest, emit: Callable[[str, Any], None]) -> QuietReport:
    """Wait for the service's server.

    Raises:
        AgentRefusal: there is none, or it may not be looked at.
    """
    folder = StateFolder(request.state_root, request.service)
    server = find_server(request.port)
    if server is None:
        raise AgentRefusal("refused", f"nothing serves on port {request.port}", next_step="fab status")
    client = Client(request.port, survey.address_of(server), survey.api_key_of(server, folder))

    def told(load: Optional[int], waited: float) -> None:
        text = "it does not say how many requests it has" if load is None else f"{load} running or queued"
        emit(wire.EventKind.PROGRESS, wire.Progress(STATE, text, waited))

    return wait_quiet(lambda: sglang.running_and_queued(client, _ANSWER_SECONDS), request.seconds, told)
