"""What a verb does to the process is undone after each test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A verb that has ended badly ignores Ctrl-C for the rest of its process."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
