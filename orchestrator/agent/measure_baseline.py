"""What the box has kept of earlier launches, to hold a timed server against: its KV cache's room and what it answered."""

import contextlib
import json
from dataclasses import replace
from typing import NamedTuple, Optional

from orchestrator.agent import wire
from orchestrator.agent.capacity import Known, changed_beyond_backend
from orchestrator.agent.correctness import Scores
from orchestrator.agent.known_launches import previous_launch, read_known
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import Server
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire_launches import KnownLaunch


class KeptScores(NamedTuple):
    """What a launch answered when it was verified, and which one that was."""

    scores: Scores
    whose: str


def keep_scores(folder: StateFolder, launch_id: str, scores: Optional[Scores]) -> bool:
    """Keep what a launch answered when it was proven; whether there was anything to keep, and room for it."""
    if scores is None or not scores.likelihoods:
        return False
    with contextlib.suppress(OSError):  # the launch is proven without them
        write_private(folder.scores(launch_id), json.dumps(wire.to_json(scores)))
        return True
    return False


def kept_capacity(folder: StateFolder, server: Server, record: Optional[wire.Launch]) -> Known:
    """The room that the launch verified before this one had; without tokens where nobody knows."""
    before = _previous(folder, server)
    if before is None or record is None:
        return Known(None, "")
    facts = folder.verified_facts(before.launch.launch_id)
    tokens = facts.get("capacity") if isinstance(facts, dict) else None
    changed = changed_beyond_backend(before.launch, record)
    return Known(tokens if isinstance(tokens, int) else None, f"launch {before.launch.launch_id}", changed)


def kept_scores(folder: StateFolder, server: Server, record: Optional[wire.Launch]) -> Optional[KeptScores]:
    """What the launch verified before this one answered, where only the backend differs; else what this one did when it was verified.

    A model or a quantization that somebody changed on purpose answers differently, and rightly so.
    """
    if record is None:
        return None
    before = _previous(folder, server)
    if before is not None and not changed_beyond_backend(before.launch, record):
        found = read_record(Scores, folder.scores(before.launch.launch_id))
        if found is not None:
            return KeptScores(found, f"launch {before.launch.launch_id}, which was verified before it")
    own = read_record(Scores, folder.scores(record.launch_id))
    return None if own is None else KeptScores(own, f"itself when it was {'verified' if server.launch_id is not None else 'adopted'}")


def comparable(kept: Scores, now: Scores) -> Scores:
    """What was kept, without the answers to expectations that are others now."""
    asked, was = ([answer.prompt for answer in scores.expected] for scores in (now, kept))
    return kept if asked == was else replace(kept, expected=[])


def _previous(folder: StateFolder, server: Server) -> Optional[KnownLaunch]:
    return previous_launch(read_known(folder, server))
