"""Which answers each verb gives. Imports the types of all of them: for the schema and for tests, not for a verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.documents import (
    changes,
    comparing,
    diagnosis,
    hosts,
    inventory,
    lab,
    new_inventory,
    reading,
    reference,
    rolls,
    runbooks,
    runs,
    shells,
    sweeps,
    timing,
)

ANSWERS: Mapping[str, tuple[type[Any], ...]] = {
    "relaunch": (changes.Change,),
    "launch": (changes.Change,),
    "teardown": (changes.Change,),
    "rollback": (changes.Change, changes.Launches),
    "attach": (changes.Watched,),
    "resume": (changes.Watched,),
    "preflight": (changes.Change,),
    "adopt": (changes.Adopted,),
    "boot": (changes.Boot,),
    "lock.acquire": (changes.Lock,),
    "lock.status": (changes.Lock,),
    "lock.release": (changes.Lock,),
    "prep": (hosts.Prepared,),
    "status": (reading.Status,),
    "logs": (reading.Log,),
    "doctor": (diagnosis.Doctor,),
    "measure": (timing.Measured,),
    "budget": (timing.Budgeted,),
    "profile": (timing.Profiled,),
    "compare": (comparing.Compared,),
    "sweep": (sweeps.Swept, sweeps.SweepPlanned),
    "history": (runs.History,),
    "show": (runs.Shown,),
    "report": (runs.ReportWritten,),
    "export": (runs.Exported,),
    "roll": (rolls.Rolled, rolls.RollPlanned, rolls.Repaired),
    "init": (new_inventory.NewInventory,),
    "hosts": (inventory.Hosts,),
    "services": (inventory.Services,),
    "backends": (inventory.Backends,),
    "tunings": (inventory.Tunings,),
    "trust": (inventory.Trusted,),
    "docs": (reference.Topics,),
    "completion": (shells.Completion,),
    "lab.up": (lab.Lab,),
    "lab.down": (lab.Lab,),
    "lab.status": (lab.Lab,),
    "runbook.list": (runbooks.RunbookList,),
    "runbook.show": (runbooks.RunbookShown,),
    "runbook.run": (runbooks.RunbookWalked, runbooks.RunbookPlanned),
}
"""Every verb that takes ``--json``, by its whole name, with the types of its answer."""

WITHOUT: Mapping[str, str] = {}
"""Verbs that take no ``--json``, each with the reason."""
