"""Servers for this folder's tests. They are real OpenSSH on loopback with keys of their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.ssh.openssh import OpenSsh, Proxy


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may pass through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="orchestrator-ssh-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


StartServer = Callable[..., OpenSsh]


@pytest.fixture
def start_server(open_folder: Path) -> Iterator[StartServer]:
    """Start further servers, each with its own options."""
    with ExitStack() as stack:
        names = iter("abcdefgh")

        def start(**options: object) -> OpenSsh:
            folder = open_folder / next(names)
            folder.mkdir()
            return stack.enter_context(OpenSsh(folder, **options).running())  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSsh]:
    """One server with an ed25519, an ECDSA and an RSA host key, for all tests of a file that change nothing on it."""
    with OpenSsh(tmp_path_factory.mktemp("sshd"), ("ed25519", "ecdsa", "rsa")).running() as running:
        yield running


@pytest.fixture
def make_proxy() -> Iterator[Callable[..., Proxy]]:
    """Make proxies to a port; closed at the end."""
    made: list[Proxy] = []

    def make(target: int, drop_first: int = 0) -> Proxy:
        made.append(Proxy(target, drop_first))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
