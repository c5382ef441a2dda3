"""The strict connection against a real OpenSSH server: trust, keys, jump hosts, deadlines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConnectError, ConnectionLostError, HostKeyError
from orchestrator.remote.connection import StrictConnection
from orchestrator.remote.host_keys import describe_key, known_keys, pin
from orchestrator.remote.trust import fetch_host_keys
from tests.rig.commands import run_command
from tests.ssh.openssh import QUICK, OpenSsh, Proxy, make_key

pytestmark = pytest.mark.openssh


def output_of(connection: StrictConnection, command: str = "echo works") -> str:
    channel = connection.start(command)
    channel.settimeout(10)
    try:
        return channel.recv(100).decode()
    finally:
        channel.close()


@contextlib.contextmanager
def refused(kind: type[Exception], message: str, connection: StrictConnection) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Opening fails with this error, and leaves nothing open."""
    with pytest.raises(kind, match=message) as raised:
        connection.open()
    yield raised
    assert not connection.is_connected
    connection.close()


class TestTrust:
    def test_a_known_key_is_enough(self, server: OpenSsh) -> None:
        with server.connection() as connection:
            assert output_of(connection) == "works\n"

    def test_an_unknown_key_is_shown_with_its_fingerprint(self, server: OpenSsh, tmp_path: Path) -> None:
        fingerprint = run_command(["ssh-keygen", "-lf", f"{server.host_keys[0]}.pub"]).stdout.split()[1]
        connection = StrictConnection(server.endpoint(), [tmp_path / "known_hosts"], QUICK)

        with refused(HostKeyError, "is unknown", connection) as raised:
            assert raised.value.evidence == [f"offered: ssh-ed25519 {fingerprint}"]  # type: ignore[attr-defined]
            assert "fab trust gpu1" in raised.value.next_step  # type: ignore[attr-defined]

    def test_a_changed_key_is_refused_although_the_users_file_knows_the_new_one(self, server: OpenSsh, tmp_path: Path) -> None:
        ours = tmp_path / "known_hosts"
        stale = make_key(tmp_path / "stale").with_suffix(".pub").read_text()
        ours.write_text(f"[127.0.0.1]:{server.port} {stale}")
        connection = StrictConnection(server.endpoint(), [ours, server.known_hosts], QUICK)

        with refused(HostKeyError, "has CHANGED", connection) as raised:
            assert "--replace" in raised.value.next_step  # type: ignore[attr-defined]

    def test_the_users_file_counts_where_ours_is_silent(self, server: OpenSsh, tmp_path: Path) -> None:
        with StrictConnection(server.endpoint(), [tmp_path / "known_hosts", server.known_hosts], QUICK) as connection:
            assert output_of(connection) == "works\n"

    def test_hashed_names(self, server: OpenSsh, tmp_path: Path) -> None:
        hashed = tmp_path / "known_hosts"
        hashed.write_text(server.known_hosts.read_text())
        run_command(["ssh-keygen", "-H", "-f", str(hashed)])
        assert "127.0.0.1" not in hashed.read_text()

        with StrictConnection(server.endpoint(), [hashed], QUICK) as connection:
            assert output_of(connection) == "works\n"

    @pytest.mark.parametrize("index", [0, 1, 2], ids=["ed25519", "ecdsa", "rsa"])
    def test_a_host_known_by_one_key_is_asked_for_that_one(self, server: OpenSsh, tmp_path: Path, index: int) -> None:
        only = tmp_path / "known_hosts"
        only.write_text(server.known_hosts_lines()[index])

        with StrictConnection(server.endpoint(), [only], QUICK) as connection:
            assert output_of(connection) == "works\n"

    def test_fetched_and_pinned_keys_are_trusted(self, server: OpenSsh, tmp_path: Path) -> None:
        ours = tmp_path / "known_hosts"
        endpoint = server.endpoint()

        keys = fetch_host_keys(endpoint, [ours], QUICK)
        assert len(pin(ours, endpoint, keys)) == 3

        listed = run_command(["ssh-keygen", "-lf", str(ours)]).stdout
        assert all(describe_key(key).split()[1] in listed for key in keys)
        with StrictConnection(endpoint, [ours], QUICK) as connection:
            assert output_of(connection) == "works\n"

    def test_a_server_with_one_key_is_fetched_too(self, start_server: Callable[..., OpenSsh]) -> None:
        server = start_server(host_key_kinds=("rsa",))

        assert fetch_host_keys(server.endpoint(), [], QUICK) == [item.key for item in known_keys(server.endpoint(), [server.known_hosts])]

    def test_no_ssh_config_is_read(self, server: OpenSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh" / "config").write_text("Host *\n  Port 1\n  User nobody\n  ProxyCommand false\n  HostName 192.0.2.1\n")
        monkeypatch.setenv("HOME", str(tmp_path))

        with server.connection() as connection:
            assert output_of(connection) == "works\n"


class TestJumpHosts:
    def test_through_a_jump_host(self, server: OpenSsh, start_server: Callable[..., OpenSsh], tmp_path: Path) -> None:
        inner = start_server()
        both = tmp_path / "known_hosts"
        both.write_text(server.known_hosts.read_text() + inner.known_hosts.read_text())

        with StrictConnection(inner.endpoint("inner", jump=server.endpoint("bastion")), [both], QUICK) as connection:
            assert output_of(connection, "echo $SSH_CONNECTION").split()[3] == str(inner.port)

    def test_the_jump_hosts_key_is_checked_too(self, server: OpenSsh, start_server: Callable[..., OpenSsh]) -> None:
        inner = start_server()
        connection = StrictConnection(inner.endpoint("inner", jump=server.endpoint("bastion")), [inner.known_hosts], QUICK)

        with refused(HostKeyError, "bastion: the host key", connection) as raised:
            assert "fab trust bastion" in raised.value.next_step  # type: ignore[attr-defined]

    def test_a_jump_host_that_can_not_reach_the_target(self, server: OpenSsh, start_server: Callable[..., OpenSsh]) -> None:
        inner = start_server().endpoint("inner", port=1, jump=server.endpoint("bastion"))

        with refused(ConnectError, "jump host bastion could not reach 127.0.0.1:1", server.connection(inner)):
            pass

    def test_keys_are_fetched_through_a_jump_host(self, server: OpenSsh, start_server: Callable[..., OpenSsh]) -> None:
        inner = start_server()

        keys = fetch_host_keys(inner.endpoint("inner", jump=server.endpoint("bastion")), [server.known_hosts], QUICK)

        assert [key.get_name() for key in keys] == ["ssh-ed25519"]


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An SSH agent of our own; call it with a key file without a passphrase to add it."""
    path = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 5
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

    def add(key: Path) -> None:
        run_command(["ssh-add", "-q", str(key)])

    yield add
    process.send_signal(signal.SIGTERM)
    process.wait(5)


class TestKeys:
    def test_a_refused_key_is_named(self, server: OpenSsh, tmp_path: Path) -> None:
        stranger = make_key(tmp_path / "stranger")

        with refused(ConnectError, "accepts none of the keys", server.connection(server.endpoint(identity_files=(stranger,)))) as raised:
            assert str(stranger) in raised.value.evidence[0]  # type: ignore[attr-defined]
            assert "ssh-copy-id" in raised.value.next_step  # type: ignore[attr-defined]

    def test_an_unknown_user_looks_like_a_refused_key(self, server: OpenSsh) -> None:
        with refused(ConnectError, "nosuchuser@127.0.0.1:.* accepts none", server.connection(server.endpoint(user="nosuchuser"))):
            pass

    def test_a_second_key_is_tried(self, server: OpenSsh, tmp_path: Path) -> None:
        files = (tmp_path / "missing", make_key(tmp_path / "stranger"), server.key)

        with server.connection(server.endpoint(identity_files=files)) as connection:
            assert output_of(connection) == "works\n"

    def test_no_key_at_all(self, server: OpenSsh) -> None:
        with refused(ConnectError, "the inventory names none", server.connection(server.endpoint(identity_files=()))) as raised:
            assert "identity_files:" in raised.value.next_step  # type: ignore[attr-defined]

    def test_an_encrypted_key_without_an_agent(self, server: OpenSsh, tmp_path: Path) -> None:
        locked = make_key(tmp_path / "locked", passphrase="long enough")

        with refused(ConnectError, "no key .* can be used", server.connection(server.endpoint(identity_files=(locked,)))) as raised:
            assert raised.value.evidence == [f"{locked}: encrypted, and the SSH agent does not hold it: ssh-add {locked}"]  # type: ignore[attr-defined]

    def test_the_named_key_is_taken_from_an_agent_that_holds_many(
        self, server: OpenSsh, tmp_path: Path, ssh_agent: Callable[[Path], None]
    ) -> None:
        for number in range(8):
            ssh_agent(make_key(tmp_path / f"stranger{number}"))
        ssh_agent(server.key)
        locked = tmp_path / "locked"
        locked.write_bytes(server.key.read_bytes())
        locked.chmod(0o600)
        locked.with_suffix(".pub").write_bytes(server.key.with_suffix(".pub").read_bytes())
        run_command(["ssh-keygen", "-q", "-p", "-P", "", "-N", "long enough", "-f", str(locked)])

        with server.connection(server.endpoint(identity_files=(locked,), use_agent=True)) as connection:
            assert output_of(connection) == "works\n"

    def test_too_many_agent_keys(self, server: OpenSsh, tmp_path: Path, ssh_agent: Callable[[Path], None]) -> None:
        for number in range(8):
            ssh_agent(make_key(tmp_path / f"stranger{number}"))
        ssh_agent(server.key)

        with refused(ConnectError, "too many keys", server.connection(server.endpoint(identity_files=(), use_agent=True))) as raised:
            assert "identity_files:" in raised.value.next_step  # type: ignore[attr-defined]

    def test_a_server_that_wants_a_password(self, start_server: Callable[..., OpenSsh]) -> None:
        server = start_server(options=("PubkeyAuthentication no", "PasswordAuthentication yes", "PermitRootLogin yes"))

        with refused(ConnectError, "takes no public keys, only: password", server.connection()):
            pass


def listener(backlog: int = 8) -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(backlog)
    return listening


class TestDeadlines:
    def test_a_closed_port(self, server: OpenSsh) -> None:
        with listener() as closed:
            port = closed.getsockname()[1]

        with refused(ConnectError, "refuses connections", server.connection(server.endpoint(port=port))):
            pass

    def test_a_black_hole(self, server: OpenSsh) -> None:
        with listener(0) as full, contextlib.ExitStack() as stack:
            for _ in range(3):  # beyond the backlog the kernel drops SYNs, as a black hole does
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(full.getsockname())
            start = time.monotonic()
            with refused(ConnectError, "no answer from .* within 2 s", server.connection(server.endpoint(port=full.getsockname()[1]))):
                assert time.monotonic() - start < 4

    def test_a_silent_banner(self, server: OpenSsh) -> None:
        with listener() as silent:
            endpoint = server.endpoint(port=silent.getsockname()[1])
            with refused(ConnectError, "showed no SSH banner within 1 s", server.connection(endpoint)):
                pass

    def test_another_protocol(self, server: OpenSsh) -> None:
        with listener() as web:
            endpoint = server.endpoint(port=web.getsockname()[1])
            answer = subprocess.Popen(
                [
                    "python3",
                    "-c",
                    "import socket,sys\ns=socket.socket(fileno=0)\nwhile 1: s.accept()[0].sendall(b'HTTP/1.1 400 Bad\\r\\n\\r\\n')",
                ],
                stdin=web.fileno(),
            )
            try:
                with refused(ConnectError, "not an SSH server", server.connection(endpoint)):
                    pass
            finally:
                answer.kill()
                answer.wait()

    def test_a_dropped_connection_is_tried_again_before_anything_was_asked(self, server: OpenSsh, make_proxy: Callable[..., Proxy]) -> None:
        proxy = make_proxy(server.port, drop_first=2)
        server.known_hosts.write_text("".join(server.known_hosts_lines() + server.known_hosts_lines(proxy.port)))

        with server.connection(server.endpoint(port=proxy.port)) as connection:
            assert output_of(connection) == "works\n"
        assert proxy.accepted == 3

    def test_a_refused_key_is_not_tried_again(self, server: OpenSsh, make_proxy: Callable[..., Proxy], tmp_path: Path) -> None:
        proxy = make_proxy(server.port)
        server.known_hosts.write_text("".join(server.known_hosts_lines() + server.known_hosts_lines(proxy.port)))
        endpoint = server.endpoint(port=proxy.port, identity_files=(make_key(tmp_path / "stranger"),))

        with refused(ConnectError, "accepts none", server.connection(endpoint)):
            assert proxy.accepted == 1

    @pytest.mark.parametrize("how", ["freeze", "cut"])
    def test_a_peer_that_goes_is_noticed(self, server: OpenSsh, make_proxy: Callable[..., Proxy], how: str) -> None:
        proxy = make_proxy(server.port)
        server.known_hosts.write_text("".join(server.known_hosts_lines() + server.known_hosts_lines(proxy.port)))
        connection = server.connection(server.endpoint(port=proxy.port))
        channel = connection.start("echo $$; exec sleep 30")
        pid = int(channel.recv(100))
        start = time.monotonic()

        getattr(proxy, how)()
        channel.settimeout(10)
        assert channel.recv(1) == b""

        assert time.monotonic() - start < 3
        assert not connection.is_connected
        expected = "gave no sign of life for 0.6 s" if how == "freeze" else "was closed"
        assert expected in connection.lost().message
        connection.close()
        os.kill(pid, signal.SIGKILL)

    def test_a_command_on_a_frozen_connection_does_not_wait_for_ever(self, server: OpenSsh, make_proxy: Callable[..., Proxy]) -> None:
        proxy = make_proxy(server.port)
        server.known_hosts.write_text("".join(server.known_hosts_lines() + server.known_hosts_lines(proxy.port)))
        connection = server.connection(server.endpoint(port=proxy.port))
        connection.open()
        proxy.freeze()

        with pytest.raises(ConnectionLostError, match="no sign of life"):
            connection.start("true")
        connection.close()

    def test_a_quiet_but_living_peer_is_kept(self, server: OpenSsh) -> None:
        with server.connection() as connection:
            assert output_of(connection, "sleep 1.5; echo works") == "works\n"

    def test_a_server_without_sessions(self, start_server: Callable[..., OpenSsh]) -> None:
        server = start_server(options=("MaxSessions 0",))

        with server.connection() as connection, pytest.raises(ConnectError, match="opened no session"):
            connection.start("true")
