"""A stand-in for an SGLang server's process tree: main, resource tracker, two spawned children, and a listening socket.

$STANDIN holds JSON: `loading` (never listens, no SIGTERM handler, no parent-death signal: the first half minute of a real one),
`ignore_term` (nobody obeys SIGTERM), `escape` (one child leaves the session), `exit_after` (seconds from SIGTERM to the end),
`shared_memory` (a file in /dev/shm that the children map), `inner_port` (another port it listens on for itself), `lingers` (its first child
has a scheduler's title, and main lives on for these seconds after its children have ended).

With ``--gated-launch-port`` its first child waits at a gate first. `silent` (it logs nothing of that), `dies_at_gate` (seconds until its
main process ends there with status 3), `opens_itself` (seconds until it goes on by itself), `deaf` (it takes an activation and stays).
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
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SETTINGS = json.loads(os.environ.get("STANDIN", "{}"))
PR_SET_PDEATHSIG = 1
GATE = sys.argv[sys.argv.index("--gated-launch-port") + 1 :][:1] if "--gated-launch-port" in sys.argv else []


def say(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


def child(number: int, started: "multiprocessing.synchronize.Event", through: "multiprocessing.synchronize.Event") -> None:
    if not SETTINGS.get("loading"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if SETTINGS.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if SETTINGS.get("escape") and number == 0:
        os.setsid()
    held = hold_shared_memory(SETTINGS.get("shared_memory"))
    started.set()
    if number == 0 and GATE:
        wait_at_gate(int(GATE[0]))
        through.set()
    if number == 0 and SETTINGS.get("lingers"):
        os.execv(sys.executable, ["sglang::scheduler", "-c", "import time; time.sleep(300)"])
    time.sleep(300)
    del held


def wait_at_gate(port: int) -> None:
    """As srt/distributed/gated_launch.py, 0.5.23: with its port taken it says that it waits, and waits for ever."""
    activated = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200 if self.path == "/health" else 404)

        def do_POST(self) -> None:
            if self.path == "/gate/activate" and not SETTINGS.get("deaf"):
                activated.set()
            self.answer(200 if self.path == "/gate/activate" else 404)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"OK")

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = HTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    except OSError:
        pass
    log("Gated launch waiting for activation. rank=0")
    began = time.monotonic()
    while not activated.is_set() and time.monotonic() - began < SETTINGS.get("opens_itself", 300):
        time.sleep(0.05)
    log(f"Gated launch activated. elapsed={time.monotonic() - began:.2f} s")


def log(text: str) -> None:
    if not SETTINGS.get("silent"):
        say(f"[2026-11-30 12:00:00 TP0] {text}")


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
    through = context.Event()
    children = [context.Process(target=child, args=(number, event, through), daemon=True) for number, event in enumerate(events)]
    for process in children:
        process.start()
    for event in events:
        event.wait()
    if GATE and not through.wait(SETTINGS.get("dies_at_gate", 300)):
        sys.exit(3)
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
    time.sleep(SETTINGS.get("lingers", 0))
    del listeners
    sys.exit(0)


if __name__ == "__main__":
    main()
