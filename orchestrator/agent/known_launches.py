"""Which launches of a service a box remembers, which of them serves, and which one a rollback would start."""

import dataclasses
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.processes import Server, find_server
from orchestrator.agent.scrub import MASK, Scrubber, launch_scrubber, mask_arguments
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.survey import describe
from orchestrator.agent.wire_launches import Adopted, KnownLaunch, LaunchesReport, LaunchesRequest


def launches(request: LaunchesRequest, emit: Callable[[str, Any], None]) -> LaunchesReport:
    """Look at what is remembered. Secret values are masked.

    Raises:
        AgentRefusal: what is on the port may not be looked at.
    """
    folder = StateFolder(request.state_root, request.service)
    server = find_server(request.port)
    known = read_known(folder, server)
    serving = next((item.launch for item in known if item.serves), None)
    previous = previous_launch(known)
    return LaunchesReport(
        launches=[dataclasses.replace(item, launch=shown(item.launch, launch_scrubber([item.launch]))) for item in known],
        server=None if server is None else describe(server, folder),
        previous=None if previous is None else previous.launch.launch_id,
        why="" if previous is not None else _why_none(known, serving),
    )


def shown(launch: wire.Launch, scrubber: Scrubber) -> wire.Launch:
    """The launch as it may leave the box."""
    masked = dataclasses.replace(launch, secrets=dict.fromkeys(launch.secrets, MASK), arguments=mask_arguments(launch.arguments))
    return wire.from_json(wire.Launch, scrubber.data(wire.to_json(masked)))


def read_known(folder: StateFolder, server: Optional[Server]) -> List[KnownLaunch]:
    """All launches with a record, oldest first; with their secrets."""
    timings, proofs = _timings(folder), folder.proofs()
    found = []
    for launch_id in folder.launch_ids():
        launch = folder.read_launch(launch_id)
        if launch is None:
            continue
        serves = server is not None and (server.launch_id == launch_id or is_adopted(folder, launch_id, server.main.id))
        found.append(KnownLaunch(launch, _verified(folder, launch_id), serves, timings.get(launch_id), proofs.get(launch_id, 0)))
    return found


def previous_launch(known: Sequence[KnownLaunch]) -> Optional[KnownLaunch]:
    """The launch verified last before the one that serves, and that is another one; where none of ours serves, the one verified last.

    A launch that only repeats what serves (a rollback leaves one) is passed over: starting it would be dark time for nothing.
    """
    serving = next((item for item in known if item.serves), None)
    verified = sorted((item for item in known if item.verified is not None), key=_when)
    if serving is None:
        return verified[-1] if verified else None
    bound = _when(serving) if serving.verified is not None else (sys.maxsize, float("inf"), "")
    earlier = [item for item in verified if _when(item) < bound and not is_same(item.launch, serving.launch)]
    return earlier[-1] if earlier else None


def never_verified(folder: StateFolder, backend: str) -> bool:
    """Whether no launch of a backend was ever proven to serve on this box: its kernels may not be in any cache yet."""
    records = (folder.read_launch(name) for name in folder.launch_ids() if folder.verified_facts(name) is not None)
    return all(record is None or record.backend != backend for record in records)


def is_same(one: wire.Launch, other: wire.Launch) -> bool:
    """Whether two launches start the same server."""
    first, second = (dataclasses.replace(launch, launch_id="", gate_port=None, swept_flags=[]) for launch in (one, other))
    return first == second


def record_of(folder: StateFolder, server: Server) -> Optional[wire.Launch]:
    """The record of the launch that serves, whether this program has started it or adopted it; None for any other server."""
    if server.launch_id is not None:
        return folder.read_launch(server.launch_id)
    adopted = next((name for name in folder.launch_ids() if is_adopted(folder, name, server.main.id)), None)
    return None if adopted is None else folder.read_launch(adopted)


def is_adopted(folder: StateFolder, launch_id: str, main: wire.ProcessId) -> bool:
    """Whether a record was made of this very process, which somebody else has started."""
    from orchestrator.agent.own_session import boot_identity

    kept = read_record(Adopted, folder.launch_folder(launch_id) / "adopted.json")
    return kept is not None and kept.main == main and kept.boot == boot_identity()


def _when(item: KnownLaunch) -> Tuple[int, float, str]:
    """Sorts by the true order of the proofs: their times run backwards where the clock was set back between two."""
    return (item.proof, item.verified or 0.0, item.launch.launch_id)


def _why_none(known: Sequence[KnownLaunch], serving: Optional[wire.Launch]) -> str:
    if not any(item.verified is not None for item in known):
        return "no launch of this service was ever verified on this box"
    return f"no launch that differs from {serving.launch_id if serving else 'it'} was verified before it"


def _verified(folder: StateFolder, launch_id: str) -> Optional[float]:
    try:
        return (folder.launch_folder(launch_id) / "verified.json").stat().st_mtime
    except OSError:
        return None


def _timings(folder: StateFolder) -> Dict[str, wire.DecodeTiming]:
    """The newest decode timing of each launch, from the results of the orders that timed it."""
    found: Dict[str, wire.DecodeTiming] = {}
    for order_id in folder.order_ids():
        result = read_record(wire.OrderResult, folder.order_folder(order_id) / "result.json")
        if result is not None and result.launch_id is not None and result.measured is not None and result.measured.skipped is None:
            found[result.launch_id] = result.measured
    return found
