"""An order that starts a launch of the box's own records again: it names the record, whose secrets never leave the box."""

import dataclasses
from typing import Optional

from orchestrator.agent import wire
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder


def copy_of(folder: StateFolder, launch_id: str, new_id: str) -> Optional[wire.Launch]:
    """The recorded launch under a new id, without the gate that it was started with; None where there is no record."""
    record = folder.read_launch(launch_id)
    return None if record is None else dataclasses.replace(record, launch_id=new_id, gate_port=None)


def filled(order: wire.Order) -> wire.Order:
    """The order with the launch that it names; unchanged where it names none, or one without a record."""
    if order.copy_of is None:
        return order
    folder = StateFolder(order.state_root, order.service)
    started = copy_of(folder, order.order_id, order.order_id)  # by this order's supervisor, before that was ended
    return dataclasses.replace(order, new=started or copy_of(folder, order.copy_of, order.order_id))


def require(order: wire.Order) -> None:
    """Raise AgentRefusal when the order names a launch that has no record here."""
    if order.copy_of is not None and filled(order).new is None:
        what = f"there is no record of a launch {order.copy_of} of {order.service} on this box"
        raise AgentRefusal("refused", what, next_step="fab rollback --list")
