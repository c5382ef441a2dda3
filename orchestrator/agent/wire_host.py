"""What crosses about a machine rather than about a service: bringing knobs to a tuning profile, and diagnosis.

Loaded for the verbs ``tune`` and ``doctor`` only (see :mod:`wire` for the rest, whose rules hold here too).
"""

from typing import Dict, List, Optional

from orchestrator.agent.codec import field, record
from orchestrator.agent.wire_base import Fact, Verdict


class PlaceKind:
    """Where a knob belongs, and what the inventory says that a place is."""

    HOST = "host"
    CONTAINER = "container"


@record(frozen=True)
class KnobSetting:
    """One knob of a tuning profile.

    `kind` names an entry of the agent's table (:data:`knobs.KNOBS`). `name` is told apart within a kind: a sysctl's key
    (``kernel.numa_balancing``), a module's parameter (``nvidia_uvm.uvm_disable_hmm``); empty where there is one only. `value` is
    text as the kernel or nvidia-smi shows it; None is a knob that is read and told, never set. `persist` says whether
    ``--persist`` keeps it over a reboot. `place` is a :class:`PlaceKind`.
    """

    kind: str
    name: str = ""
    value: Optional[str] = None
    persist: bool = True
    place: str = PlaceKind.HOST
    why: str = ""


class KnobOutcome:
    """The values of :attr:`KnobResult.outcome`."""

    OBSERVED = "observed"
    """Read, as the profile asks for no value."""
    SAME = "same"
    """It has the wanted value already (on a revert: its original one)."""
    WOULD_CHANGE = "would_change"
    """It differs and can be set from here; nothing was written, as only a plan or a check was asked for."""
    CHANGED = "changed"
    """It was written, and read back as wanted."""
    TOLD = "told"
    """It differs, and is never set here at run time: `commands` holds the exact line that does it at the next boot."""
    NOT_SETTABLE = "not_settable"
    """It differs and can't be set from this place: `commands` holds what a person types on the host."""
    UNAVAILABLE = "unavailable"
    """This machine has no such knob, or its driver doesn't let it be set; nothing to be done."""
    UNKNOWN = "unknown"
    """It could not be read here, so nobody can say."""
    FAILED = "failed"
    """A write was tried and refused, or did not stick. `after` holds what is there now."""

    DRIFT = frozenset({WOULD_CHANGE, TOLD, NOT_SETTABLE, FAILED})
    """The knob is not as the profile wants it."""


@record(frozen=True)
class KnobResult:
    """What became of one knob. Never raises: what goes wrong with one knob is an outcome, and the next one is still dealt with.

    `before` and `after` map items to values: one item ``""`` for a knob that there is once, else policies (``policy0``), CPUs
    (``cpu12``), PCI addresses (``0000:41:00.0``). An item that could not be read is absent and named in `detail`. `after` is
    what was read back, never what was written; it equals `before` where nothing was written. `source` is where the values
    were read: a path (with ``*`` for items) or a command. `commands` are what a person would type for the same.
    """

    setting: KnobSetting
    outcome: str
    before: Dict[str, str] = field(default_factory=dict)
    after: Dict[str, str] = field(default_factory=dict)
    detail: str = ""
    source: str = ""
    commands: List[str] = field(default_factory=list)


class TuneAction:
    """The values of :attr:`TuneRequest.action`."""

    APPLY = "apply"
    REVERT = "revert"
    """Put the original values back, whatever the profile says now; `settings` are not looked at."""


class PersistenceAction:
    """The values of :attr:`TuneRequest.persistence`."""

    KEEP = "keep"
    INSTALL = "install"
    REMOVE = "remove"


@record(frozen=True)
class TuneRequest:
    """Bring knobs to a profile. `write` False is a plan or a check: the same code, writing nothing at all.

    `profile` and `operator` are for the record kept on the host. `place` is the :class:`PlaceKind` that the inventory says this
    is; the agent believes the kernel where they differ.
    """

    profile: str
    settings: List[KnobSetting]
    action: str = TuneAction.APPLY
    write: bool = False
    persistence: str = PersistenceAction.KEEP
    state_root: str = ""
    place: str = PlaceKind.HOST
    operator: str = ""
    reason: str = ""
    wait: float = 0.0
    """Seconds for which a write waits for orders at work in this place, and for another preparation."""


@record(frozen=True)
class Persistence:
    """What applies a profile at boot. `state` is the unit's: ``active`` (applied at this boot), ``failed``, ``inactive``, ``unknown``.

    `said` are the last lines it left in the journal when it failed. `problem` names what is wrong with the files themselves, such as a
    unit that somebody changed. `notes` are what it has to put right at each boot, such as a later file in sysctl.d.
    """

    profile: str
    unit: str
    enabled: bool
    state: str
    files: List[str] = field(default_factory=list)
    said: List[str] = field(default_factory=list)
    problem: Optional[str] = None
    notes: List[str] = field(default_factory=list)


@record(frozen=True)
class TuneReport:
    """The answer to a :class:`TuneRequest`, in the order of its settings. `persistence` is None where nothing is applied at boot.

    `changes` names the files made or removed for the next boot (on a plan: that would be), `contents` holds on a plan the text of those
    that a person can read. `originals` counts the values that a revert would put back, `original_knobs` the knobs that they are of.
    """

    results: List[KnobResult]
    facts: List[Fact]
    persistence: Optional[Persistence] = None
    changes: List[str] = field(default_factory=list)
    originals: int = 0
    original_knobs: int = 0
    contents: Dict[str, str] = field(default_factory=dict)


class FactName:
    """Names of :class:`wire.Fact` that the operator's end compares between a host and its container."""

    KERNEL = "kernel"
    """uname -r."""
    BOOT_ID = "boot_id"
    """/proc/sys/kernel/random/boot_id. An LXC container has one of its own, new at each of its starts."""
    BOOTED = "booted"
    """Unix time at which the kernel was booted (:func:`clock.boot_moment`), which a container shares with its host alone."""
    CONTAINER = "container"
    """``lxc`` and the like, None on a bare host."""
    STARTED = "started"
    """Unix time at which the place's PID 1 started."""
    DRIVER_MODULE = "driver_module"
    """The NVIDIA kernel module's version (``580.159.04``), None where it isn't loaded."""
    DRIVER_LIBRARY = "driver_library"
    """The version of the libcuda that a program in this place would load, None where there is none."""
    DEVICE_NODES = "device_nodes"
    """Path -> {"major": int, "minor": int, "changed": Unix time of its last inode change} of the character devices /dev/nvidia*."""
    GPUS = "gpus"
    """PCI addresses of the GPUs that the kernel sees (``0000:41:00.0``)."""


@record(frozen=True)
class DoctorRequest:
    """Diagnose a place. Reads only; every command in it is bounded.

    `settings` are the tuning profile's, compared and never set. `kernel` and `driver` are patterns (``6.8.*-pve``, ``580.*``) that the
    profile expects. `service` names the service whose server's processes, account and last verified launch are meant; None where
    there is none in this place. `cuda` asks for cuInit here, in `python` as `user` with `environment`.
    """

    place: str
    state_root: str
    settings: List[KnobSetting] = field(default_factory=list)
    kernel: Optional[str] = None
    driver: Optional[str] = None
    expected_gpus: Optional[int] = None
    service: Optional[str] = None
    port: Optional[int] = None
    cuda: bool = False
    python: str = "python3"
    user: Optional[str] = None
    environment: Dict[str, str] = field(default_factory=dict)
    container: Optional[str] = None
    """On a host: what its container is called there (``101``, ``sglang``), to tell its processes from foreign ones."""


@record(frozen=True)
class DoctorReport:
    """What was found in one place. Every verdict says where it was read, and what to type where it isn't ``pass``."""

    verdicts: List[Verdict]
    facts: List[Fact]
    knobs: List[KnobResult] = field(default_factory=list)
