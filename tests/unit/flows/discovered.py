"""Machines that nobody has described yet, as their agents would tell of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.agent import wire
from orchestrator.agent.wire_discovery import DiscoverReport, FoundContainer, FoundInstallation, FoundServer, Tool
from orchestrator.agent.wire_launches import AdoptReport
from orchestrator.config import Host, Inventory
from orchestrator.errors import OrchestratorError
from orchestrator.flows.target import Target
from tests.unit.flows.fake_agent import FakeAgent, answer

SGLANG = FoundInstallation("/opt/sglang/bin/python", "0.5.23")
RUNS = FoundContainer(Tool.PCT, "101", running=True, title="sglang")
RUNS_TOO = FoundContainer(Tool.PCT, "102", running=True, title="spare")
STOPPED = FoundContainer(Tool.PCT, "103", running=False, title="old")


def gpus(count: int, name: str = "NVIDIA B200", capability: str = "10.0") -> list[wire.Gpu]:
    return [wire.Gpu(index, f"GPU-{index}", name, capability, 0, 183359) for index in range(count)]


RTX = gpus(8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0")


def server(port: int = 30000, *, service: str | None = None) -> FoundServer:
    """A server that runs; with `service` it is a launch of ours."""
    info = wire.ServerInfo(
        main=wire.ProcessId(4242, 1111),
        members=[],
        manager=wire.Manager(wire.ManagerKind.SESSION, "tmux"),
        port=port,
        listening=True,
        python=SGLANG.python,
        arguments=["--model-path", "/models/GLM-5-NVFP4", "--port", str(port), "--tp-size", "8"],
        user="root",
        started=1.0,
        launch_id=None if service is None else "id-1",
    )
    return FoundServer(info, service)


def report(
    *containers: FoundContainer,
    servers: Sequence[FoundServer] = (),
    installations: Sequence[FoundInstallation] = (),
    gpus: Sequence[wire.Gpu] = (),
    user_id: int = 0,
    container: str | None = None,
) -> DiscoverReport:
    """What a place says of itself."""
    return DiscoverReport(
        host_name="pve7",
        kernel="6.8.12-9-pve",
        user="root" if user_id == 0 else "operator",
        user_id=user_id,
        container=container,
        containers=list(containers),
        servers=list(servers),
        installations=list(installations),
        gpus=list(gpus),
        driver="580.159.04",
    )


def adopted(found: FoundServer) -> AdoptReport:
    """What adopt reads of that server."""
    info = found.info
    launch = wire.Launch("found", "glm", "as found", info.python, info.arguments, "127.0.0.1", info.port)
    if found.service is not None:
        flags = ["--moe-runner-backend"]
        launch = dataclasses.replace(
            launch, service=found.service, backend="triton", arguments=[*info.arguments, *flags, "triton"], backend_flags=flags
        )
    return AdoptReport(server=info, launch=launch, health="serving", sglang_version="0.5.23")


@dataclass
class FakeMachine:
    """Answers by place: ``host``, ``host by sudo``, or a container's reference. An error is raised instead of an answer."""

    places: dict[str, DiscoverReport | OrchestratorError]
    opened: list[str] = field(default_factory=list)
    adopts: AdoptReport | OrchestratorError | None = None

    @contextmanager
    def open(self, inventory: Inventory, host: Host, kind: str) -> Iterator[FakeAgent]:
        assert host.name in inventory.hosts
        inside = host.container
        raised = " by sudo" if host.become == "sudo" and host.container is None else ""
        key = f"host{raised}" if kind == "host" or inside is None else inside.reference
        self.opened.append(key)
        said = self.places[key]
        if isinstance(said, OrchestratorError):
            raise said
        yield FakeAgent(discover=[answer(said)])

    @contextmanager
    def connect(self, target: Target) -> Iterator[FakeAgent]:
        if isinstance(self.adopts, OrchestratorError):
            raise self.adopts
        assert self.adopts is not None
        yield FakeAgent(adopt=[answer(self.adopts)], preflight=[answer(wire.PreflightReport([], [], None, "0.5.23"))])
