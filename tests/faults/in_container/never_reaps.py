"""Starts a command and never asks how it ended, so that it stays a zombie. ``never_reaps.py COMMAND...``"""

from __future__ import annotations

import subprocess
import sys
import time

child = subprocess.Popen(sys.argv[1:], start_new_session=True)
time.sleep(86400)
