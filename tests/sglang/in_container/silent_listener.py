"""Runs in the container: holds a port and never answers.

usage: silent_listener.py PORT [WORD]   with WORD, only while a server runs that has it in its command line.
"""

import socket
import sys
import time
from pathlib import Path


def server_runs(word: str) -> bool:
    """Whether an SGLang server has `word` among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang.launch_server" in arguments and word.encode() in arguments:
            return True
    return False


def take(port: int) -> socket.socket:
    """The port, as soon as nobody else has it."""
    while True:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            listener.close()
            time.sleep(0.002)
        else:
            return listener


def main() -> None:
    port, word = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    while word is not None and not server_runs(word):
        time.sleep(0.05)
    with take(port) as listener:
        listener.listen()
        print("listening", flush=True)
        while word is None or server_runs(word):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
