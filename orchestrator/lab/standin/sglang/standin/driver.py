"""A made-up CUDA driver for the lab's Python: ``ctypes.CDLL("libcuda.so.1")`` finds as many GPUs as the lab host has.

Imported by a ``.pth`` file of the lab's virtual environments, and by nothing else: whoever asks CUDA there (a preflight does)
gets an answer although this machine may have no driver at all. ``cu_init`` in the host's ``gpus.json`` is cuInit's, to see it fail.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBRARY = "libcuda.so.1"


class _Driver:
    """The two calls that say whether CUDA works."""

    def cuInit(self, _flags: int) -> int:  # noqa: N802 - the driver's name
        return _described("cu_init")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = _described("count")
        return 0


def _described(name: str) -> int:
    """A number of the host's GPUs; 0 where none is given."""
    described = Path(sys.prefix).parent / "gpus.json"
    try:
        return int(json.loads(described.read_text(encoding="utf-8"))[name])
    except (OSError, ValueError, KeyError):
        return 0


def _replace(module: ModuleType) -> None:
    real: Any = module.CDLL

    def load(name: Any = None, *args: Any, **options: Any) -> Any:
        return _Driver() if name == _LIBRARY else real(name, *args, **options)

    module.__dict__["CDLL"] = load


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for ctypes to be imported, so that every other start of this Python stays as quick as it is."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "ctypes":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                execute(module)
                _replace(module)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


if "ctypes" in sys.modules:
    _replace(sys.modules["ctypes"])
else:
    sys.meta_path.insert(0, _Finder())
