"""All tests in two halves side by side: ``python -m tests.halves``. Most of those on real parts wait for what they have started.

Each line comes with the name of its half as soon as it is whole. The exit status is that of the half which went worse.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

HALVES = {
    "here": ("tests/unit", "tests/agent", "tests/lab", "tests/browser"),
    "boxes": ("tests/ssh", "tests/lxc", "tests/faults", "tests/sglang"),
}


def main() -> int:
    running = {
        name: subprocess.Popen([sys.executable, "-m", "pytest", *folders], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name, folders in HALVES.items()
    }

    def pass_on(number: int, _frame: object) -> None:
        for process in running.values():
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, lambda *_: None)  # a terminal tells them itself
    tellers = [threading.Thread(target=_tell, args=half) for half in running.items()]
    for teller in tellers:
        teller.start()
    codes = [process.wait() for process in running.values()]
    for teller in tellers:
        teller.join()
    return max(abs(code) for code in codes)


def _tell(name: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        sys.stdout.write(f"{name:5} | {line}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
