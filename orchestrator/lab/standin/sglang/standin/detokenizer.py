"""The process ``sglang::detokenizer``: turns the scheduler's tokens into text on their way to the main process."""

from __future__ import annotations

import signal
import time
from typing import Any

from sglang.standin import text
from sglang.standin.loading import SECONDS
from sglang.standin.plan import Plan
from sglang.standin.process import Record, die_with_parent, set_title


def run_detokenizer(plan: Plan, source: Any, destination: Any) -> None:
    """Entry point of the child process.

    An orphan never ends by itself: the real one waits on sockets that nobody will ever write to.
    """
    if plan.settings.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Record(plan.settings.processes, "detokenizer")
    time.sleep(plan.settings.scaled(SECONDS["child_imports"]))
    die_with_parent()
    set_title("sglang::detokenizer")
    try:
        while True:
            message = source.recv()
            if "tokens" in message:
                message["text"] = "".join(text.decode(token) for token in message["tokens"])
            destination.send(message)
    except (EOFError, OSError):
        while True:
            signal.pause()
