"""From what was found on a machine to what an inventory says of it. Pure: every decision of ``fab init`` is here."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from orchestrator.agent.command_lines import argument_value
from orchestrator.agent.wire import Gpu
from orchestrator.agent.wire_discovery import DiscoverReport, FoundContainer, FoundServer, Tool
from orchestrator.config.inventory_writer import ContainerEntry
from orchestrator.config.models import ReachedBy
from orchestrator.errors import UsageError

ITSELF = "none"
"""What ``--container`` is given for the place that the address itself is."""

OBSERVE, BLACKWELL_PCIE = "observe", "blackwell-pcie"
_BLACKWELL_PCIE_CAPABILITY = "12."
"""Of the Blackwell GPUs that are PCIe cards; those with NVLink (B200, B300) have 10.x. CUDA C++ Programming Guide, compute capabilities."""

_TOOLS: dict[str, ReachedBy] = {Tool.PCT: "pct", Tool.INCUS: "incus", Tool.LXC: "lxc-attach"}
_NUMBER = re.compile(r"[1-9][0-9]{2,}")
"""What hosts.yml takes as a container's ``id``: 100 and more."""


@dataclass(frozen=True)
class Seen:
    """One place that could run the service, and what it said of itself. `container` None is the place that the address is."""

    container: FoundContainer | None
    report: DiscoverReport | None
    problem: str = ""
    """Why it said nothing."""

    @property
    def key(self) -> str:
        """What ``--container`` calls it."""
        return ITSELF if self.container is None else self.container.name

    @property
    def rank(self) -> int:
        """How likely it is the one: 3 where SGLang serves, 2 where it could (SGLang and GPUs), 1 where one of these is, 0 else."""
        if self.report is None:
            return -1
        if self.report.servers:
            return 3
        return int(bool(self.report.installations)) + int(bool(self.report.gpus) or self.report.device_nodes > 0)

    def __str__(self) -> str:
        where = "the machine itself" if self.container is None else container_label(self.container)
        return f"{where}: {self.problem or _told(self.report)}"


def container_label(container: FoundContainer) -> str:
    """For the screen: ``container 101 (sglang), by pct``."""
    title = f" ({container.title})" if container.title and container.title != container.name else ""
    return f"container {container.name}{title}, by {container.tool}"


def _told(report: DiscoverReport | None) -> str:
    if report is None:
        return "not asked"
    servers = [f"SGLang serves {_model(item)} on port {item.info.port}" for item in report.servers]
    installed = [f"SGLang {item.version or 'of unknown version'} in {item.python}" for item in report.installations]
    gpus = [gpu_words(report.gpus)] if report.gpus else [f"{report.device_nodes} GPU device nodes"] if report.device_nodes else []
    return "; ".join([*servers, *installed, *gpus]) or "no SGLang and no GPU"


def model_of(server: FoundServer) -> str:
    """What a server calls its model: as its clients do, else its folder."""
    values = (argument_value(server.info.arguments, flag) for flag in ("--served-model-name", "--model-path", "--model"))
    return next((value for value in values if value), "sglang")


def _model(server: FoundServer) -> str:
    return posixpath.basename(model_of(server).rstrip("/"))


def gpu_words(gpus: Sequence[Gpu]) -> str:
    """``8 NVIDIA B200``; of a mixture each kind with its number."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        counts[gpu.name or "GPU of unknown name"] = counts.get(gpu.name or "GPU of unknown name", 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "no GPU"


def containers_to_ask(report: DiscoverReport, wanted: str | None) -> list[FoundContainer]:
    """The containers that are looked into: those that run, or the one that was named.

    Raises:
        UsageError: there is no container of that name, or it does not run.
    """
    if wanted is None:
        return [item for item in report.containers if item.running]
    if wanted == ITSELF:
        return []
    named = [item for item in report.containers if wanted in (item.name, item.title)]
    if not named:
        known = ", ".join(container_label(item) for item in report.containers) or "none that this login can see"
        evidence = [f"containers there: {known}", *report.problems]
        raise UsageError(f"there is no container {wanted}", evidence=evidence, next_step="--container NAME, or --container none")
    if not named[0].running:
        start = {Tool.PCT: "pct start", Tool.INCUS: "incus start"}.get(named[0].tool, "lxc-start -n")
        raise UsageError(f"{container_label(named[0])} does not run", next_step=f"on that machine: {start} {named[0].name}")
    return named[:1]


def likeliest(seen: Sequence[Seen]) -> Seen | None:
    """The place that is meant, None where two are as likely. Of a machine and its one container it is the container, all else alike."""
    order = sorted(seen, key=_likelihood, reverse=True)
    if not order or order[0].rank < 0:
        return None
    if len(order) > 1 and _likelihood(order[0]) == _likelihood(order[1]):
        return None
    return order[0]


def _likelihood(seen: Seen) -> tuple[int, bool]:
    return seen.rank, seen.container is not None


def container_entry(container: FoundContainer) -> ContainerEntry:
    """How hosts.yml says it."""
    numbered = container.tool != Tool.INCUS and _NUMBER.fullmatch(container.name) is not None
    return ContainerEntry(
        reached_by=_TOOLS[container.tool],
        id=int(container.name) if numbered else None,
        name=None if numbered else container.name,
        title=container.title if container.title != container.name else "",
    )


def chosen_server(servers: Sequence[FoundServer], port: int | None) -> FoundServer | None:
    """The server that is meant; None where there is none, or several and no port was named.

    Raises:
        UsageError: none has the port that was named, and there are others.
    """
    if port is None:
        return servers[0] if len(servers) == 1 else None
    named = [item for item in servers if item.info.port == port]
    if servers and not named:
        ports = ", ".join(str(item.info.port) for item in servers)
        raise UsageError(f"no SGLang server runs on port {port} there, but on {ports}", next_step="--port with one of these")
    return named[0] if named else None


def agreed_gpus(outside: DiscoverReport, inside: DiscoverReport | None) -> tuple[int | None, str]:
    """How many GPUs are to be expected on the machine and in its container, and why where that is not one number."""
    counts = [len(report.gpus) for report in (outside, inside) if report is not None and report.gpus]
    if not counts:
        return None, "nvidia-smi showed none when this was written; write how many there must be"
    if len(set(counts)) > 1:
        return None, f"the machine shows {counts[0]} and its container {counts[1]}, so neither number fits both"
    return counts[0], f"how many there must be: {gpu_words(_gpus(outside, inside))}"


def _gpus(outside: DiscoverReport, inside: DiscoverReport | None) -> Sequence[Gpu]:
    return inside.gpus if inside is not None and inside.gpus else outside.gpus


def tuning_base(outside: DiscoverReport, inside: DiscoverReport | None) -> str:
    """The shipped tuning profile to begin with: for Blackwell cards on PCIe their own, else the one that only reads."""
    gpus = _gpus(outside, inside)
    fits = bool(gpus) and all(gpu.compute_capability.startswith(_BLACKWELL_PCIE_CAPABILITY) for gpu in gpus)
    return BLACKWELL_PCIE if fits else OBSERVE


def host_name(alias: str, told: str, taken: Collection[str]) -> str:
    """A name for the machine: what was typed, without its domain, or what it calls itself where that was a bare address."""
    bare = re.fullmatch(r"[0-9.]+|.*:.*", alias) is not None
    words = (alias if not bare else told).partition(".")[0]
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", words).strip("-_")[:50] or "gpu"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)


def about(report: DiscoverReport, seen: Seen) -> str:
    """The line of comment above the machine's entry."""
    kind = f"itself a container ({report.container})" if report.container is not None else "a machine"
    gpus = gpu_words(_gpus(report, seen.report if seen.container is not None else None))
    return f"{report.host_name}: {kind}, kernel {report.kernel}, {gpus}. Written by fab init."
