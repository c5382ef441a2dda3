"""The real SGLang as a process of this machine, on loopback: for what needs no container, such as timing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rig.commands import wait_for
from tests.rig.sglang import ARGUMENTS, ENVIRONMENT, START_SECONDS, SglangEnvironment, flags, healthy
from tests.rig.tiny_model import write_model


@dataclass(frozen=True)
class LocalServer:
    """A server of the tiny model that answers."""

    port: int
    pid: int
    log: Path
    model: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def local_sglang(
    environment: SglangEnvironment, folder: Path, *extra: str, variables: dict[str, str] | None = None
) -> Iterator[LocalServer]:
    """Start a server with its log in `folder` and wait until it is healthy; end it with all that belongs to it.

    Raises:
        TimeoutError: with the end of its log.
    """
    model = write_model(folder / "model")
    log = folder / "server.log"
    port = _free_port()
    command = [str(environment.python), "-m", "sglang.launch_server", "--model-path", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), *flags(ARGUMENTS), *extra]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **ENVIRONMENT, **(variables or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = LocalServer(port, process.pid, log, model)
    try:
        try:
            wait_for(f"SGLang on port {port}", lambda: process.poll() is not None or healthy(server.url), START_SECONDS, 0.5)
            if process.poll() is not None:
                raise TimeoutError(f"it ended with {process.returncode}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}") from error
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
