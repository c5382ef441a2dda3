"""Takes a port the moment that it is free, and keeps it. ``thief.py PORT``"""

from __future__ import annotations

import socket
import sys
import time

while True:
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        thief.bind(("127.0.0.1", int(sys.argv[1])))
        thief.listen()
        break
    except OSError:
        thief.close()
        time.sleep(0.001)
time.sleep(86400)
