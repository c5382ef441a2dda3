"""Activates the gate on a port the moment that it is open, as whoever reaches it may. ``opens_gate.py PORT``"""

from __future__ import annotations

import http.client
import sys
import time

while True:
    gate = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5.0)
    try:
        gate.request("POST", "/gate/activate")
        gate.getresponse().read()
        break
    except OSError:
        time.sleep(0.005)
    finally:
        gate.close()
