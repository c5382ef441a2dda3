"""A stand-in for an SGLang server's process tree: main, resource tracker, two spawned children, and a listening socket.

$STANDIN holds JSON: `loading` (never listens, no SIGTERM handler, no parent-death signal: the first half minute of a real one),
`ignore_term` (nobody obeys SIGTERM), `escape` (one child leaves the session), `exit_after` (seconds from SIGTERM to the end),
`shared_memory` (a file in /dev/shm that the children map), `inner_port` (another port it listens on for itself).
"""

import ctypes
import json
import mmap
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import socket
import sys
import time

SETTINGS = json.loads(os.environ.get("STANDIN", "{}"))
PR_SET_PDEATHSIG = 1


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def child(number: int, started: "multiprocessing.synchronize.Event") -> None:
    if not SETTINGS.get("loading"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if SETTINGS.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if SETTINGS.get("escape") and number == 0:
        os.setsid()
    held = hold_shared_memory(SETTINGS.get("shared_memory"))
    started.set()
    time.sleep(300)
    del held


def hold_shared_memory(path: str | None) -> mmap.mmap | None:
    if path is None:
        return None
    with open(path, "w+b") as stream:
        stream.truncate(4096)
        return mmap.mmap(stream.fileno(), 4096)


def listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def main() -> None:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    context = multiprocessing.get_context("spawn")
    events = [context.Event() for _ in range(2)]
    children = [context.Process(target=child, args=(number, event), daemon=True) for number, event in enumerate(events)]
    for process in children:
        process.start()
    for event in events:
        event.wait()
    if SETTINGS.get("loading"):
        say("loading")
        time.sleep(300)
    asked: list[float] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
    listeners = [listen(port), *(listen(inner) for inner in [SETTINGS.get("inner_port")] if inner)]
    say("ready")
    while not asked or SETTINGS.get("ignore_term"):
        time.sleep(0.02)
    time.sleep(SETTINGS.get("exit_after", 0))
    for process in children:
        process.kill()
        process.join()
    del listeners
    sys.exit(0)


if __name__ == "__main__":
    main()
