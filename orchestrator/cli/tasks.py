"""The collection of verbs, for our own program and for ``fab`` by way of the fabfile. Imports nothing heavy."""

from __future__ import annotations

from invoke.collection import Collection

from orchestrator.cli import change, inventory, lab, reading

namespace = Collection(
    change.relaunch,
    change.launch,
    change.teardown,
    reading.status,
    reading.logs,
    reading.doctor,
    inventory.hosts,
    inventory.services,
    inventory.backends,
    inventory.trust,
)
namespace.add_collection(Collection("lab", lab.up, lab.down, lab.status))
