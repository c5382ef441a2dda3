from __future__ import annotations

import os
import signal

import pytest

from orchestrator.agent.waiter import exit_words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "success exited 0"),
        (2 << 8, "exit-code exited 2"),
        (signal.SIGKILL, "signal killed KILL"),
        (signal.SIGTERM, "success killed TERM"),
        (signal.SIGABRT | 0x80, "core-dump dumped ABRT"),
        (40, "signal killed 40"),
    ],
)
def test_exit_words(status: int, words: str) -> None:
    assert exit_words(status) == words
    assert os.WIFEXITED(status) == ("exited" in words)
