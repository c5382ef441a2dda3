"""What a table says of each of many services and hosts, verb by verb. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_words import at_work, gpu_held_by, held_by, locked_by
from orchestrator.cli.blocks import Tone
from orchestrator.cli.boot_text import comes_back_lines
from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.agent.wire_launches import BootReport
    from orchestrator.flows.doctor import Diagnosis
    from orchestrator.flows.plan import Plan
    from orchestrator.flows.status import BootTuning

_HEALTH_TONES: dict[str, Tone] = {"serving": "good", "starting": "warn", "no service": "quiet"}
_GRAVEST_FIRST = (Outcome.REFUSE, Outcome.WARN, Outcome.UNKNOWN)

_STANDINGS = {2: "misused", 3: "refused", 4: "not reached", 5: "held by somebody else", 130: "interrupted"}
"""What is counted of those that gave no answer, by the exit code of why."""


@dataclass(frozen=True)
class Row:
    """One of many in a table: its cells, one word to count it by, and what is to be known of it before all else."""

    standing: str
    cells: Sequence[str] = ()
    tone: Tone = ""
    note: str = ""


def error_row(error: OrchestratorError, label: str) -> Row:
    """Of one that gave no answer."""
    tone: Tone = "warn" if error.exit_code == 130 else "bad"
    return Row(_STANDINGS.get(error.exit_code, "failed"), (), tone, error.message.removeprefix(f"{label}: "))


STATUS_COLUMNS = ("SGLang", "backend", "gpus", "order")


def status_row(report: wire.SurveyReport | None, boot: BootTuning) -> Row:
    """What runs and how it is; of a host without a service what tunes it at boot."""
    found = boot.persistence
    tuned = found is not None and (found.state == "failed" or found.problem is not None)
    at_boot = f"at boot: {found.problem or f'{found.unit} has failed'}" if found is not None and tuned else ""
    if report is None:
        return Row("no service", ["-", "-", "-", "-"], "bad" if tuned else "quiet", at_boot)
    backend = report.server.backend if report.server is not None else None
    cells = [report.sglang_version or "-", backend or "-", str(len(report.gpus) or "-"), _order(report.order)]
    return Row(report.health, cells, _HEALTH_TONES.get(report.health, "bad"), _status_note(report) or at_boot)


def _status_note(report: wire.SurveyReport) -> str:
    if report.lock is not None:
        return f"locked {held_by(report.lock)}"
    if report.order is not None and report.order.half_done:
        return f"{report.order.kind} {report.order.order_id} is half-done, and nobody works on it"
    return first_of(report.verdicts, (Outcome.REFUSE,))


def _order(order: wire.OrderStatus | None) -> str:
    return "-" if order is None else f"{order.kind} {order.state}" + (", at work" if order.live else "")


def first_of(verdicts: Sequence[Verdict], outcomes: Sequence[str] = _GRAVEST_FIRST) -> str:
    """The first of the gravest verdicts, in a few words; empty where there is none."""
    found = (verdict for outcome in outcomes for verdict in verdicts if verdict.outcome == outcome)
    return next((f"{verdict.check}: {verdict.detail}" for verdict in found), "")


DOCTOR_COLUMNS = ("refuse", "warn", "unknown", "pass")


def doctor_row(found: Diagnosis) -> Row:
    """How many checks came to what."""
    verdicts = [verdict for section in found.sections for verdict in section.verdicts]
    counts = Counter(verdict.outcome for verdict in verdicts)
    cells = [str(counts[outcome] or "-") for outcome in (*_GRAVEST_FIRST, Outcome.PASS)]
    standing = "not reached" if found.unreached else "would be refused" if found.refused else "in order"
    tone: Tone = "bad" if found.exit_code else "warn" if counts[Outcome.WARN] or counts[Outcome.UNKNOWN] else "good"
    return Row(standing, cells, tone, first_of(verdicts))


PREFLIGHT_COLUMNS = ("SGLang", "differences", "warnings")


def preflight_row(plan: Plan) -> Row:
    """A service that nothing speaks against."""
    warnings = [verdict for verdict in plan.verdicts if verdict.outcome in (Outcome.WARN, Outcome.UNKNOWN)]
    cells = [plan.sglang_version or "-", str(len(plan.differences)), str(len(warnings) or "-")]
    return Row("could go", cells, "warn" if warnings else "good", first_of(warnings))


BOOT_COLUMNS = ("comes back",)


def boot_row(report: BootReport) -> Row:
    """What starts the server again."""
    first, *rest = comes_back_lines(report.unit)
    armed = report.unit is not None and report.unit.armed
    problem = report.unit.problem if report.unit is not None else None
    tone: Tone = "bad" if problem else "good" if armed and not report.verdicts else "warn"
    note = problem or first_of(report.verdicts) or (rest[0] if report.unit is not None and report.unit.restarts else "")
    return Row("comes back" if armed else "does not come back", [first], tone, note)


LOCK_COLUMNS = ("who",)


def lock_row(service: str, found: wire.LockStatus) -> Row:
    """Who keeps changes of the service away, the first of those that do."""
    order = found.order
    if found.person is not None:
        return Row("locked", [locked_by(service, found.person)], "warn")
    if order is not None and order.live:
        return Row("at work", [at_work(order)], "warn")
    if order is not None and order.half_done:
        return Row("half-done", [f"{order.kind} {order.order_id} reads {order.state}"], "bad")
    if found.gpus:
        return Row("GPUs held", [gpu_held_by(found.gpus[0])], "warn")
    if found.preparing is not None:
        return Row("being prepared", [f"the knobs of this machine are being changed {held_by(found.preparing)}"], "warn")
    return Row("free", ["-"], "good")
