"""From the arguments to the exit code: what launch_server and uvicorn do one after the other."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from sglang.srt.server_args import ServerArgs
from sglang.standin.engine import CRASHED, DRAINED, Engine
from sglang.standin.http_server import STARTING, UP, Server
from sglang.standin.loading import enter_phase
from sglang.standin.log import log, uvicorn
from sglang.standin.plan import make_plan
from sglang.standin.process import Record
from sglang.standin.ranks import Ranks, serve_rank
from sglang.standin.settings import Settings

_WARM_UP_TRIES = 120
_WARM_UP_POLL = 1.0
_WARM_UP_TIMEOUT = 5.0
_BIND_FAILED = 3
"""uvicorn's exit code when its start-up fails."""


def run_server(server_args: ServerArgs, settings: Settings) -> int:
    """Serve until told to stop; the exit code of the process, unless it kills itself (-9)."""
    plan = make_plan(server_args, settings)
    Record(settings.processes, "main")
    log("server_args=" + repr(plan.arguments))
    engine = Engine(plan)
    try:
        log("Using default HuggingFace chat template with detected content format: string")
        ranks = Ranks(plan)
        ranks.meet(engine)
        loaded = engine.wait_until_loaded()
        return serve_rank(engine) if ranks.rank else _serve(engine, loaded, ranks)
    finally:
        engine.kill_children()


def _serve(engine: Engine, loaded: dict[str, Any], ranks: Ranks) -> int:
    """Uvicorn's order: the application starts (and with it the warm-up), only then the port is bound."""
    engine.begin_serving()
    status = [STARTING]
    uvicorn(f"Started server process [{os.getpid()}]")
    uvicorn("Waiting for application startup.")
    warm_up = threading.Thread(target=_warm_up, args=(engine, status), daemon=True)
    warm_up.start()
    uvicorn("Application startup complete.")
    address = (engine.plan["host"], int(engine.plan["port"]))
    try:
        server = Server(address, engine, loaded, status)
    except OSError as error:
        return _fail_to_bind(engine, address, error, warm_up)
    uvicorn(f"Uvicorn running on http://{address[0]}:{address[1]} (Press CTRL+C to quit)")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
    reason = engine.next_event()
    if reason == CRASHED:
        engine.crash()
    ranks.shut_down()
    if reason == DRAINED:
        engine.release_schedulers()
    server.socket.close()
    uvicorn("Shutting down")
    uvicorn("Waiting for application shutdown.")
    uvicorn("Application shutdown complete.")
    uvicorn(f"Finished server process [{os.getpid()}]")
    return 0


def _fail_to_bind(engine: Engine, address: tuple[str, int], error: OSError, warm_up: threading.Thread) -> int:
    """The trap: the shutdown waits for the warm-up, which asks whoever holds the port, and says "ready" when it answers."""
    reason = os.strerror(error.errno or 0).lower()
    uvicorn(f"[Errno {error.errno}] error while attempting to bind on address {address!r}: {reason}", "ERROR")
    uvicorn("Waiting for application shutdown.")
    while warm_up.is_alive():
        warm_up.join(timeout=0.05)
        if not engine.events.empty() and engine.events.get() == CRASHED:
            engine.crash()
    uvicorn("Application shutdown complete.")
    return _BIND_FAILED


def _warm_up(engine: Engine, status: list[str]) -> None:
    """_execute_server_warmup: over HTTP, to the configured address, whoever listens there."""
    plan = engine.plan
    if plan["skip_server_warmup"]:
        status[0] = UP
        log("The server is fired up and ready to roll!")
        return
    host = plan["host"] if plan["host"] not in ("", "0.0.0.0") else "127.0.0.1"  # noqa: S104 - compared, not bound
    url = f"http://{host}:{plan['port']}"
    enter_phase(plan, "warm_up")
    for _ in range(_WARM_UP_TRIES):
        time.sleep(plan.settings.scaled(_WARM_UP_POLL))
        if _ask(url + "/model_info", plan["api_key"], plan.settings.scaled(_WARM_UP_TIMEOUT)):
            break
    else:
        log("Initialization failed. warmup error: no answer")
        engine.kill_everything()
    body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    if not _ask(url + "/generate", plan["api_key"], 600.0, body):
        log("Initialization failed. warmup error: /generate")
        engine.kill_everything()
    _ask(url + "/freeze_gc", plan["api_key"], 5.0, {})
    status[0] = UP
    log("The server is fired up and ready to roll!")


def _ask(url: str, key: str | None, seconds: float, body: dict[str, Any] | None = None) -> bool:
    """Whether a GET, or a POST of `body`, was answered with 200. Honours http_proxy, as the real one does."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=seconds) as answer:  # noqa: S310
            answer.read()
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False
