"""Where the state machine of one node waits for those of the others, and for how long. Part of :mod:`relaunch`.

On one node none of it waits for anything.
"""

from typing import Callable

from orchestrator.agent import wire
from orchestrator.agent.clock import steady
from orchestrator.agent.history import STOPPING, History
from orchestrator.agent.ranks import MEETING_SECONDS, Point
from orchestrator.agent.walk import Walk
from orchestrator.agent.wire import Outcome, State, Verdict

_LOAD_SECONDS = 6 * 3600.0
"""Each node's own load has limits of its own, and ends with a failure that all hear of: this bounds what nobody has thought of."""
_LOOK_SECONDS = 5.0
"""Between two looks at one's own server while the others are waited for."""


class RankWaits:
    """The meetings of one order's walk."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def pulse(self) -> None:
        """Raise LaunchFailed when the operator wants it stopped safely, or another node has failed."""
        self._walk.pulse()
        self._walk.group.pulse()

    def regain(self, history: History) -> None:
        """Say again what a supervisor had said that was ended: the others may have been ended too, and know of nothing."""
        self._walk.group.reach(regained(history))

    def gather(self) -> None:
        """Wait until everybody has checked and locked: before that nothing is touched anywhere.

        Raises:
            LaunchFailed: one of them has refused, or is not there.
        """
        policy = self._walk.order.policy
        self._walk.group.meet(Point.LOCKED, MEETING_SECONDS + policy.measure_seconds + policy.verify, self._walk.pulse)

    def wait_for_stop_of_head(self) -> None:
        """Let rank 0 drain and stop first: it tells SGLang on the other nodes to end, where SIGTERM is only logged.

        Raises:
            LaunchFailed: it will not, or nobody knows whether it does.
        """
        policy = self._walk.order.policy
        self._walk.group.wait_for_head(Point.STOPPED, policy.drain + policy.grace + policy.clean + MEETING_SECONDS)

    def meet_clean(self) -> None:
        """Wait until nothing of the old server is left on any node.

        Raises:
            LaunchFailed: something is left, or somebody does not say.
        """
        policy = self._walk.order.policy
        seconds = policy.drain + 2 * policy.grace + 2 * policy.clean + 2 * MEETING_SECONDS
        self._walk.group.meet(Point.CLEAN, seconds, self._walk.pulse)

    def meet_ready(self, launch: wire.Launch) -> None:
        """Wait until every node's part is proven.

        Raises:
            LaunchFailed: one of them has failed, this one included.
        """
        self._walk.group.meet(Point.READY, _LOAD_SECONDS, self._watching(launch))

    def meet_verified(self, launch: wire.Launch) -> None:
        """Wait until rank 0 has shown that the whole answers as it should.

        Raises:
            LaunchFailed: it does not, or a node's part has ended meanwhile.
        """
        self._walk.group.meet(Point.VERIFIED, self._walk.order.policy.verify + MEETING_SECONDS, self._watching(launch))

    def conclude(self, launch: wire.Launch) -> None:
        """Wait until everybody is done, which is when rank 0 has timed it.

        Raises:
            LaunchFailed: one of them has failed after all.
        """
        policy = self._walk.order.policy
        doubt = self._walk.group.conclude(policy.measure_seconds + policy.verify + MEETING_SECONDS, self._watching(launch))
        if doubt:
            self._walk.verdicts.append(Verdict("ranks", Outcome.WARN, doubt, next_step="fab status"))

    def meet_back_clean(self) -> None:
        """Wait until nothing of what failed is left on any node.

        Raises:
            LaunchFailed: one of them has given up.
        """
        policy = self._walk.order.policy
        self._walk.group.meet(Point.BACK_CLEAN, policy.drain + 4 * policy.clean + 2 * MEETING_SECONDS, _nothing)

    def meet_back_ready(self) -> None:
        """Wait until every node's part of the previous server is proven again.

        Raises:
            LaunchFailed: one of them has given up.
        """
        self._walk.group.meet(Point.BACK_READY, _LOAD_SECONDS, _nothing)

    def _watching(self, launch: wire.Launch) -> Callable[[], None]:
        """A pulse that also sees this node's own part end; rank 0 has seen it by what it asks the whole."""
        looked = [steady.now()]

        def pulse() -> None:
            self._walk.pulse()
            if self._walk.group.rank and steady.now() - looked[0] > _LOOK_SECONDS:
                self._walk.steps.still_serves(launch, lambda *_: None)
                looked[0] = steady.now()

        return pulse


def _nothing() -> None:
    """Nobody may stop the way back."""


def regained(history: History) -> Point:
    """What an order that was cut off after it had touched something is sure to have reached."""
    if history.rolling_back:
        return Point.NOTHING if history.starting is None else Point.BACK_CLEAN
    if history.state in STOPPING:
        return Point.LOCKED
    if history.state == State.CLEAN:
        return Point.STOPPED
    return Point.VERIFIED if history.state in (State.VERIFIED, State.MEASURED) else Point.CLEAN
