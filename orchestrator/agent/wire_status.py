"""What crosses when a service and the machine that it runs on are asked at once (see :mod:`wire`, whose rules hold here too)."""

from typing import Optional

from orchestrator.agent.codec import record
from orchestrator.agent.wire import SurveyReport, SurveyRequest
from orchestrator.agent.wire_host import TuneReport, TuneRequest


class Health:
    """How a server is: values of :attr:`wire.SurveyReport.health`."""

    SERVING = "serving"
    STARTING = "starting"
    """Warming up, or draining after a SIGTERM: /health is 503 at once in both."""
    UNHEALTHY = "unhealthy"
    """HTTP answers, the scheduler does not."""
    SILENT = "silent"
    """Something accepts connections and never answers."""
    DOWN = "down"


@record(frozen=True)
class StatusRequest:
    """A survey of the service, and a look at the machine's tuning (a `tuning` that writes is refused): one program instead of two."""

    survey: SurveyRequest
    tuning: TuneRequest


@record(frozen=True)
class StatusReport:
    """The answers to both. `problem` says why nothing is known of the tuning."""

    survey: SurveyReport
    tuning: Optional[TuneReport] = None
    problem: Optional[str] = None
