"""The room for the KV cache, against that of an earlier server.

A process left on a GPU doesn't fail a launch: it silently shrinks the KV cache. So does many an argument; only where nothing
but the backend was changed does a smaller one speak against the launch.
"""

import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.arguments import read_textually, textual_name
from orchestrator.agent.differences import OURS, PROXY_EXCEPTIONS, counts, steers
from orchestrator.agent.failure_log import read_lines
from orchestrator.agent.previous import AS_FOUND
from orchestrator.agent.steps import CAPACITY_CHECK
from orchestrator.agent.wire import Outcome, Verdict

_FREE = re.compile(r"Load weight begin\. avail mem=([\d.]+) GB")
_AS_FREE = 0.95
"""Of the memory that was free for another launch: launches alone differ by some hundred MB of CUDA's own."""

_HEAD_BYTES = 1 << 20

_HAS_NO_SHARE = frozenset({"host", "port", "config"})
"""Arguments that have nothing to do with memory and differ when a server that was started by hand is taken over."""


class Known(NamedTuple):
    """The capacity to compare with: max_total_num_tokens, whose it is, and what was changed since besides the backend.

    `free`: :func:`free_at_first` of that launch, None where nobody knows.
    """

    tokens: Optional[int]
    whose: str
    changed: Sequence[str] = ()
    free: Optional[float] = None


def free_at_first(log: Sequence[str]) -> Optional[float]:
    """GPU memory in GB that was free when a launch began to load weights, on the fullest GPU; None where the log does not say.

    All versions log it for each rank. A draft model's comes later and counts nothing.
    """
    first: Dict[str, float] = {}
    for line in read_lines(log):
        found = _FREE.match(line.text)
        if found is not None:
            first.setdefault(" ".join(line.ranks), float(found.group(1)))
    return min(first.values(), default=None)


def read_head(path: Path) -> List[str]:
    """The lines with which a log begins; empty where there is none."""
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def verdict(known: Known, now: Optional[int], policy: wire.Policy, free: Optional[float] = None) -> Verdict:
    """Judge max_total_num_tokens (SGLang 0.5.6 to 0.5.23 show it in /server_info).

    `free`: :func:`free_at_first` of the launch. Where that is less than it was for the other one, other processes hold it.
    """
    if not known.tokens or now is None:
        shown = "unknown" if now is None else now
        return Verdict(CAPACITY_CHECK, Outcome.UNKNOWN, f"max_total_num_tokens is {shown}, with nothing to compare it with")
    share = now / known.tokens
    detail = f"max_total_num_tokens {now}, {share:.0%} of the {known.tokens} of {known.whose}"
    if share >= policy.capacity_warn:
        return Verdict(CAPACITY_CHECK, Outcome.PASS, detail)
    foreign = known.free is not None and free is not None and free < known.free * _AS_FREE
    evidence = [f"free before the weights: {free:g} GB, and {known.free:g} GB for {known.whose}"] if foreign else []
    if foreign:
        detail += "; other processes hold GPU memory"
    if known.changed:
        return Verdict(CAPACITY_CHECK, Outcome.WARN, f"{detail}; the arguments changed too: {', '.join(known.changed)}", evidence)
    if share >= policy.capacity_fail:
        return Verdict(CAPACITY_CHECK, Outcome.WARN, detail, evidence)
    if foreign:
        step = "see who holds it: `nvidia-smi` on the host; a server of before may not have released it yet"
        return Verdict(CAPACITY_CHECK, Outcome.REFUSE, detail, evidence, step)
    step = (
        "look for what else holds GPU memory (nvidia-smi); if the backend needs that much, lower `capacity_fail` under `policy:` "
        f"of the service (now {policy.capacity_fail:g})"
    )
    return Verdict(CAPACITY_CHECK, Outcome.REFUSE, detail, next_step=step)


def changed_beyond_backend(before: wire.Launch, after: wire.Launch) -> List[str]:
    """What differs between two launches other than what their backend profiles set: arguments and variables, by name.

    Of a server that was started by hand only those variables count that are known to steer one: the others are its login's.
    """
    flags = {textual_name(flag) for launch in (before, after) for flag in launch.backend_flags} | _HAS_NO_SHARE
    old, new = (_less(read_textually(launch.arguments).values, flags) for launch in (before, after))
    arguments = ["--" + name.replace("_", "-") for name in _changed(old, new)]
    set_by_backend = {*before.backend_environment, *after.backend_environment, *OURS, *PROXY_EXCEPTIONS}
    old, new = (_less(launch.environment, set_by_backend) for launch in (before, after))
    variables = [name for name in _changed(old, new) if before.backend != AS_FOUND or name in new or (counts(name) and steers(name))]
    return [*(["the interpreter"] if before.python != after.python else []), *arguments, *variables]


def _less(values: Dict[str, Any], names: Any) -> Dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _changed(old: Dict[str, Any], new: Dict[str, Any]) -> List[str]:
    return sorted(name for name in set(old) | set(new) if old.get(name) != new.get(name))
