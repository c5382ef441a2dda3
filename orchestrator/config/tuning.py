"""What a file of ``tuning/`` may hold: a tuning profile, the values that a machine's knobs should have.

The kinds of knobs, and what each takes for a value, are a table here, so that a mistake is told with its line before a machine
is asked. Whether a machine has a knob and lets it be set, only the machine can say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from orchestrator.config.fields import Name, OneLine
from orchestrator.config.mistakes import did_you_mean, quoted
from orchestrator.config.models import PlaceKind, StrictModel

if TYPE_CHECKING:
    from orchestrator.agent.wire_host import KnobSetting

_SYSCTL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+")
_PARAMETER = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_]+")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_TUNED_PROFILES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*( [A-Za-z0-9][A-Za-z0-9._-]*)*")
_CLOCKS = re.compile(r"([1-9][0-9]{0,4}),([1-9][0-9]{0,4})")
_WHOLE = re.compile(r"0|[1-9][0-9]{0,9}")

_A_CONTAINERS_OWN = re.compile(r"net\..+|kernel\.(shm|msg).+|kernel\.sem|fs\.mqueue\..+|user\..+")
"""Sysctls that the kernel keeps for each network, IPC or user namespace; there is one of any other."""

_MAX_LATENCY_US = 2**31 - 2
"""One less than PM_QOS_RESUME_LATENCY_NO_CONSTRAINT, which can't be written (drivers/base/power/sysfs.c)."""
_MAX_WATTS = 9999


def _check_anything(text: str) -> None:
    """What a sysctl or a module's parameter takes, the kernel knows."""


def _check_governor(text: str) -> None:
    if _WORD.fullmatch(text) is None:
        raise ValueError(f"{quoted(text)} is not a governor's name: a word such as performance, powersave or schedutil")


def _check_energy_preference(text: str) -> None:
    """The kernel's ``default`` is not allowed: it reads back as another word (drivers/cpufreq/intel_pstate.c)."""
    words = ("performance", "balance_performance", "balance_power", "power")
    if text not in words and not _is_whole(text, 0, 255):
        raise ValueError(f"{quoted(text)} is not an energy preference; allowed: {', '.join(words)}, or a whole number from 0 to 255")


def _check_resume_latency(text: str) -> None:
    if text != "n/a" and not _is_whole(text, 0, _MAX_LATENCY_US):
        raise ValueError(
            f"{quoted(text)} is not a latency: microseconds as a whole number (0 is no limit), or n/a (the CPU may not sleep at all)"
        )


def _check_tuned_profile(text: str) -> None:
    if _TUNED_PROFILES.fullmatch(text) is None:
        raise ValueError(f"{quoted(text)} is not the name of a profile of tuned, as tuned-adm list shows them")


def _check_power_limit(text: str) -> None:
    if not _is_whole(text, 1, _MAX_WATTS):
        raise ValueError(f"{quoted(text)} is not a power limit: watts as a whole number from 1 to {_MAX_WATTS}")


def _check_clocks(text: str) -> None:
    match = _CLOCKS.fullmatch(text)
    if match is None:
        raise ValueError(f'{quoted(text)} is not a range of clocks: MHz as "MIN,MAX" such as "1500,2400"; twice the same locks one clock')
    if int(match[1]) > int(match[2]):
        raise ValueError(f'{quoted(text)} has the higher clock first: write "{match[2]},{match[1]}"')


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in allowed:
            raise ValueError(f"got {quoted(text)}; allowed: {', '.join(allowed)}")

    return check


def _is_whole(text: str, least: int, most: int) -> bool:
    return _WHOLE.fullmatch(text) is not None and least <= int(text) <= most


class KnobKind(NamedTuple):
    """A kind of knob.

    `check` raises ValueError for a value that it can't have. `name` is what its ``name:`` looks like, `example` the same in
    words; None where there is one such knob only.
    """

    check: Callable[[str], None]
    name: re.Pattern[str] | None = None
    example: str = ""


KNOB_KINDS = {
    "sysctl": KnobKind(_check_anything, _SYSCTL, "a sysctl's key such as kernel.numa_balancing"),
    "cpu_governor": KnobKind(_check_governor),
    "cpu_energy_preference": KnobKind(_check_energy_preference),
    "cpu_resume_latency": KnobKind(_check_resume_latency),
    "tuned_profile": KnobKind(_check_tuned_profile),
    "transparent_hugepage": KnobKind(_one_of("always", "madvise", "never")),
    "pcie_max_read_request": KnobKind(_one_of("128", "256", "512", "1024", "2048", "4096")),
    "gpu_persistence_mode": KnobKind(_one_of("Enabled", "Disabled")),
    "gpu_power_limit": KnobKind(_check_power_limit),
    "gpu_clocks": KnobKind(_check_clocks),
    "module_parameter": KnobKind(_check_anything, _PARAMETER, "MODULE.PARAMETER such as nvidia_uvm.uvm_disable_hmm"),
}
"""Every kind that a profile can name; the agent has an entry for each."""

_NAMED_KINDS = " or ".join(name for name, kind in KNOB_KINDS.items() if kind.name is not None)


def _check_kind(value: str) -> str:
    """A kind of knob."""
    if value not in KNOB_KINDS:
        raise ValueError(f"there is no knob {quoted(value)}; {did_you_mean(value, list(KNOB_KINDS))}")
    return value


def _spelling_hint(name: str, pattern: re.Pattern[str]) -> str:
    """For a path below /proc/sys or /sys/module, or the dash of a module's file name."""
    dotted = name.removeprefix("/proc/sys/").removeprefix("/sys/module/").replace("/parameters/", ".").replace("/", ".")
    return next((f": write {text}" for text in (dotted, dotted.replace("-", "_")) if pattern.fullmatch(text)), "")


def _check_pattern(value: str) -> str:
    """A shell pattern of a version, such as "6.8.*-pve"."""
    if not value or any(character.isspace() for character in value):
        raise ValueError(f'{quoted(value)} is not a shell pattern of a version, such as "6.8.*-pve"')
    return value


def _check_driver(value: str) -> str:
    """A shell pattern of a driver's version, such as "580.*"."""
    if value.isdigit():
        raise ValueError(f'{quoted(value)} fits no driver, whose version has more parts: write "{value}.*"')
    return value


VersionPattern = Annotated[OneLine, AfterValidator(_check_pattern)]


class Knob(StrictModel):
    """One knob and what it should be."""

    knob: Annotated[str, AfterValidator(_check_kind)]
    """Its kind, one of those in :data:`KNOB_KINDS`."""
    name: str = ""
    """Which one, for the kinds that have several."""
    place: PlaceKind = "host"
    """Whose it is; only a sysctl that the kernel keeps for each container can be a container's own."""
    value: str | None = None
    """As the kernel or nvidia-smi shows it; None: the knob is read and told, never set."""
    persist: bool = True
    """Whether `fab prep --persist` has it set at each boot."""
    why: OneLine = ""
    """For whoever reads the plan."""

    @property
    def persists(self) -> bool:
        """Whether there is a value to be set at each boot, and it is wanted there."""
        return self.persist and self.value is not None and self.knob != "module_parameter"

    @field_validator("name")
    @classmethod
    def _fits_the_kind(cls, name: str, info: ValidationInfo) -> str:
        kind = KNOB_KINDS.get(info.data.get("knob", ""))
        if kind is None:
            return name
        if kind.name is None:
            raise ValueError(f"only with knob: {_NAMED_KINDS}; {info.data['knob']} means all that the machine has")
        if kind.name.fullmatch(name) is None:
            raise ValueError(f"{quoted(name)} is not {kind.example}{_spelling_hint(name, kind.name)}")
        return name

    @field_validator("place")
    @classmethod
    def _is_where_the_knob_is(cls, place: PlaceKind, info: ValidationInfo) -> PlaceKind:
        kind, name = info.data.get("knob"), info.data.get("name", "")
        if place == "host" or kind is None:
            return place
        if kind != "sysctl":
            raise ValueError(f"only a sysctl can be a container's own, {kind} is the whole machine's: write place: host")
        if name and _A_CONTAINERS_OWN.fullmatch(name) is None:
            own = "net.*, kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* and user.*"
            raise ValueError(f"only {own} can be a container's own, {name} is the whole machine's: write place: host")
        return place

    @field_validator("value", mode="before")
    @classmethod
    def _is_a_value_of_the_kind(cls, value: Any, info: ValidationInfo) -> str:
        if isinstance(value, bool):
            raise ValueError('true and false are not what a knob shows: write 1 or 0, or in quotes what it shows, such as "Y"')
        if not isinstance(value, int | str):
            raise ValueError("expected text or a whole number: put it in quotes, as the kernel or nvidia-smi shows it")
        text = str(value)
        if not text:
            raise ValueError("is empty: remove the key to have the knob only read")
        if any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise ValueError("holds a line break, a tab or another control character: write several values with one space between them")
        if text != text.strip():
            raise ValueError(f"{quoted(text)} has spaces around it")
        kind = KNOB_KINDS.get(info.data.get("knob", ""))
        if kind is not None:
            kind.check(text)
        return text

    @field_validator("persist")
    @classmethod
    def _has_something_to_persist(cls, persist: bool, info: ValidationInfo) -> bool:
        if info.data.get("knob") == "module_parameter":
            raise ValueError("a module's parameter is never set here, at boot neither: it is for /etc/modprobe.d")
        if "value" in info.data and info.data["value"] is None:
            raise ValueError("only with value: a knob without one is only read")
        return persist

    @model_validator(mode="after")
    def _has_its_name(self) -> Self:
        kind = KNOB_KINDS[self.knob]
        if kind.name is not None and not self.name:
            raise ValueError(f"{self.knob} needs name, {kind.example}")
        return self


class Expect(StrictModel):
    """Versions that the profile was made for, as shell patterns. Read by `fab doctor`, never set."""

    kernel: VersionPattern | None = None
    """Of ``uname -r``."""
    driver: Annotated[VersionPattern, AfterValidator(_check_driver)] | None = None
    """Of the NVIDIA kernel module's version."""


class TuningProfile(StrictModel):
    """The values that knobs should have, in the order in which they are shown."""

    name: Name
    """What ``--profile`` and a host's `tuning` mean."""
    summary: Annotated[OneLine, Field(min_length=1)]
    """When to use it, in one line."""
    expect: Annotated[Expect, Field(default_factory=Expect)]
    """The versions that the values were chosen for."""
    knobs: Annotated[list[Knob], Field(min_length=1)]
    """The values, in the order in which they are shown."""

    def settings(self, place: PlaceKind) -> list[KnobSetting]:
        """The knobs of that place as they are sent to it."""
        from orchestrator.agent.wire_host import KnobSetting

        return [
            KnobSetting(
                kind=knob.knob,
                name=knob.name,
                value=knob.value,
                persist=knob.persists,
                place=knob.place,
                why=knob.why,
            )
            for knob in self.knobs
            if knob.place == place
        ]
