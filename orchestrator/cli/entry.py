"""Where the console script begins: before anything heavy is imported."""

from __future__ import annotations

import atexit
import gc


def main() -> None:
    """Run the program with the garbage collector out of the way of imports and of the exit.

    Imports make many objects and hardly any garbage, and a process that is about to end needs no collection: together they
    were a third of a short verb's time. While a verb runs, the collector works as usual.
    """
    gc.disable()
    from orchestrator.cli.program import main as run

    gc.freeze()
    gc.enable()
    atexit.register(gc.freeze)
    run()
