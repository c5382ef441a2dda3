"""The answer of doctor."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.flows.doctor import Diagnosis


@dataclass(frozen=True)
class Doctor:
    """A diagnosis. `service` is null for a host without one."""

    host: str
    service: str | None
    report: Diagnosis
