"""What the inventory's YAML may hold: hosts, services and backend profiles; for tuning profiles see :mod:`orchestrator.config.tuning`.

The models are strict (no text is taken for a number), closed (an unknown key is a mistake) and frozen. Messages here end
up after ``file:line: path:``, so they say only what is wrong and what is allowed, and never repeat a secret's value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from orchestrator.agent import wire
from orchestrator.agent.private_files import DEFAULT_ROOT
from orchestrator.config import fields
from orchestrator.config.fields import AbsolutePath, LocalPath, Name, Program
from orchestrator.config.hooks import HooksModel, WebhookModel
from orchestrator.config.strict import STRICT

Become = Literal["none", "sudo"]
ReachedBy = Literal["ssh", "pct", "lxc-attach", "incus"]
PlaceKind = Literal["container", "host"]

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonEmpty = Annotated[str, Field(min_length=1)]
Arguments = dict[fields.FlagName, fields.ArgumentValue]
Environment = dict[fields.VariableName, fields.EnvironmentValue]


class StrictModel(BaseModel):
    """Closed, strict and frozen."""

    model_config = STRICT


@dataclass(frozen=True)
class Place:
    """Somewhere a program can run, and how it is reached.

    With `reached_by` ``ssh``, the login (address, port, user, ...) is the place's own. With ``pct``, ``lxc-attach`` or
    ``incus`` it is the host's, where that tool enters `container`; `become` is then about the tool on the host, and the
    program runs as the container's root.

    Attributes:
        label: for the screen: ``gpu1``, or ``gpu1/101`` for its container.
        host: the host's name in the inventory.
        container: what the tool on the host is given (``101``, ``sglang``); None for the host itself.
        identity_files: absolute paths; may not exist on this operator's machine.
        agent: whether the operator's SSH agent is asked.
        jump: the name of the host (in the inventory) that the connection goes through.
        python: the Python that runs the agent there.
        state_root: the folder that holds each service's state folder.
        gpus: how many GPUs are expected, None when nothing is.
    """

    label: str
    host: str
    container: str | None
    reached_by: ReachedBy
    address: str
    port: int
    user: str
    become: Become
    identity_files: tuple[Path, ...]
    agent: bool
    jump: str | None
    python: str
    state_root: str
    gpus: int | None


class Container(StrictModel):
    """The LXC container on a host. The login keys are for ``reached_by: ssh`` alone; ``address`` is required with it."""

    reached_by: ReachedBy
    """Its own SSH server, or the host's tool that enters it: ``pct exec``, ``lxc-attach`` or ``incus exec``."""
    id: Annotated[int, Field(ge=100)] | None = None
    """Proxmox's number of the container."""
    name: Name | None = None
    """The container's name, for lxc-attach and incus."""
    address: fields.Address | None = None
    port: Port = 22
    user: Name = "root"
    become: Become = "none"
    identity_files: list[LocalPath] = []
    agent: bool = True
    jump: Name | None = None
    python: Program = "python3"
    state_root: AbsolutePath = DEFAULT_ROOT

    @property
    def reference(self) -> str:
        """What ``pct``, ``lxc-attach`` or ``incus`` is given, and what the screen shows."""
        if self.id is not None and (self.reached_by == "pct" or self.name is None):
            return str(self.id)
        return self.name or self.address or ""

    @field_validator("address", "port", "user", "become", "identity_files", "agent", "jump")
    @classmethod
    def _only_over_ssh(cls, value: Any, info: ValidationInfo) -> Any:
        reached_by = info.data.get("reached_by", "ssh")
        if reached_by != "ssh":
            raise ValueError(f"only with reached_by: ssh; {reached_by} runs on the host, with the host's login")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.id is None and self.name is None and self.reached_by != "ssh":
            raise ValueError("needs id (Proxmox's number) or name")
        if self.reached_by == "pct" and self.id is None:
            raise ValueError("reached_by: pct needs id, Proxmox's number of the container")
        if self.reached_by == "incus" and self.name is None:
            raise ValueError("reached_by: incus needs name")
        if self.reached_by == "ssh" and self.address is None:
            raise ValueError("reached_by: ssh needs address")
        return self


class Host(StrictModel):
    """A bare machine. `name` is its key in hosts.yml."""

    name: Name
    address: fields.Address
    """A name or an IP address, without user or port."""
    port: Port = 22
    """SSH port."""
    user: Name = "root"
    """Who logs in."""
    become: Become = "none"
    """How the login becomes root: `sudo` is ``sudo -n``, which never asks for a password."""
    identity_files: list[LocalPath] = []
    """Private keys, besides what the SSH agent holds. A relative path counts from the inventory's folder."""
    agent: bool = True
    """Whether the operator's SSH agent is asked; it is never forwarded."""
    jump: Name | None = None
    """Another host of the inventory that the connection goes through; its host key is checked too."""
    python: Program = "python3"
    """What runs the agent there: Python 3.9 or newer, with its standard library."""
    state_root: AbsolutePath = DEFAULT_ROOT
    """The folder that holds a folder of its own for each service."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """How many GPUs there must be; left out, any number will do."""
    container: Container | None = None
    """The LXC container in which SGLang runs; left out, services run on the host itself."""
    service: Name | None = None
    """The service that is meant when a command names none; needed only where the host has several."""
    tuning: Name | None = None
    """The tuning profile that is meant when a command names none."""
    hooks: HooksModel = HooksModel()
    """Around the orders of each of its services, before those of the service."""
    webhook: WebhookModel | None = None
    """For the services that have none of their own."""

    def place(self, *, container: bool) -> Place:
        """The host itself, or its container.

        Raises:
            ValueError: the host has no container.
        """
        if not container:
            return self._place(self, "ssh", None, self.python, self.state_root)
        inside = self.container
        if inside is None:
            raise ValueError(f"host {self.name} has no container")
        login = inside if inside.reached_by == "ssh" else self
        return self._place(login, inside.reached_by, inside.reference, inside.python, inside.state_root)

    def _place(self, login: Host | Container, reached_by: ReachedBy, container: str | None, python: str, state_root: str) -> Place:
        return Place(
            label=self.name if container is None else f"{self.name}/{container}",
            host=self.name,
            container=container,
            reached_by=reached_by,
            address=login.address or "",
            port=login.port,
            user=login.user,
            become=login.become,
            identity_files=tuple(Path(item) for item in login.identity_files),
            agent=login.agent,
            jump=login.jump,
            python=python,
            state_root=state_root,
            gpus=self.gpus,
        )


class HostsFile(StrictModel):
    """hosts.yml as a whole; each entry is checked as a :class:`Host` of its own."""

    hosts: dict[Name, Any]
    groups: dict[Name, Annotated[list[Name], Field(min_length=1)]] = {}
    """Names for several hosts together; a group may hold groups that stand above it."""


class PhaseLimitsModel(StrictModel):
    """Overrides of the deadlines of one phase of a load; field by field :class:`orchestrator.agent.wire.PhaseLimits`."""

    total: Seconds | None = None
    stall: Seconds | None = None
    cold_total: Seconds | None = None
    cold_stall: Seconds | None = None


PhaseName = Literal["imports", "distributed", "gate", "weights", "kv_cache", "autotune", "graph_capture", "warm_up", "ready"]


class PolicyModel(StrictModel):
    """Overrides of :class:`orchestrator.agent.wire.Policy`, whose defaults and meaning hold."""

    drain: Annotated[float, Field(ge=0, le=24 * 3600, allow_inf_nan=False)] = wire.Policy.drain
    drain_end: Literal["abort", "stop"] = "abort"
    grace: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = wire.Policy.grace
    clean: Seconds = wire.Policy.clean
    load_total: Seconds | None = None
    load_stall: Seconds | None = None
    phases: dict[PhaseName, PhaseLimitsModel] = {}
    staging: Literal["auto", "never"] = "auto"
    headroom: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = wire.Policy.headroom
    stage_total: Seconds | None = None
    warm_rate: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = wire.Policy.warm_rate
    generations: Count = wire.Policy.generations
    capacity_warn: Fraction = wire.Policy.capacity_warn
    capacity_fail: Fraction = wire.Policy.capacity_fail
    likelihood_tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = wire.Policy.likelihood_tolerance
    likelihood_floor: Annotated[float, Field(le=0, allow_inf_nan=False)] = wire.Policy.likelihood_floor
    garbage: Literal["fail", "warn"] = "fail"
    verify: Seconds = wire.Policy.verify
    measure: bool = wire.Policy.measure
    measure_input_tokens: Count = wire.Policy.measure_input_tokens
    measure_output_tokens: Annotated[int, Field(ge=2)] = wire.Policy.measure_output_tokens
    measure_repeats: Count = wire.Policy.measure_repeats
    measure_seconds: Seconds = wire.Policy.measure_seconds

    @model_validator(mode="after")
    def _thresholds_are_ordered(self) -> Self:
        if self.capacity_fail > self.capacity_warn:
            raise ValueError("capacity_fail must not be above capacity_warn")
        return self


class ExpectationModel(StrictModel):
    """What the greedy answer to a prompt must hold: all of `contains`, and a match of `matches` (a regular expression) anywhere in it."""

    prompt: NonEmpty
    contains: list[NonEmpty] = []
    matches: NonEmpty | None = None
    chat: bool = False
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = wire.Expectation.max_tokens

    @field_validator("matches")
    @classmethod
    def _is_an_expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        if not self.contains and self.matches is None:
            raise ValueError("needs contains or matches")
        return self


class FloorModel(StrictModel):
    """What bounds the service's decode speed, where it is not to be derived from the model's config and the GPU's name."""

    gigabytes_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Read by each GPU for one token of a single stream, in 10^9 bytes."""
    memory_bandwidth: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Of one GPU, GB/s."""
    tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """A ceiling for a single stream that somebody has noted: held against the one that the others make."""


class NodeModel(StrictModel):
    """A node of a server that goes over several, beside that of rank 0."""

    host: Name
    """The host that it is, by its name in hosts.yml."""
    place: PlaceKind = "container"
    """Where on that host its part runs."""
    port: Port | None = None
    """Where its part tells that it is up; left out: the service's port."""


NODE_FLAGS = ("--nnodes", "--node-rank", "--dist-init-addr")
"""What `nodes` and `dist_init_addr` say."""


class Service(StrictModel):
    """One SGLang server as it should run.

    `arguments` maps exact long flags to their values: true is a bare flag, false leaves it out, a list is several
    values. `secrets` maps SGLang argument names (``api-key``) to where their values are found on the operator's machine.
    """

    name: Name
    """What ``--service`` means; also the name of its state folder on the box."""
    host: Name
    """The host that it runs on, by its name in hosts.yml."""
    place: PlaceKind = "container"
    """Where on that host it runs."""
    python: AbsolutePath
    """The Python that has SGLang installed."""
    entry: Annotated[list[NonEmpty], Field(min_length=1)] = ["-m", "sglang.launch_server"]
    """What that Python is given before the arguments."""
    model: NonEmpty
    """SGLang's --model-path."""
    bind: fields.Address = "127.0.0.1"
    """SGLang's --host."""
    port: Port = 30000
    """SGLang's --port."""
    user: Name | None = None
    """Who runs the server; None: whoever runs the agent."""
    directory: AbsolutePath | None = None
    """The server's working directory."""
    arguments: Arguments = {}
    """Exact long flags, as the installed SGLang spells them; a backend profile replaces a flag of the same name."""
    environment: Environment = {}
    """Variables, as the server should see them."""
    nodes: list[NodeModel] = []
    """The nodes of ranks 1, 2, ... of a server that goes over several; rank 0, which takes the requests, is on `host`."""
    dist_init_addr: fields.HostPort | None = None
    """SGLang's --dist-init-addr: HOST:PORT of rank 0, as every node reaches it. The port below it is the supervisors'."""
    backend: NonEmpty | None = None
    """The backend profiles (``flashinfer_cutlass+ep8``) that `fab launch` uses when it names none."""
    secrets: dict[fields.SecretName, fields.SecretReference] = {}
    """SGLang's arguments that are secrets, and where each value is found on the operator's machine."""
    boot: bool | None = None
    """Whether the server comes back by itself after a crash and a restart of the machine; None: where systemd runs. Over `nodes` never."""
    policy: PolicyModel = PolicyModel()
    """Deadlines and thresholds of a change, where the defaults do not fit."""
    expectations: list[ExpectationModel] = []
    """What greedy answers must hold, asked of the old and of the new server."""
    floor: FloorModel = FloorModel()
    """What bounds decoding, where it is not to be derived."""
    hooks: HooksModel = HooksModel()
    """Around each of its orders; those of its host come first."""
    webhook: WebhookModel | None = None
    """Where the end of each of its orders is told, in place of the host's."""

    @property
    def in_container(self) -> bool:
        return self.place == "container"

    def at_rank(self, rank: int) -> Self:
        """The service as one of its nodes has it: its part on that node."""
        if rank == 0:
            return self
        node = self.nodes[rank - 1]
        return self.model_copy(update={"host": node.host, "place": node.place, "port": node.port or self.port})

    @model_validator(mode="after")
    def _nodes_are_told_once(self) -> Self:
        if bool(self.nodes) != (self.dist_init_addr is not None):
            raise ValueError("nodes and dist_init_addr need each other")
        given = [flag for flag in NODE_FLAGS if flag in self.arguments]
        if self.nodes and given:
            raise ValueError(f"{given[0]} is not set in arguments: nodes and dist_init_addr say it")
        hosts = [self.host, *(node.host for node in self.nodes)]
        if len(set(hosts)) != len(hosts):
            raise ValueError("a host is named twice: each of its nodes is another host")
        return self


class ProbeModel(StrictModel):
    """Something to look for in the service's Python; field by field :class:`orchestrator.agent.wire.Probe`."""

    module: fields.ModuleName
    name: fields.QualifiedName = ""
    tells: list[fields.ModuleName] = []
    load: bool = False
    required: bool = True


class RequirementsModel(StrictModel):
    """What a variant needs; field by field :class:`orchestrator.agent.wire.Requirements`."""

    compute_capability: list[fields.ComputeCapability] = []
    compute_capability_unproven: list[fields.ComputeCapability] = []
    quantization: list[NonEmpty] = []
    python_modules: list[fields.ModuleName] = []
    gpu_count: Count | None = None
    note: str = ""
    probes: list[ProbeModel] = []


class Variant(StrictModel):
    """What a profile means for a range of SGLang versions.

    Attributes:
        sglang: version specifiers, all of which must hold: ``>=0.5.11,<0.5.20``.
        has: what an SGLang of these versions has, ``module`` or ``module:name``: where it is missing, the variant is not meant, whatever
            the version says. People run checkouts and forks.
        lacks: what it does not have yet, or has no more.
        refused: why the profile can't be had in these versions; the arguments are then never used.
    """

    sglang: fields.VersionRange
    has: list[fields.Reference] = []
    lacks: list[fields.Reference] = []
    arguments: Arguments = {}
    """Exact long flags, laid over the service's."""
    environment: Environment = {}
    """Variables, laid over the service's."""
    requirements: RequirementsModel = RequirementsModel()
    """What it needs, checked before anything is touched."""
    refused: NonEmpty | None = None


class Backend(StrictModel):
    """A named overlay on a service. Of kind ``backend`` a launch has at most one, of kind ``overlay`` any number."""

    name: Name
    """What ``--backend`` means."""
    kind: Literal["backend", "overlay"]
    """Of kind `backend` a launch has one at most, of kind `overlay` any number, joined to it by ``+``."""
    summary: NonEmpty
    """When to use it, in one line."""
    variants: Annotated[list[Variant], Field(min_length=1)]
    """What it means, by SGLang's version."""
