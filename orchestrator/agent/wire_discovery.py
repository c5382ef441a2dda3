"""What crosses when nobody has said yet what a machine is: its containers, its servers, its GPUs, the SGLangs installed on it.

Loaded for the verb ``discover`` only (see :mod:`wire` for the rest, whose rules hold here too).
"""

from typing import List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire import Gpu, ServerInfo


class Tool:
    """The values of :attr:`FoundContainer.tool`: what enters a container, named as in the inventory."""

    PCT = "pct"
    INCUS = "incus"
    LXC = "lxc-attach"


@record(frozen=True)
class DiscoverRequest:
    """Look around. `state_root` is where launches of this program would have left their records."""

    state_root: str


@record(frozen=True)
class FoundContainer:
    """One container as its tool lists it. `name` is what the tool is given; `title` is what people call it, where that differs."""

    tool: str
    name: str
    running: bool
    title: str = ""


@record(frozen=True)
class FoundServer:
    """One SGLang server of this very place. `service` is the one that its launch is a record of, None where it is not ours."""

    info: ServerInfo
    service: Optional[str] = None


@record(frozen=True)
class FoundInstallation:
    """A Python that has SGLang installed."""

    python: str
    version: str


@record(frozen=True)
class DiscoverReport:
    """What is there.

    `container` is the kind of container that the place itself is (``lxc``), None on a bare host or where nobody says. `user` is who
    looked. `gpu_problem` says why `gpus` may be empty, `device_nodes` counts /dev/nvidia0 and the like. `driver` is the version of
    NVIDIA's kernel module. `problems` are what kept one of the tools from listing its containers.
    """

    host_name: str
    kernel: str
    user: str
    user_id: int
    container: Optional[str] = None
    containers: List[FoundContainer] = field(default_factory=list)
    servers: List[FoundServer] = field(default_factory=list)
    installations: List[FoundInstallation] = field(default_factory=list)
    gpus: List[Gpu] = field(default_factory=list)
    gpu_problem: Optional[str] = None
    device_nodes: int = 0
    driver: Optional[str] = None
    problems: List[str] = field(default_factory=list)
