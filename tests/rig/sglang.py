"""The real SGLang on CPU: where its environment is, what a server of the tiny model is started with, and starting one by hand.

What each setting is for is measured: without SGLANG_USE_CPU_ENGINE it asks for a GPU, without --max-total-tokens the KV cache takes
70 % of the memory, without --sleep-on-idle an idle server burns a core.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.workspace import read_start_time

VARIABLE = "ORCHESTRATOR_SGLANG_VENV"
"""Names an environment made elsewhere."""
REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0
"""A start takes 20 s on a quiet machine of two cores, minutes on one where much else runs."""

ENVIRONMENT: Mapping[str, str] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "tiny_models",
}
ARGUMENTS: Mapping[str, str | int | bool] = {
    "--load-format": "dummy",
    "--device": "cpu",
    "--max-total-tokens": 8192,
    "--max-running-requests": 16,
    "--sleep-on-idle": True,
    "--enable-metrics": True,
}


@dataclass(frozen=True)
class SglangEnvironment:
    """A virtual environment with SGLang, and the Python installation it was made from."""

    venv: Path
    base: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin/python"

    @property
    def folders(self) -> list[Path]:
        """What a container must see of this machine beyond /usr, under the same paths."""
        return [path for path in (self.venv, self.base) if not path.is_relative_to("/usr")]


def find_environment() -> SglangEnvironment | None:
    """The environment that ``make sglang-cpu`` made, or the one that $ORCHESTRATOR_SGLANG_VENV names; None where there is none."""
    venv = Path(os.environ.get(VARIABLE) or REPOSITORY / ".cache/sglang-cpu").absolute()
    if not (venv / "bin/python").exists():
        return None
    settings = configparser.ConfigParser()
    settings.read_string("[venv]\n" + (venv / "pyvenv.cfg").read_text(encoding="utf-8"))
    return SglangEnvironment(venv, Path(settings["venv"]["home"]).parent)


def flags(arguments: Mapping[str, str | int | bool]) -> list[str]:
    """Long flags and their values as the words of a command line."""
    return [word for flag, value in arguments.items() for word in ((flag,) if value is True else (flag, str(value)))]


@dataclass(frozen=True)
class SglangService:
    """The tiny model served in a container."""

    container: Container
    environment: SglangEnvironment
    model: str

    def command(self, port: int, *extra: str, model: str | None = None) -> list[str]:
        """The argument vector of a server that listens on every address of the container."""
        places = ["--model-path", model or self.model, "--host", "0.0.0.0", "--port", str(port)]
        return [str(self.environment.python), "-m", "sglang.launch_server", *places, *flags(ARGUMENTS), *extra]

    def start_by_hand(self, port: int, *extra: str) -> ServerByHand:
        """Start a server as a person would in a shell that they then close: nohup, an ampersand, a log file."""
        variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        command = shlex.join(self.command(port, *extra))
        log = f"/root/server-{port}.log"
        pid = self.container.shell(f"{variables} nohup {command} >{log} 2>&1 </dev/null &\necho $!\n")
        return ServerByHand(self.container, port, int(pid.stdout), log)

    def start_as_unit(self, unit: str, port: int, *extra: str) -> ServerByHand:
        """Start a server as somebody's own systemd unit, which systemd starts again whenever it ends."""
        variables = "".join(f"Environment={name}={value}\n" for name, value in ENVIRONMENT.items())
        log = f"/root/server-{port}.log"
        self.container.write(
            f"/etc/systemd/system/{unit}",
            f"[Service]\n{variables}ExecStart={shlex.join(self.command(port, *extra))}\n"
            f"Restart=always\nRestartSec=1\nStandardOutput=append:{log}\nStandardError=append:{log}\n",
        )
        self.container.run("systemctl", "daemon-reload")
        self.container.run("systemctl", "start", unit)
        pid = self.container.run("systemctl", "show", "--value", "--property=MainPID", unit)
        return ServerByHand(self.container, port, int(pid.stdout), log)


@dataclass(frozen=True)
class ServerByHand:
    """A server that the program under test did not start. `pid` is its main process, as numbered in the container."""

    container: Container
    port: int
    pid: int
    log: str

    @property
    def url(self) -> str:
        return f"http://{self.container.address}:{self.port}"

    def serving(self) -> bool:
        """Whether it answers; /v1/models costs no generation, but answers during the warm-up too."""
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=2.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def generate(self, tokens: int = 4) -> int:
        """How many tokens it generated when asked for `tokens`."""
        return generate(self.url, tokens)

    def wait_serving(self) -> ServerByHand:
        """Wait until /health is 200, which is after the warm-up.

        Raises:
            TimeoutError: with the end of its log.
        """
        try:
            wait_for(f"SGLang on port {self.port}", lambda: healthy(self.url), START_SECONDS, 0.5)
        except TimeoutError as error:
            log = self.container.shell(f"tail -n 20 {self.log} | cut -c-300", check=False).stdout
            raise TimeoutError(f"{error}\n{log}") from error
        return self

    def kill(self) -> None:
        """End it at once, whoever started it, and wait until its port is free. The kernel ends its children with it once loaded."""
        self.container.run("kill", "-KILL", str(self.pid), check=False)
        wait_for(f"port {self.port} free", lambda: self.port not in listening_ports(self.container), 20.0, 0.1)


def healthy(url: str) -> bool:
    """Whether /health is 200: it runs a generation and takes one second."""
    try:
        return httpx.get(f"{url}/health", timeout=25.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def generate(url: str, tokens: int) -> int:
    """Ask for `tokens` tokens, none of which may end the text, and return how many came."""
    body = {"text": "The rig asks", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    answer = httpx.post(f"{url}/generate", json=body, timeout=60.0, trust_env=False)
    return int(answer.raise_for_status().json()["meta_info"]["completion_tokens"])


@dataclass(frozen=True)
class Stream:
    """A streamed answer, read to its end: how many tokens it says it has, and whether it ended as it should."""

    tokens: int
    whole: bool


def stream(url: str, tokens: int, started: Callable[[], None]) -> Stream:
    """Stream `tokens` tokens; `started` is called at the first event. A connection that breaks gives a stream that is not whole."""
    body = {"text": "The rig asks", "stream": True, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    count, whole = 0, False
    try:
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60.0, trust_env=False) as answer:
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    whole = True
                elif line.startswith("data: "):
                    count = int(json.loads(line[6:])["meta_info"]["completion_tokens"])
                    started()
    except httpx.HTTPError:
        return Stream(count, False)
    return Stream(count, whole)


def listening_ports(container: Container) -> set[int]:
    """The TCP ports that somebody listens on in the container."""
    lines = container.run("ss", "-Hltn").stdout.splitlines()
    return {int(line.split()[3].rpartition(":")[2]) for line in lines}


@dataclass(frozen=True)
class ContainerProcess:
    """One process of the container: its number in there, its start in clock ticks since boot, and what ps shows."""

    pid: int
    started: int
    title: str


def sglang_processes(service: SglangService) -> list[ContainerProcess]:
    """Every process of any SGLang server in the container, orphans too: by the Python that they run, or by SGLang's titles.

    The children get a ``sglang::`` title only once they have imported everything, and the title hides what Python they run.
    """
    namespace = os.readlink(f"/proc/{service.container.init()}/ns/pid")
    found = [_read_process(path, namespace) for path in Path("/proc").glob("[0-9]*")]
    marks = ("sglang::", f"{service.environment.python} ")
    return [process for process in found if process and process.title.startswith(marks)]


def _read_process(path: Path, namespace: str) -> ContainerProcess | None:
    """A process with a title in that PID namespace, read from the machine's own /proc."""
    try:
        if os.readlink(path / "ns/pid") != namespace:
            return None
        title = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        number = (path / "status").read_text(encoding="utf-8").partition("NSpid:")[2].splitlines()[0].split()[-1]
    except OSError:
        return None
    started = read_start_time(int(path.name))
    return ContainerProcess(int(number), started, title) if title and started is not None else None
