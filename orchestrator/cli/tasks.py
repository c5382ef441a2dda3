"""The collection of verbs, for our own program and for ``fab`` by way of the fabfile. Imports nothing heavy."""

from __future__ import annotations

from invoke.collection import Collection

from orchestrator.cli import (
    adopt,
    attach,
    boot,
    budget,
    change,
    compare,
    completion,
    docs,
    history,
    init,
    inventory,
    lab,
    lock,
    measure,
    preflight,
    prep,
    profile,
    reading,
    report,
    roll,
    rollback,
    runbook,
    sweep,
)

namespace = Collection(
    init.init,
    change.relaunch,
    change.launch,
    change.teardown,
    attach.attach,
    attach.resume,
    preflight.preflight,
    prep.prep,
    reading.status,
    reading.logs,
    reading.doctor,
    measure.measure,
    budget.budget,
    profile.profile,
    compare.compare,
    history.history,
    history.show,
    report.report,
    report.export,
    sweep.sweep,
    inventory.hosts,
    inventory.services,
    inventory.backends,
    inventory.tunings,
    inventory.trust,
    rollback.rollback,
    roll.roll,
    adopt.adopt,
    boot.boot,
    docs.docs,
    completion.completion,
)
namespace.add_collection(Collection("lab", lab.up, lab.down, lab.status))
namespace.add_collection(Collection("lock", lock.acquire, lock.status, lock.release))
_runbook = Collection("runbook", runbook.list, runbook.run)
_runbook.add_task(runbook.show, default=True)
namespace.add_collection(_runbook)
