"""Following an order through lost connections."""

from __future__ import annotations

import pytest

from orchestrator.agent import wire
from orchestrator.errors import AgentError, ConnectError, ConnectionLostError, HostKeyError, OrchestratorError
from orchestrator.flows.follow import Follower
from orchestrator.flows.target import Target
from tests.unit.flows.fake_agent import FakeBox, Heard, Step, progress, state
from tests.unit.flows.samples import done, healthy_agent, relaunch_script

ORDER = wire.Order("ORDER", wire.OrderKind.RELAUNCH, "glm5", "/var/lib/orchestrator", 30000, wire.Policy(), "me@here")


class Followed:
    """One call of follow: what it heard, how it slept, what it asked."""

    def __init__(self, target: Target, scripts: list[list[Step]], refusals: list[OrchestratorError] | None = None) -> None:
        self.agent = healthy_agent(follow=scripts)
        self.heard = Heard()
        self.slept: list[float] = []
        self.now = 0.0
        self.box = FakeBox(self.agent, refusals=refusals or [], connections=1)
        self._target = target

    def run(self, patience: float = 60.0) -> wire.OrderResult:
        follower = Follower(self.agent, self._target, ORDER, self.heard, self.box.connect, clock=lambda: self.now)
        return follower.to_end(patience, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += 20.0

    @property
    def after(self) -> list[int]:
        return [request.after for request in self.agent.requests("follow")]


def test_a_lost_connection_is_made_again_and_no_state_is_told_twice(target: Target) -> None:
    first: list[Step] = [state(1, "CHECKED"), state(2, "LOCKED"), ConnectionLostError("the network went away")]
    followed = Followed(target, [first, relaunch_script(done())], [ConnectError("no route")])
    assert followed.run() == done()
    assert followed.heard.states == ["CHECKED", "LOCKED", "DONE"]
    assert followed.after == [0, 2]
    assert ["the network went away" in followed.heard.warnings[0], "no route" in followed.heard.warnings[1]] == [True, True]
    assert followed.slept == sorted(followed.slept)
    assert len(followed.slept) == 2


def test_hearing_something_starts_the_patience_anew(target: Target) -> None:
    lossy: list[list[Step]] = [[progress("LOADING", f"step {n}"), ConnectionLostError("gone")] for n in range(30)]
    followed = Followed(target, [*lossy, relaunch_script(done())])
    assert followed.run(patience=30.0) == done()
    assert len(followed.heard.phases) == 31


def test_hearing_nothing_for_too_long_ends_it(target: Target) -> None:
    followed = Followed(target, [[ConnectionLostError("gone")]])
    with pytest.raises(ConnectionLostError):
        followed.run(patience=30.0)
    assert len(followed.slept) == 2


def test_a_box_that_stays_away_ends_with_what_goes_on_there(target: Target) -> None:
    followed = Followed(target, [[state(1, "CHECKED"), ConnectionLostError("gone", evidence=["read: 0 bytes"])]])
    with pytest.raises(ConnectionLostError) as lost:
        followed.run(patience=-1.0)
    assert lost.value.message == "lost sight of the relaunch ORDER; it goes on in gpu1/101"
    assert lost.value.evidence == ["gone", "read: 0 bytes"]
    assert lost.value.next_step == "fab attach --host gpu1 --service glm5 --order ORDER"
    assert lost.value.exit_code == 4


def test_an_agent_that_was_killed_is_asked_again(target: Target) -> None:
    followed = Followed(target, [[AgentError("killed")], relaunch_script(done())])
    assert followed.run() == done()


def test_a_changed_host_key_is_no_reason_to_try_again(target: Target) -> None:
    followed = Followed(target, [[ConnectionLostError("gone")]], [HostKeyError("the key has CHANGED")])
    with pytest.raises(ConnectionLostError) as lost:
        followed.run()
    assert lost.value.evidence == ["the key has CHANGED"]
    assert len(followed.slept) == 1


def test_an_end_without_a_result_is_not_taken_for_one(target: Target) -> None:
    followed = Followed(target, [[state(1, "CHECKED")]])
    with pytest.raises(ConnectionLostError) as lost:
        followed.run(patience=-1.0)
    assert "without a result" in lost.value.evidence[0]


def test_an_event_that_does_not_fit_is_the_agents_mistake(target: Target) -> None:
    followed = Followed(target, [[wire.Event(wire.EventKind.STATE, {"sequence": "one"})]])
    with pytest.raises(ConnectionLostError) as lost:
        followed.run(patience=-1.0)
    assert "can't be understood" in lost.value.evidence[0]
