"""lab.up, lab.down, lab.status: two hosts to play with, on this machine, without root or a GPU."""

from __future__ import annotations

from orchestrator.cli.edge import Call, verb


@verb(title="lab.up")
def up(call: Call, json: bool = False) -> None:
    """Start the lab."""
    raise NotImplementedError


@verb(title="lab.down")
def down(call: Call, json: bool = False) -> None:
    """Stop the lab."""
    raise NotImplementedError


@verb(title="lab.status")
def status(call: Call, json: bool = False) -> None:
    """Show whether the lab runs."""
    raise NotImplementedError
