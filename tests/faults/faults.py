"""A kind of fault: what the old server is, what the new one is started with, and what is done to the box meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent.wire import State
from tests.faults.cases import Case
from tests.faults.ending import Ending, judge
from tests.faults.lane import Lane

SECTION = "kinds of fault"

During = Callable[[Lane, str], None]
"""Takes the order's id."""
After = Callable[[Lane, str], Sequence[str]]
"""What is wrong, and the box as it was; once the order has ended, before it is judged."""


def nothing(_lane: Lane, _order_id: str) -> None:
    """No more is done."""


def all_well(_lane: Lane, _order_id: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Fault:
    """One row of the table. `settings` are the stand-in's, for the new server; `old_settings` for the old one.

    `launch` are fields of the new launch, `order` of the order. `before` is done while the old one serves.
    """

    name: str
    how: str
    states: Sequence[str] = (State.RESTORED,)
    categories: Sequence[str] = ()
    exit_code: int | None = None
    old: str = "own_unit"
    old_settings: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    launch: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    order: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[Lane], None] = lambda _lane: None
    during: During = nothing
    after: After = all_well

    def case(self, section: str = "", *, lane: str = "", real: bool = False) -> Case:
        return Case(section, self.name, self.run, self.states, self.categories, self.exit_code, self.how, lane, real)

    def run(self, lane: Lane) -> Ending:
        old = lane.serving(self.old, **self.old_settings)
        self.before(lane)
        settings = {f"SGLANG_STANDIN_{name.upper()}": value for name, value in self.settings.items()}
        launch = lane.launch("new", arguments=self.arguments, environment={**settings, **self.environment}, **self.launch)
        order_id = lane.submit(lane.order(old, launch, policy=self.policy, **self.order))
        self.during(lane, order_id)
        lane.wait_end(order_id)
        problems = self.after(lane, order_id)
        ending = judge(lane, order_id, old)
        ending.problems += problems
        return ending


def at(state: str, action: Callable[[Lane], None]) -> During:
    """Do something when the order comes into a state."""

    def during(lane: Lane, order_id: str) -> None:
        lane.wait_state(order_id, state, *State.FINAL)
        action(lane)

    return during


def at_member(state: str, part: str, *numbers: int) -> During:
    """Send signals to a process of the server, once there is one with `part` in its title."""

    def during(lane: Lane, order_id: str) -> None:
        lane.wait_state(order_id, state, *State.FINAL)
        pid = lane.wait_member(part)
        for number in numbers:
            lane.signal(pid, number)

    return during
