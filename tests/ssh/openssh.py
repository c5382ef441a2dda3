"""A throwaway OpenSSH server on loopback, and a TCP proxy that can break the way to it."""

from __future__ import annotations

import contextlib
import getpass
import selectors
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.remote.connection import StrictConnection
from orchestrator.remote.endpoint import Deadlines, Endpoint
from tests.rig.commands import run_command, wait_for
from tests.rig.ssh import PLAIN_SHELL

QUICK = Deadlines(connect=2, banner=1, handshake=5, authentication=5, channel=5, interval=0.2, unanswered=0.6)

SSHD = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/local/sbin") or "/usr/sbin/sshd"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    bits = ["-b", "2048"] if kind == "rsa" else []
    run_command(["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", str(path)])
    return path


@dataclass
class OpenSsh:
    """One sshd, started by :meth:`running`. `options` are further lines of its configuration.

    With `login_shell` a command starts as it does for this user anywhere, ~/.bashrc included.
    """

    folder: Path
    host_key_kinds: tuple[str, ...] = ("ed25519",)
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    key_options: str = ""
    login_shell: bool = False

    @property
    def host_keys(self) -> list[Path]:
        return [self.folder / f"host_{kind}" for kind in self.host_key_kinds]

    @property
    def key(self) -> Path:
        """A private key that its user may log in with."""
        return self.folder / "user"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def endpoint(self, host: str = "gpu1", **changes: object) -> Endpoint:
        values = {"address": "127.0.0.1", "user": getpass.getuser(), "port": self.port, "identity_files": (self.key,), **changes}
        return Endpoint(host, **values)  # type: ignore[arg-type]

    def known_hosts_lines(self, port: int | None = None) -> list[str]:
        texts = [path.with_suffix(".pub").read_text().split() for path in self.host_keys]
        return [f"[127.0.0.1]:{port or self.port} {kind} {key}\n" for kind, key, *_ in texts]

    def connection(self, endpoint: Endpoint | None = None, deadlines: Deadlines = QUICK) -> StrictConnection:
        return StrictConnection(endpoint or self.endpoint(), [self.known_hosts], deadlines)

    @contextlib.contextmanager
    def running(self) -> Iterator[OpenSsh]:
        """Start the server; stop it afterwards, with the sessions that it still holds."""
        self.write_files()
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd drops its privileges; Debian's unit makes it
        log = (self.folder / "sshd.log").open("wb")
        with (
            log,
            subprocess.Popen([SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log) as process,
        ):
            try:
                wait_for(f"sshd on port {self.port}", self._listens, 10)
                yield self
            finally:
                process.terminate()

    def write_files(self) -> None:
        """Make its keys and its configuration."""
        for kind, path in zip(self.host_key_kinds, self.host_keys, strict=True):
            make_key(path, kind)
        make_key(self.key)
        public = self.key.with_suffix(".pub").read_text()
        (self.folder / "authorized_keys").write_text(f"{self.key_options} {public}".lstrip())
        lines = [
            *self.options,  # sshd takes the first value of each
            *(() if self.login_shell else (PLAIN_SHELL,)),
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f"HostKey {path}" for path in self.host_keys),
            f"AuthorizedKeysFile {self.folder / 'authorized_keys'}",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
        ]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        self.known_hosts.write_text("".join(self.known_hosts_lines()))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Proxy:
    """Forwards TCP to a port until told to :meth:`freeze` (nothing passes, nothing is closed) or :meth:`cut` (all is closed).

    `drop_first` connections are closed at once.
    """

    def __init__(self, target: int, drop_first: int = 0) -> None:
        self.accepted = 0
        self._target = target
        self._drop_first = drop_first
        self._frozen = threading.Event()
        self._cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        self._frozen.set()

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._cut.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.accepted <= self._drop_first:
                client.close()
                continue
            thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._cut.is_set():
                for ready, _ in selector.select(0.02) if not self._frozen.is_set() else self._pause():
                    source, sink = ready.fileobj, ready.data
                    assert isinstance(source, socket.socket)
                    with contextlib.suppress(OSError):
                        data = source.recv(65536)
                        sink.sendall(data)
                        if data:
                            continue
                    return

    def _pause(self) -> list[tuple[selectors.SelectorKey, int]]:
        self._cut.wait(0.02)
        return []
