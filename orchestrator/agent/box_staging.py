"""The steps that start a launch beside the server that still serves: part of :class:`box_steps.BoxSteps`."""

import contextlib
import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set

from orchestrator.agent import footprints, gate, gate_firewall, gpu, room, stopping, survey, wire
from orchestrator.agent.clean import gpu_use
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.gate_proof import Gate
from orchestrator.agent.launch_files import find_account, server_environment
from orchestrator.agent.private_files import write_private
from orchestrator.agent.processes import find_servers
from orchestrator.agent.runner import choose_runner, runner_of
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Report, Staged
from orchestrator.agent.wire import Outcome, Verdict

_FILE = "staged.json"
_UNKNOWN_FOOTPRINT = 3072
"""MiB on each GPU that a staged server is allowed where nobody has measured it yet; what is left of a server is far more."""


@dataclass
class _Kept:
    """What the order's folder holds of a staged launch: MiB in use on each GPU before it was started, and its own at the gate (or None)."""

    before: Dict[str, int] = field(default_factory=dict)
    footprint: Optional[Dict[str, int]] = None


class BoxStaging:
    """One order's staged launches. What it keeps of them is in the order's folder, for a supervisor that takes over.

    Args:
        log: a launch's log, None where nobody keeps it.
        why_cold: why its caches of compiled kernels are cold.
    """

    def __init__(
        self,
        order: wire.Order,
        folder: StateFolder,
        order_folder: Path,
        log: Callable[[wire.Launch], Optional[Path]],
        why_cold: Callable[[wire.Launch], List[str]],
    ) -> None:
        self._order = order
        self._folder = folder
        self._file = order_folder / _FILE
        self._log = log
        self._why_cold = why_cold
        self._gates: Dict[str, Gate] = {}
        self._closed: Set[str] = set()
        self._launches: Optional[Dict[str, _Kept]] = None

    def room(self, launch: wire.Launch) -> Verdict:
        """See :meth:`steps.Steps.room`."""
        try:
            environment = server_environment(launch, find_account(launch.user))
            gated = gate.judge(launch, ServicePython(launch.python, environment, launch.user, launch.directory))
            if gated.outcome != Outcome.PASS:
                return gated
            return room.judge(launch, self._folder, self._order.policy, environment=environment)
        except Exception as error:  # noqa: BLE001 - then it is started after the stop, which needs none of this
            return Verdict(gate.CHECK, Outcome.UNKNOWN, f"an unexpected error: {error!r}")

    def with_gate(self, launch: wire.Launch) -> wire.Launch:
        return dataclasses.replace(launch, gate_port=gate.choose_port(launch, self._order.state_root))

    def stage(self, launch: wire.Launch) -> Dict[str, Any]:
        """Start it and close its gate. What an order that was cut off has left staged is ended first, as it holds memory."""
        assert launch.gate_port is not None, "with_gate() comes first"
        self.end_strays(lambda *_: None, spared=launch.launch_id)
        gate_firewall.sweep(launch.gate_port)
        runner = choose_runner(self._folder, launch)
        back = runner.members()
        if not back:
            self._keep(launch, _Kept({found.uuid: found.memory_used for found in gpu.read_gpus()}))
            started = runner.start()
            crash_point("the staged launch is started")
        closed = self._close(launch)
        if back:
            return {"runner": runner.name, "main": back[0].id, "limits": [], "gate": closed}
        return {"runner": started.name, "main": started.main, "limits": started.facts, "gate": closed}

    def wait_gate(self, launch: wire.Launch, report: Report, pulse: Callable[[], None], old_lives: Callable[[], bool]) -> Staged:
        if launch.launch_id not in self._closed:  # by a supervisor that was ended perhaps, perhaps not
            self._close(launch)
        phases = self._gate(launch).wait(report, pulse, old_lives)
        members = runner_of(self._folder, launch).members()
        kept = self._kept().get(launch.launch_id, _Kept())
        kept.footprint = gpu_use({member.pid for member in members}, kept.before)
        self._keep(launch, kept)
        seconds = max(0.0, time.time() - min((survey.started(member.id) for member in members), default=time.time()))
        staged = Staged(launch, round(seconds, 2), kept.footprint, phases)
        with contextlib.suppress(OSError):  # the next plan then has the defaults, which is no reason to stage nothing
            footprints.keep_footprint(self._folder, launch.launch_id, staged, [member.pid for member in members])
        return staged

    def still_staged(self, launch: wire.Launch) -> None:
        self._gate(launch).require()

    def activate(self, launch: wire.Launch, report: Report) -> None:
        self._gate(launch).activate(report)

    def unstage(self, launch: wire.Launch, report: Report) -> List[Verdict]:
        members = runner_of(self._folder, launch).members
        ended = stopping.stop_members(members, self._order.policy, report)
        gate_firewall.sweep()
        self.forget(launch)
        left = members()
        if not left:
            return [Verdict("staged", Outcome.PASS, "nothing of the staged server is left", ended.killed)]
        step = "a process in state D hangs in a driver: dmesg on the host, then reboot it"
        named = [f"{process} (state {process.state})" for process in left]
        return [Verdict("staged", Outcome.WARN, f"{len(left)} processes of the staged server can't be ended", named, step)]

    def forget(self, launch: wire.Launch) -> None:
        """From now on nothing is held for it."""
        self._gates.pop(launch.launch_id, None)
        if self._kept().pop(launch.launch_id, None) is not None:
            self._write()

    @property
    def waits(self) -> bool:
        """Whether a launch was staged that was neither ended nor is the server by now."""
        return bool(self._kept())

    def beside(self, stopped: Optional[wire.Launch] = None) -> Dict[str, int]:
        """The GPU memory that a launch may hold which is staged beside `stopped`, MiB by UUID.

        Before it has come to its gate nobody knows: then as much as the largest that was measured.
        """
        kept = self._kept()
        if not any(launch_id != (stopped.launch_id if stopped is not None else None) for launch_id in kept):
            return {}
        measured = [item.footprint for item in kept.values() if item.footprint is not None]
        if not measured:
            return {uuid: _UNKNOWN_FOOTPRINT for item in kept.values() for uuid in item.before}
        return {uuid: max(found.get(uuid, 0) for found in measured) for uuid in {uuid for found in measured for uuid in found}}

    def end_strays(self, report: Report, spared: Optional[str] = None) -> None:
        """End what an earlier order that was cut off has left at its gate for this service; `spared` is a launch that is not touched."""
        ours = {spared, self._order.launch_id, *self._kept()}
        for server in find_servers():
            if server.main.id == self._order.old or server.listening or server.port != self._order.port:
                continue
            known = server.launch_id is not None and server.launch_id not in ours
            record = self._folder.read_launch(str(server.launch_id)) if known else None
            if record is not None and record.gate_port is not None and record.service == self._order.service:
                stopping.stop_members(runner_of(self._folder, record).members, self._order.policy, report)

    def _close(self, launch: wire.Launch) -> Verdict:
        self._closed.add(launch.launch_id)
        return gate_firewall.close(launch.host, int(launch.gate_port or 0))

    def _gate(self, launch: wire.Launch) -> Gate:
        """Kept from one step to the next, so that its owner need not be looked for while nothing serves."""
        known = self._gates.get(launch.launch_id)
        if known is None:
            runner = runner_of(self._folder, launch)
            cold = self._why_cold(launch)
            known = Gate(launch, runner.members, self._log(launch), self._order.policy, runner.exit_status, cold)
            self._gates[launch.launch_id] = known
        return known

    def _kept(self) -> Dict[str, _Kept]:
        if self._launches is None:
            self._launches = _read(self._file)
        return self._launches

    def _keep(self, launch: wire.Launch, kept: _Kept) -> None:
        self._kept()[launch.launch_id] = kept
        self._write()

    def _write(self) -> None:
        """A full disk ends no start and no way back."""
        with contextlib.suppress(OSError):
            write_private(self._file, json.dumps({name: dataclasses.asdict(kept) for name, kept in self._kept().items()}))


def _read(path: Path) -> Dict[str, _Kept]:
    try:
        return {str(name): _Kept(**kept) for name, kept in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
