"""`fab init` from zero to a plan over the lab's real SSH server, by flags, by JSON and by a person's answers on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.clock import Deadline
from orchestrator.config import load_inventory
from orchestrator.lab import control
from orchestrator.lab.layout import Layout, Ports, read_ports
from tests.rig.documents import checked

HOST, OURS = "lab-b200", "lab-rtx6000"
PATIENCE = 90.0
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Newcomer:
    """Somebody with the program, an empty folder, and the address of a machine."""

    layout: Layout
    ports: Ports
    folder: Path
    host: str = HOST

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory"

    @property
    def address(self) -> str:
        return f"{os.environ.get('USER') or 'root'}@127.0.0.1:{self.ports.ssh}"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR", "USER", "LOGNAME"}}
        return kept | {"HOME": str(self.folder), "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}

    def command(self, *words: str) -> list[str]:
        """This machine has no containers for the lab's host, and may have servers of others: both are said."""
        key = ("--identity", str(self.layout.client_key), "--state-root", str(self.layout.state_root(self.host)))
        itself = () if "--container" in words else ("--container", "none")
        return [sys.executable, "-m", "orchestrator", "init", *itself, *key, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Any other verb, which finds the inventory by itself."""
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def left_behind(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if ".cache" not in path.parts)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A lab whose servers somebody has started by hand."""
    folder = tmp_path_factory.mktemp("init") / "lab"
    try:
        control.up(folder, start_servers=True)
        yield Layout.of(folder)
    finally:
        control.down(folder)


@pytest.fixture
def newcomer(layout: Layout, tmp_path: Path) -> Newcomer:
    ports = read_ports(layout)
    assert ports is not None
    return Newcomer(layout, ports[HOST], tmp_path)


def fingerprint(layout: Layout) -> str:
    """The host's own word on its key, by OpenSSH."""
    done = subprocess.run(["ssh-keygen", "-lf", str(layout.keys / f"{HOST}.pub")], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_from_zero_to_a_plan_in_one_command(newcomer: Newcomer) -> None:
    flags = ("--port", str(newcomer.ports.sglang), "--name", "mybox", "--service", "prod", "--backend", "flashinfer_cutlass")
    done = newcomer.run(newcomer.address, *flags, "--fingerprint", fingerprint(newcomer.layout), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    document = checked(done.stdout)
    assert (document["schema"], document["verb"], document["inventory"]) == ("1", "init", str(newcomer.inventory))
    assert (document["host"], document["service"], document["written"]) == ("mybox", "prod", True)
    assert document["checks"]["plan"] == 0, done.stderr
    assert document["plan"]["launch"]["backend"] == "flashinfer_cutlass"
    assert document["checks"]["doctor"] in (0, 3), done.stderr

    inventory = load_inventory(newcomer.inventory)
    host, service = inventory.host("mybox"), inventory.service("prod")
    assert (host.address, host.port, host.gpus, host.container) == ("127.0.0.1", newcomer.ports.ssh, 8, None)
    assert service.python == str(newcomer.layout.python(HOST))
    assert service.arguments["--tp-size"] == 8
    assert inventory.tuning("mybox").expect.kernel is not None

    for verb in (("status", "--host", "mybox"), ("hosts",), ("prep", "--host", "mybox", "--check")):
        told = newcomer.verb(*verb)
        assert told.returncode == 0, told.stderr + told.stdout

    before = {path: path.read_bytes() for path in newcomer.inventory.rglob("*") if path.is_file()}
    again = newcomer.run(newcomer.address, "--port", str(newcomer.ports.sglang), "--yes", "--json")
    assert again.returncode == 0, again.stderr
    assert checked(again.stdout)["files"] == []
    assert {path: path.read_bytes() for path in newcomer.inventory.rglob("*") if path.is_file()} == before


def test_a_plan_shows_every_line_and_writes_nothing(newcomer: Newcomer) -> None:
    done = newcomer.run(newcomer.address, "--port", str(newcomer.ports.sglang), "--name", "mybox", "--yes", "--plan")
    assert done.returncode == 0, done.stderr
    assert "inventory/hosts.yml, new" in done.stdout
    assert re.search(r"^ +mybox:$", done.stdout, re.MULTILINE)
    assert f"port: {newcomer.ports.sglang} " in done.stdout
    assert fingerprint(newcomer.layout) in done.stdout
    assert newcomer.left_behind() == []


@pytest.mark.parametrize(
    ("words", "problem", "next_step"),
    [
        ((), "address of the machine", "say it with --address"),
        (("{address}",), "nobody can be asked here: nothing was pinned", "compare, then give --fingerprint SHA256:..., or --yes"),
        (("{address}", "--port", "{port}", "--fingerprint", "{fingerprint}"), "nobody can be asked here", "give --yes to do it, or --plan"),
        (("{address}", "--yes", "--port", "1"), "no SGLang server runs on port 1 there, but on", "--port with one of these"),
        (("{address}", "--yes", "--container", "nowhere"), "there is no container nowhere", "--container NAME"),
        (("{address}", "--become", "doas"), "--become takes sudo or none", ""),
        (("a,b",), "one address at a time", ""),
    ],
)
def test_what_is_missing_is_named_by_its_flag(newcomer: Newcomer, words: Sequence[str], problem: str, next_step: str) -> None:
    known = {"address": newcomer.address, "port": newcomer.ports.sglang, "fingerprint": fingerprint(newcomer.layout)}
    done = newcomer.run(*(word.format(**known) for word in words))
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, done.stderr
    assert problem in said
    assert next_step in said
    assert newcomer.left_behind() == []


@pytest.mark.parametrize("wrong", ["unreachable", "other key"])
def test_a_machine_that_can_not_be_reached_or_trusted_is_exit_4(newcomer: Newcomer, wrong: str) -> None:
    words = ("127.0.0.1:1", "--yes") if wrong == "unreachable" else (newcomer.address, "--fingerprint", "SHA256:something")
    done = newcomer.run(*words)
    assert done.returncode == 4, done.stderr
    assert "hosts.yml" not in done.stderr, "there is none yet"
    assert newcomer.left_behind() == []


class Terminal:
    """A person's terminal with the program on it."""

    def __init__(self, newcomer: Newcomer, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            newcomer.command(*words),
            cwd=newcomer.folder,
            env=newcomer.environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def answer(self, question: str, text: str) -> None:
        """Wait until `question` is shown, and type."""
        self._read_until(lambda: question in self.shown, question)
        self.shown = self.shown.partition(question)[2]
        os.write(self._master, text.encode() + b"\n")

    def interrupt(self, question: str) -> None:
        """Ctrl-C at a question."""
        self._read_until(lambda: question in self.shown, question)
        self.process.send_signal(signal.SIGINT)

    def end(self) -> int:
        self._read_until(lambda: self.process.poll() is not None, "the end")
        return self.process.wait(timeout=PATIENCE)

    def _read_until(self, condition: Any, what: str) -> None:
        deadline = Deadline(PATIENCE)
        while not condition():
            assert deadline.left() > 0, f"never: {what}\n{self.shown}"
            if select.select([self._master], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.shown += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_person_is_asked_for_what_is_missing(newcomer: Newcomer, terminals: list[Terminal]) -> None:
    terminal = Terminal(newcomer, "--port", str(newcomer.ports.sglang))
    terminals.append(terminal)
    terminal.answer("~/.ssh/config): ", newcomer.address)
    terminal.answer("are these the host's keys? [y/N] ", "y")
    terminal.answer("to be called in the inventory [", "mybox")
    terminal.answer("what is the service to be called [", "")
    terminal.answer("files to", "y")
    code = terminal.end()
    assert code == 0, terminal.shown
    inventory = load_inventory(newcomer.inventory)
    assert list(inventory.hosts) == ["mybox"]
    assert list(inventory.services) == ["glm-5-nvfp4"]
    assert "a relaunch would" in terminal.shown, "the diagnosis"
    assert "by hand this would be" in terminal.shown, "the plan"
    assert "-m orchestrator relaunch --host mybox --service glm-5-nvfp4 --backend NAME --plan" in terminal.shown


@pytest.mark.parametrize("question", ["are these the host's keys? [y/N] ", "to be called in the inventory [", "files to"])
def test_ctrl_c_at_any_question_leaves_nothing(newcomer: Newcomer, terminals: list[Terminal], question: str) -> None:
    terminal = Terminal(newcomer, newcomer.address, "--port", str(newcomer.ports.sglang))
    terminals.append(terminal)
    for asked in ("are these the host's keys? [y/N] ", "to be called in the inventory [", "what is the service to be called [", "files to"):
        if asked == question:
            terminal.interrupt(asked)
            break
        terminal.answer(asked, "y" if "y/N" in asked else "")
    assert terminal.end() == 130, terminal.shown
    assert "interrupted; nothing was written" in terminal.shown
    assert newcomer.left_behind() == []


def test_a_no_at_the_end_writes_nothing(newcomer: Newcomer, terminals: list[Terminal]) -> None:
    words = ("--port", str(newcomer.ports.sglang), "--name", "mybox", "--service", "prod", "--fingerprint", fingerprint(newcomer.layout))
    terminal = Terminal(newcomer, newcomer.address, *words)
    terminals.append(terminal)
    terminal.answer("files to", "n")
    assert terminal.end() == 3, terminal.shown
    assert newcomer.left_behind() == []


def test_a_server_that_this_program_started_is_written_as_the_box_remembers_it(layout: Layout, tmp_path: Path) -> None:
    """A second operator: the service has the name of its state folder, and its backend's flags are not its own."""
    ports = read_ports(layout)
    assert ports is not None
    newcomer = Newcomer(layout, ports[OURS], tmp_path, OURS)
    first = ("--host", OURS, "--inventory", str(layout.inventory), "--yes", "--no-measure", "--force")
    started = newcomer.verb("relaunch", "--backend", "marlin", *first)
    assert started.returncode == 0, started.stderr + started.stdout
    done = newcomer.run(newcomer.address, "--port", str(newcomer.ports.sglang), "--yes", "--backend", "marlin", "--json")
    assert done.returncode == 0, done.stderr
    document = checked(done.stdout)
    assert document["checks"]["plan"] == 0, done.stderr
    (service,) = load_inventory(newcomer.inventory).services.values()
    (declared,) = (item for item in load_inventory(layout.inventory).services.values() if item.host == OURS)
    assert (service.name, service.backend, service.arguments) == (declared.name, "marlin", declared.arguments)
    assert not any("adopt" in line for line in done.stderr.splitlines()), "it has its record"
    differences = [item for item in document["plan"]["differences"] if item["origin"] == "drift"]
    assert differences == []
