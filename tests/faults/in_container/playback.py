"""A server that fails as one did: it writes that one's log and ends as it ended. ``playback.py LOG STATUS ...``"""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as stream:
        sys.stderr.write(stream.read())
    sys.stderr.flush()
    time.sleep(0.6)
    status = int(sys.argv[2])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if status != -9 else None
        os.kill(os.getpid(), -status)
        time.sleep(10)
    sys.exit(status)


main()
