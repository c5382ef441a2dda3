"""A service and the tuning of the machine that it runs on, asked at once: starting a program twice costs more than either answer."""

from typing import Any, Callable

from orchestrator.agent import wire_status
from orchestrator.agent.asking import Asking
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.main import describe
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.survey import survey
from orchestrator.agent.tuning import tune

TUNING_SECONDS = 2.0
"""How much longer than for the service its machine is waited for: a systemd that hangs must not keep the service's state back."""


def status(request: wire_status.StatusRequest, emit: Callable[[str, Any], None]) -> wire_status.StatusReport:
    """Look, change nothing.

    Raises:
        AgentRefusal: ``request``: the tuning would be changed. What is wrong with the service's place raises as :func:`survey.survey`.
    """
    if request.tuning.write:
        raise AgentRefusal("request", "a status writes nothing, and its request would")
    tuning = Asking(lambda: tune(request.tuning, emit))
    found = survey(request.survey, emit)
    if not wait_until(lambda: tuning.done, Deadline(TUNING_SECONDS), 0.01):
        return wire_status.StatusReport(found, problem=f"no answer within {TUNING_SECONDS:g} s")
    try:
        return wire_status.StatusReport(found, tuning.result())
    except Exception as error:  # noqa: BLE001 - the service's state is told whatever its machine says
        return wire_status.StatusReport(found, problem=describe(error).message)
