"""A server that needs a lock of Python's multiprocessing, which lies in /dev/shm, and says why it can't have it."""

from __future__ import annotations

import multiprocessing
import time

lock = multiprocessing.get_context("spawn").Lock()
time.sleep(86400)
