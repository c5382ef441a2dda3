"""What can be set about the stand-in, and where it is read from.

Two sources, the later wins: ``standin.json`` beside the virtual environment's ``pyvenv.cfg`` (written by the lab, one for
each lab host), then the environment: field ``time_scale`` is ``SGLANG_STANDIN_TIME_SCALE``. An unset field leaves the
stand-in behaving like the real server as it was captured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "SGLANG_STANDIN_"

PHASES = ("imports", "child_imports", "distributed", "gate", "weights", "kv_cache", "autotune", "graph_capture", "warm_up")


@dataclass(frozen=True)
class Settings:
    """All of them; the seconds below are before scaling."""

    version: str = ""
    """Claim to be an earlier SGLang: its parser knows no flag that came later (`since` in flags.json). Empty: what it is."""
    time_scale: float = 1.0
    """Multiplies every pause, deadline and poll of the server (imports, 5 s drain poll, 60 s coredump wait), not decoding."""
    tokens_per_second: float = 0.0
    """Decode speed of one stream; 0 means the table in backends.py."""
    prefill_tokens_per_second: float = 20000.0
    first_token_seconds: float = 0.03
    first_sampled_seconds: float = 0.0
    """How much longer the first request with a temperature takes: on an H200 with cold caches 123 s of silent JIT."""
    slow_start: float = 0.0
    """Seconds added to the weights."""
    hang_at: str = ""
    """Stop for ever at the beginning of this phase (see PHASES). Only a gated launch has `gate`, which begins before its port is bound."""
    fail_at: str = ""
    """The schedulers raise an out-of-memory error at the beginning of this phase (not `imports`, not `warm_up`)."""
    die_at_gate: float = 0.0
    """The first scheduler dies by SIGKILL this long after it has come to its gate, unless it was activated."""
    activated_early: bool = False
    """Somebody else activates it the moment that its gate is open."""
    activation_lost: bool = False
    """The gate answers an activation as ever, and nobody goes on."""
    crash_after: float = 0.0
    """The first scheduler dies by SIGKILL this long after it was loaded."""
    capacity: float = 1.0
    """Multiplies the KV cache's tokens."""
    garbage: bool = False
    """Repetitive text and log-likelihoods far off, as broken FP4 kernels give, with every status 200."""
    ignore_sigterm: bool = False
    """No process of the server ends by SIGTERM."""
    escapee: bool = False
    """The first scheduler starts a child in a session of its own, as a JIT compiler might, which outlives all of them."""
    shared_memory: bool = False
    """The first scheduler maps a /dev/shm/psm_* file and unlinks it only in a clean exit."""
    compute_capability: str = ""
    """Of the host's GPUs; empty: there are none, and none is asked for."""
    gpu_memory_mib: int = 0
    processes: str = ""
    """The folder where each process records its number, start time and GPU memory: what nvidia-smi and the lab read."""

    def is_before(self, version: str) -> bool:
        """Whether it claims to be an SGLang before `version`."""
        return bool(self.version and version) and _numbers(self.version) < _numbers(version)

    def scaled(self, seconds: float) -> float:
        return seconds * self.time_scale


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def load_settings() -> Settings:
    """Read the two sources.

    Raises:
        ValueError: an unknown name or a value that is not of its type.
    """
    values: dict[str, Any] = {}
    beside = Path(sys.prefix) / "standin.json"
    if beside.exists():
        values.update(json.loads(beside.read_text(encoding="utf-8")))
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name, text in os.environ.items():
        if name.startswith(PREFIX):
            values[name[len(PREFIX) :].lower()] = text
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        raise ValueError(f"unknown stand-in setting {unknown[0]!r}; there are: {', '.join(sorted(defaults))}")
    return Settings(**{name: _convert(defaults[name], value) for name, value in values.items()})


def _convert(default: Any, value: Any) -> Any:
    if isinstance(default, bool):
        return str(value).lower() in ("1", "true", "yes")
    return type(default)(value)
