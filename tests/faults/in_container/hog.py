"""A server whose scheduler takes more main memory than there is; what it says then is SGLang's (0.5.23). ``hog.py MIB ...``"""

from __future__ import annotations

import os
import sys
import time

child = os.fork()
if child == 0:
    time.sleep(1.5)
    held = [b"x" * (1 << 20) for _ in range(int(sys.argv[1]))]
    time.sleep(86400)
_, status = os.waitpid(child, 0)
time.sleep(2.0)
sys.exit(f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {os.waitstatus_to_exitcode(status)}).")
