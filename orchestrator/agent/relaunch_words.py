"""The words of the state machine: what it tells of a server, of verdicts and of errors. Pure."""

import errno
import time
from typing import Dict, List, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.command_lines import command_of
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.phases import BEYOND_GATE, FACT_PREFIX, Phase
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.steps import LaunchFailed, Stopped
from orchestrator.agent.wire import Outcome, State
from orchestrator.agent.wire_words import managed

WHAT_ENDED_IT = "dmesg and the journal may say what ends it"


def argv(launch: wire.Launch) -> List[str]:
    """The argument vector of a launch without what its secrets add."""
    return command_of(launch)


def stopping(policy: wire.Policy) -> str:
    """What is done to a server that is stopped, and what its requests get."""
    return f"SIGTERM to the main process; running requests go on for up to {policy.drain:g} s"


def describe(server: Optional[wire.ServerInfo]) -> str:
    if server is None:
        return "no server is running"
    return f"process {server.main.pid} on port {server.port}, {managed(server.manager)}"


def dark_seconds(stopped: Stopped, first_answer: float, boot: str) -> Optional[float]:
    """From the old server's last good answer to `first_answer` (monotonic), by the wall clock where the machine was restarted between."""
    if stopped.last_answer is None:
        return None
    if stopped.boot in (None, boot):
        return max(0.0, first_answer - stopped.last_answer)
    if stopped.answered_at is None:
        return None
    return max(0.0, time.time() - (time.monotonic() - first_answer) - stopped.answered_at)


def dark_phases(facts: Sequence[wire.Fact], *, staged: bool) -> Dict[str, float]:
    """The phases of a load in which nothing answered, seconds each; of a staged one those after its gate."""
    loaded = {fact.name[len(FACT_PREFIX) :]: float(fact.value) for fact in facts if fact.name.startswith(FACT_PREFIX)}
    lit = {Phase.GATE, Phase.READY}
    return {name: seconds for name, seconds in loaded.items() if name not in lit and (not staged or name in BEYOND_GATE)}


def verified(verdicts: List[wire.Verdict]) -> str:
    unproven = [verdict.check for verdict in verdicts if verdict.outcome != Outcome.PASS]
    if not unproven:
        return "it serves, and says what the old one said"
    return f"it serves; not shown to be as before: {', '.join(unproven)}"


def failure_of(error: Exception) -> wire.Failure:
    """Why a launch failed, whatever was raised."""
    return error.failure if isinstance(error, LaunchFailed) else unexpected(error)


def unexpected(error: Exception) -> wire.Failure:
    if isinstance(error, AgentRefusal):
        told = error.failure
        return wire.Failure(told.category, told.message, told.evidence, told.next_step or "")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename or "a file of the state folder"
        return wire.Failure(Category.DISK_FULL, f"{where}: {error.strerror}", advice="make room (df -h, df -i), then launch again")
    return wire.Failure(
        Category.UNEXPECTED,
        f"an unexpected error: {error!r}",
        advice="this is a fault of the orchestrator: keep the run folder",
    )


def next_step(state: str, failed_launch: Optional[str], *, restorable: bool) -> Optional[str]:
    """What to type after an order that ended in `state`. `restorable`: there was a server to go back to."""
    logs = f"fab logs --launch {failed_launch}" if failed_launch is not None else "fab logs"
    if state == State.DOWN and failed_launch is not None and not restorable:
        return f"{logs}   # mend the cause first: the same launch would fail the same way"
    return {
        State.RESTORED: f"{logs}   # the log of the launch that failed" if failed_launch is not None else "fab status",
        State.DOWN: f"fab status, then {logs}; fab launch starts the service again",
        State.REFUSED: f"{logs}   # the log of the launch that failed" if failed_launch is not None else "fab status",
    }.get(state)
