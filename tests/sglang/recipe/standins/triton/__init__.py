"""Stand-in for triton (1 GB installed): with ``--device cpu`` kernel files are imported, never launched."""

import importlib

from _standin import install

__version__ = "3.9.0"


def cdiv(a: int, b: int) -> int:
    """Real: called at import time."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Real: called at import time."""
    return 1 << max(n - 1, 0).bit_length()


class _Driver:
    """What triton's runtime says on a machine without a GPU; torch asks."""

    @property
    def active(self) -> None:
        raise RuntimeError("0 active drivers ([]). There should only be one.")


install(__name__, lenient=True)

importlib.import_module("triton.runtime").driver = _Driver()
