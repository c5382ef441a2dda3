"""What a server takes that waits at its gate, as measured of earlier ones of the same service."""

import json
from dataclasses import dataclass, field
from typing import Dict, Optional, Sequence, Tuple

from orchestrator.agent import host_memory, wire
from orchestrator.agent.arguments import read_textually
from orchestrator.agent.private_files import write_private
from orchestrator.agent.requirements import parallel_size
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.steps import Staged

_FILE = "footprint.json"


@dataclass(frozen=True)
class Footprint:
    """Of one launch, at its gate: `gpus` MiB by UUID, `resident` bytes of all its processes, `seconds` until it was there, by phase too."""

    ranks: int
    resident: int
    seconds: float
    gpus: Dict[str, int] = field(default_factory=dict)
    phases: Dict[str, float] = field(default_factory=dict)

    def of(self, uuid: str) -> Optional[int]:
        """MiB that a rank takes of a GPU; of one that it did not run on the most that it took of any. None where nobody knows."""
        return self.gpus.get(uuid, max(self.gpus.values(), default=None))


def keep_footprint(folder: StateFolder, launch_id: str, staged: Staged, pids: Sequence[int]) -> None:
    """Keep what a launch takes at its gate. `pids` are its processes, whose memory is read now.

    Raises:
        OSError: there is no room for it.
    """
    ranks = parallel_size(read_textually(staged.launch.arguments).values)
    kept = Footprint(ranks, host_memory.resident(pids), round(staged.seconds, 2), dict(staged.footprint), dict(staged.phases))
    write_private(folder.launch_folder(launch_id) / _FILE, json.dumps(wire.to_json(kept)))


def read_footprint(folder: StateFolder, launch_id: str) -> Optional[Footprint]:
    """What was kept of a launch."""
    return read_record(Footprint, folder.launch_folder(launch_id) / _FILE)


def newest_footprint(folder: StateFolder, ranks: int) -> Optional[Tuple[str, Footprint]]:
    """The newest one of the service with as many ranks, and whose it is."""
    for launch_id in reversed(folder.launch_ids()):
        found = read_footprint(folder, launch_id)
        if found is not None and found.ranks == ranks:
            return launch_id, found
    return None
