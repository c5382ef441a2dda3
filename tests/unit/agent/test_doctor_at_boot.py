"""What a diagnosis says of what applies a tuning profile at boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent import persistence
from orchestrator.agent.doctor_at_boot import check_at_boot
from orchestrator.agent.wire import Outcome
from orchestrator.agent.wire_host import Persistence
from tests.unit.agent.doctor_machine import Machine

UNIT = "orchestrator-prep.service"
ANEW = "fab prep --unpersist && fab prep --persist --profile fast"


def test_nothing_is_said_where_nothing_is_applied(tmp_path: Path) -> None:
    assert check_at_boot(Machine(tmp_path).host()) == []


@pytest.mark.parametrize(
    ("found", "outcome", "said", "step"),
    [
        (Persistence("fast", UNIT, True, "active"), Outcome.PASS, "at this boot", None),
        (Persistence("fast", UNIT, True, "inactive"), Outcome.PASS, "at the next boot", None),
        (Persistence("fast", UNIT, True, "failed", said=["numa is 1"]), Outcome.WARN, "FAILED at this boot", "fab prep"),
        (Persistence("fast", UNIT, False, "active"), Outcome.WARN, "it is not enabled", ANEW),
        (Persistence("fast", UNIT, True, "failed", problem="it was changed by hand"), Outcome.WARN, "by hand", ANEW),
    ],
)
def test_what_it_did_and_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Persistence, outcome: str, said: str, step: str | None
) -> None:
    monkeypatch.setattr(persistence, "describe", lambda *_: found)
    (verdict,) = check_at_boot(Machine(tmp_path).host())
    assert (verdict.check, verdict.outcome, verdict.next_step, verdict.evidence) == ("at_boot", outcome, step, found.said)
    assert said in verdict.detail
    assert check_at_boot(Machine(tmp_path).context()) == []
