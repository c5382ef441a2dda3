"""Adopt: from a server that somebody started by hand to a service file and a first launch record on the box."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agent import wire
from orchestrator.agent.wire_launches import AdoptReport, AdoptRequest
from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows import look
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import Origin, Plan
from orchestrator.flows.target import Agent, Connect, Target, connect

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory, Service
    from orchestrator.config.service_file import ServiceFile

ADOPT = "adopt"
DEFAULT_PORT = 30000
"""SGLang's own."""
LOOK_SECONDS = 300.0
"""SGLang's own parser runs in it."""
KEEP_SECONDS = 240.0


@dataclass(frozen=True)
class Adoption:
    """What would be written down.

    Attributes:
        path: where the file goes.
        exists: it is there already, and stays as it is.
        differences: between what runs and what a relaunch from the file would start; None where nobody could tell.
        rollback: why the server could not be brought back, None where that is promised.
        recorded: whether a record is made on the box: not for what somebody's unit starts.
    """

    target: Target
    report: AdoptReport
    file: ServiceFile
    path: Path
    exists: bool
    differences: Sequence[wire.Difference] | None
    remarks: Sequence[str]

    @property
    def rollback(self) -> str | None:
        return self.report.rollback

    @property
    def unit(self) -> str | None:
        """Somebody's unit, which starts the server and goes on doing so."""
        manager = self.report.server.manager
        return manager.name if manager.kind == wire.ManagerKind.SYSTEMD_UNIT else None

    @property
    def plan(self) -> Plan:
        """For the question."""
        place = self.target.place
        return Plan(ADOPT, self.target.host.name, place, self.target.service.name, wire.Policy(), server=self.report.server)


def examine(
    inventory: Inventory,
    host: Host,
    service: str | None,
    port: int | None,
    observer: Observer,
    connect: Connect = connect,
    *,
    ours: bool = False,
    written_by: str = "fab adopt",
) -> Adoption:
    """Look at the server and put together what would be written down. Changes nothing.

    Args:
        ours: whether a server that this program has started is described too, from the box's record of its launch.
        written_by: the command that the file names as its author.

    Raises:
        UsageError: the name belongs to a service elsewhere.
        RefusedError: there is no server that could be taken over.
        UnreachableError: the place can't be reached, trusted or used.
    """
    target = _provisional(inventory, host, service, port)
    with connect(target) as agent:
        observer.note(f"looking at port {target.service.port} in {target.place}")
        request = AdoptRequest(target.service.name, target.state_root, target.service.port, ours=ours)
        report = agent.ask(ADOPT, request, AdoptReport, LOOK_SECONDS)
        target = _named(target, report, given=service)
        file = _file(target, report, written_by)
        observer.note("comparing what runs with what a relaunch from the file would start")
        differences = _differences(agent, target, file.service, report)
    path = inventory.directory / "services" / f"{target.service.name}.yml"
    exists = path.exists() or target.service.name in inventory.services
    return Adoption(target, report, file, path, exists, differences, _remarks(report, file, differences))


def adopt(adoption: Adoption, observer: Observer, connect: Connect = connect) -> AdoptReport | None:
    """Write the file, unless there is one, and have the box prove that the server serves and keep a record of it.

    Returns:
        The box's answer; None where somebody's unit starts the server, so that there is nothing to keep.

    Raises:
        RefusedError: it does not serve; the file is not written then.
    """
    report = None
    if adoption.unit is None:
        target = adoption.target
        request = AdoptRequest(
            target.service.name, target.state_root, target.service.port, f"{look.new_id()}-as-found", adoption.report.server.main
        )
        observer.note("proving that it serves")
        with connect(target) as agent:
            report = agent.ask(ADOPT, request, AdoptReport, KEEP_SECONDS)
    if not adoption.exists:
        _write_new(adoption.path, adoption.file.text)
    return report


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        raise RefusedError(f"{path} has come into being meanwhile and stays as it is", next_step="fab services") from None
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}", next_step="--print shows what it would hold") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)


def _provisional(inventory: Inventory, host: Host, name: str | None, port: int | None) -> Target:
    """The host's place, for a service that may not exist yet."""
    from orchestrator.config import Service

    known = inventory.services.get(name) if name is not None else None
    if known is not None and known.host != host.name:
        raise UsageError(f"service {name} is on host {known.host}, not on {host.name}", next_step="--service with another name")
    if known is not None:
        if port is not None and port != known.port:
            raise UsageError(f"service {name} has port {known.port}, and --port says {port}", next_step="leave out one of the two")
        return Target(inventory, host, known)
    kind = "container" if host.container is not None else "host"
    data = {"name": name or "adopted", "host": host.name, "place": kind, "python": "/", "model": "?", "port": port or DEFAULT_PORT}
    return Target(inventory, host, Service.model_validate(data))


def _named(target: Target, report: AdoptReport, *, given: str | None) -> Target:
    from orchestrator.agent.command_lines import argument_value
    from orchestrator.config.service_file import default_name

    if given is not None:
        return target
    values = [argument_value(report.launch.arguments, flag) for flag in ("--served-model-name", "--model-path", "--model")]
    model = next((value for value in values if value), None)
    name = default_name(model or "sglang", list(target.inventory.services))
    return Target(target.inventory, target.host, target.service.model_copy(update={"name": name}))


def _file(target: Target, report: AdoptReport, written_by: str) -> ServiceFile:
    from orchestrator.config.service_file import FoundServer, service_file

    launch, server = report.launch, report.server
    return service_file(
        FoundServer(
            name=target.service.name,
            host=target.host.name,
            place=target.service.place,
            python=launch.python,
            entry=launch.entry,
            arguments=launch.arguments,
            port=server.port,
            flags=report.flags,
            user=launch.user,
            directory=launch.directory if launch.directory not in (None, "/") else None,
            environment={name: value for name, value in report.steering.items() if name not in launch.backend_environment},
            secrets=sorted(launch.secrets),
            secret_variables=report.secret,
            kept=len(report.kept),
            backend=launch.backend if server.launch_id is not None else None,
            backend_flags=launch.backend_flags,
            comment=f"Written by {written_by} from process {server.main.pid} on port {server.port} in {target.place}.",
        )
    )


def _differences(agent: Agent, target: Target, service: Service | None, report: AdoptReport) -> Sequence[wire.Difference] | None:
    """What a relaunch from the file would change, by SGLang's own parser; None where the file is not valid yet."""
    if service is None:
        return None
    from orchestrator.config import base_launch

    launch = base_launch(service, look.new_id(), {})
    request = wire.PreflightRequest(launch, target.state_root)
    answer = agent.ask("preflight", request, wire.PreflightReport, look.PREFLIGHT_SECONDS)
    return [item for item in answer.differences if item.origin not in (Origin.OURS, Origin.INHERITED)]


def _remarks(report: AdoptReport, file: ServiceFile, differences: Sequence[wire.Difference] | None) -> list[str]:
    remarks = list(file.remarks)
    hidden = {"--" + name for name in report.launch.secrets} | set(report.secret) | set(report.launch.backend_flags)
    left = [item.name for item in differences or () if item.name not in hidden]
    if left:
        remarks.append(f"a relaunch from this file would differ from what runs in: {', '.join(left)}")
    if differences is None:
        remarks.append("nobody could compare what runs with the file: correct it first, then fab relaunch --plan")
    remarks += [verdict.detail for verdict in report.verdicts]
    manager = report.server.manager
    if report.server.launch_id is not None:
        return remarks
    if manager.kind == wire.ManagerKind.SYSTEMD_UNIT:
        remarks.append(f"{manager.name} starts this server and goes on doing so; it is the way back, so no record is made")
    else:
        remarks.append("nothing starts this very process again after a crash or a reboot; what a relaunch starts comes back by itself")
    return remarks
