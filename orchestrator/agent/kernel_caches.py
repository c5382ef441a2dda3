"""Whether the caches of compiled kernels are cold for a launch: a load may then take many times as long, and rightly so.

A cache is cold when its folder is missing or empty, or holds nothing newer than the packages that its kernels come from. The folders
are those of FlashInfer 0.6, Triton 3.6, torch 2.11 and SGLang 0.5.23 (``srt/environ.py``, ``layers/deep_gemm_wrapper``).
"""

import os
import re
from typing import Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from orchestrator.agent import wire
from orchestrator.agent.installation import find_interpreter, site_folders
from orchestrator.agent.service_python import ServicePython

COLD_FACT = "cold caches"
"""The fact kept of a verified launch: why caches were cold when it began to load, an empty list when they were warm."""

_MOST_ENTRIES = 5000
"""A cache on a slow network file system must not hold up a start."""
_DEPTH = 4
"""FlashInfer's kernels lie in .cache/flashinfer/VERSION/ARCHITECTURE/cached_ops/KERNEL."""

_DISTRIBUTION = re.compile(r"([A-Za-z0-9_.]+?)-[^-]+\.dist-info$")


class _Cache(NamedTuple):
    """`packages` are those whose installation makes it stale; where none but SGLang is there, nothing uses it."""

    name: str
    packages: Sequence[str]
    folders: Callable[[Mapping[str, str], str, str], List[str]]
    used: Callable[[wire.Launch], bool]


def _flashinfer(environment: Mapping[str, str], home: str, user: str) -> List[str]:
    return [os.path.join(environment.get("FLASHINFER_WORKSPACE_BASE", home), ".cache", "flashinfer")]


def _triton(environment: Mapping[str, str], home: str, user: str) -> List[str]:
    return [environment.get("TRITON_CACHE_DIR") or os.path.join(environment.get("TRITON_HOME", home), ".triton", "cache")]


def _deep_gemm(environment: Mapping[str, str], home: str, user: str) -> List[str]:
    named = environment.get("SGLANG_DG_CACHE_DIR") or environment.get("DG_JIT_CACHE_DIR")
    if named:
        return [named]
    cache = os.path.join(home, ".cache")
    under = environment.get("SGLANG_CACHE_DIR", os.path.join(cache, "sglang"))
    return [os.path.join(under, "deep_gemm"), os.path.join(cache, "deep_gemm"), os.path.join(home, ".deep_gemm")]


def _inductor(environment: Mapping[str, str], home: str, user: str) -> List[str]:
    return [environment.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(environment.get("TMPDIR", "/tmp"), f"torchinductor_{user}")]  # noqa: S108


def _runs_deep_gemm(launch: wire.Launch) -> bool:
    return any("deep_gemm" in word for word in launch.arguments)


def _always(_launch: wire.Launch) -> bool:
    return True


_CACHES = (
    _Cache("FlashInfer", ("flashinfer_python", "flashinfer"), _flashinfer, _always),
    _Cache("Triton", ("triton",), _triton, _always),
    _Cache(
        "DeepGEMM",
        ("deep_gemm", "sgl_kernel", "sglang_kernel"),
        _deep_gemm,
        _runs_deep_gemm,
    ),
    _Cache("torch inductor", ("torch",), _inductor, lambda launch: "--enable-torch-compile" in launch.arguments),
)


def why_cold(launch: wire.Launch, home: str, user: str) -> List[str]:
    """Why each cache that the launch uses is cold; empty when all are warm, and where it can't be told which packages are installed.

    Args:
        launch: its environment, interpreter and arguments count.
        home, user: of who runs the server, unless the launch's environment says otherwise.
    """
    home = launch.environment.get("HOME", home)
    installed = _installed(launch)
    reasons = []
    for cache in _CACHES:
        times = [installed[name] for name in cache.packages if name in installed]
        if not times or not cache.used(launch):
            continue
        since = max([*times, installed.get("sglang", 0.0)])
        reason = _why(cache.folders(launch.environment, home, user), since)
        if reason is not None:
            reasons.append(f"{cache.name}: {reason}")
    return reasons


def _installed(launch: wire.Launch) -> Mapping[str, float]:
    """Package -> when it was installed, by the folder of its metadata; empty for an interpreter whose search path is not plain to see."""
    interpreter = find_interpreter(ServicePython(launch.python, dict(launch.environment), launch.user))
    found = {}
    for folder in site_folders(interpreter) if interpreter is not None else ():
        for entry in _entries(folder):
            match = _DISTRIBUTION.match(entry.name)
            moment = None if match is None else _changed(entry)
            if match is not None and moment is not None:
                found[match.group(1).lower().replace(".", "_")] = moment
    return found


def _why(folders: Sequence[str], since: float) -> Optional[str]:
    newest: Optional[float] = None
    for folder in folders:
        for moment in _moments(folder, _DEPTH, [_MOST_ENTRIES]):
            if moment >= since:
                return None
            newest = moment if newest is None else max(newest, moment)
    if newest is None:
        return f"{folders[0]} is missing or empty"
    return f"nothing in {folders[0]} is newer than the installed packages"


def _moments(folder: str, depth: int, left: List[int]) -> Iterator[float]:
    """When each entry below a folder was changed, to a depth."""
    for entry in _entries(folder):
        left[0] -= 1
        moment = _changed(entry)
        if left[0] < 0 or moment is None:
            return
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder:
            yield moment
        elif depth > 0:
            yield from _moments(entry.path, depth - 1, left)


def _entries(folder: str) -> "List[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _changed(entry: "os.DirEntry[str]") -> Optional[float]:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return None
