"""The agent over a real OpenSSH server: what it answers, and each way in which it can fail to."""

from __future__ import annotations

import io
import os
import pwd
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.agent import archive, wire
from orchestrator.remote import agent_client, shipment
from orchestrator.remote.agent_client import AgentClient
from orchestrator.remote.frames import FrameDecoder
from orchestrator.remote.place import Place, PlaceDescription
from tests.rig.commands import run_command, wait_for
from tests.rig.ssh import PLAIN_SHELL
from tests.ssh.openssh import OpenSsh, Proxy

pytestmark = pytest.mark.openssh

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a user")


@pytest.fixture
def open_client() -> Iterator[Callable[..., AgentClient]]:
    """Open a client to a server's place; the rest describes the place."""
    opened = []

    def open_one(server: OpenSsh, port: int | None = None, user: str | None = None, **place: str) -> AgentClient:
        changes: dict[str, Any] = {key: value for key, value in {"port": port, "user": user}.items() if value is not None}
        endpoint = server.endpoint(**changes)
        connection = server.connection(endpoint)
        opened.append(connection)
        connection.open()
        return AgentClient(Place(PlaceDescription("gpu1", endpoint, **place), connection))

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ship an agent that also knows the verbs of trial_verbs.py."""
    ship(monkeypatch, main=TRIAL_VERBS)


TRIAL_VERBS = b"""
VERBS["trial"] = Verb("trial_verbs", "trial", "LogRequest")
VERBS["trial_submit"] = VERBS["trial"]._replace(ends_with_reader=False)
"""


def ship(monkeypatch: pytest.MonkeyPatch, *, main: bytes = b"", wire_py: Callable[[bytes], bytes] = lambda text: text) -> None:
    package = shipment.package_for("submit", None).first
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name.endswith("/main.py"):
                text += main
            new.writestr(name, wire_py(text) if name.endswith("/wire_base.py") else text)
        new.write(Path(__file__).with_name("trial_verbs.py"), "orchestrator/agent/trial_verbs.py")
    monkeypatch.setattr(agent_client, "package_for", lambda verb, greeting: shipment.Package(changed.getvalue()))


def asked(what: str, argument: object = "") -> wire.LogRequest:
    return wire.LogRequest(service=what, state_root=str(argument))


def ping(client: AgentClient) -> wire.PlaceFacts:
    return client.ask("ping", wire.PingRequest(), wire.PlaceFacts, timeout=30)


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


class TestAnswers:
    def test_ping(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        facts = ping(open_client(server))

        assert facts.host_name == os.uname().nodename
        assert facts.user_id == os.geteuid()
        assert facts.kernel == os.uname().release

    def test_each_call_gives_its_session_back(self, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]) -> None:
        client = open_client(start_server(options=("MaxSessions 4",)))

        for _ in range(6):
            ping(client)

    def test_events_arrive_as_they_happen(
        self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None, tmp_path: Path
    ) -> None:
        seen = []
        for event in open_client(server).call("trial", asked("stream", tmp_path / "go"), timeout=30):
            seen.append(event.kind)
            if event.kind == "progress":
                (tmp_path / f"go{event.data['number']}").touch()

        assert seen == ["progress", "progress", "progress", "result"]

    def test_a_flood_on_both_streams(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None) -> None:
        *logs, result = open_client(server).call("trial", asked("flood", 8_000_000), timeout=60)

        assert len(logs) == 64
        assert len(result.data["text"]) == 8_000_000

    def test_a_large_request(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        request = {"padding": "x" * 8_000_000}

        with pytest.raises(errors.AgentError, match="unknown field 'padding'"):
            list(open_client(server).call("ping", request, timeout=60))

    def test_nothing_is_left(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        folders = [Path(name) for name in ("/tmp", "/dev/shm", "/var/tmp", str(Path.home()))]
        before = {entry for folder in folders for entry in folder.glob("*orchestrator*")}

        ping(open_client(server))

        assert {entry for folder in folders for entry in folder.glob("*orchestrator*")} == before


NOISE = 'echo Welcome to gpu1; printf "no newline"; echo warning >&2; eval "$SSH_ORIGINAL_COMMAND"'
NOISE_BETWEEN = '(while :; do echo noise || exit; sleep 0.01; done) & eval "$SSH_ORIGINAL_COMMAND"; kill $!'


class TestStrayOutput:
    @pytest.mark.parametrize("script", [NOISE, NOISE_BETWEEN], ids=["before", "between"])
    def test_output_of_the_login_is_no_event(
        self, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient], script: str, trial: None, tmp_path: Path
    ) -> None:
        server = start_server(key_options='command="' + script.replace('"', '\\"') + '"')
        client = open_client(server)

        assert ping(client).user_id == os.geteuid()
        assert [event.kind for event in client.call("trial", asked("flood", 100_000), timeout=60)].count("log") == 64

    def test_output_of_a_login_that_runs_nothing_is_evidence(
        self, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]
    ) -> None:
        server = start_server(key_options='command="echo Welcome; echo rsync only >&2; exit 3"')

        with pytest.raises(errors.AgentError, match="exit status 3 and no answer") as raised:
            ping(open_client(server))

        assert raised.value.evidence == ["Welcome", "rsync only"]

    def test_much_output_before_the_agent_reads(
        self, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]
    ) -> None:
        script = "head -c 5000000 /dev/zero | tr '\\\\0' x; head -c 5000000 /dev/zero | tr '\\\\0' y >&2; echo; eval $SSH_ORIGINAL_COMMAND"
        server = start_server(
            key_options=f'command="{script.replace("$SSH", chr(92) + chr(34) + "$SSH").replace("COMMAND", "COMMAND" + chr(92) + chr(34))}"'
        )

        assert ping(open_client(server)).user_id == os.geteuid()

    def test_prints_in_a_verb_stay_off_the_channel(
        self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        decoders: list[FrameDecoder] = []

        def make(token: str, greets: re.Pattern[bytes]) -> FrameDecoder:
            decoders.append(FrameDecoder(token, greets))
            return decoders[-1]

        monkeypatch.setattr(agent_client, "FrameDecoder", make)

        events = list(open_client(server).call("trial", asked("print"), timeout=30))

        assert [event.data for event in events] == [{"said": True}]
        assert decoders[0].stray.lines() == []


class TestFailures:
    def test_a_traceback_travels(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None) -> None:
        with pytest.raises(errors.AgentError, match="ValueError: a bug in a verb") as raised:
            list(open_client(server).call("trial", asked("raise")))

        assert 'raise ValueError("a bug in a verb")' in "\n".join(raised.value.evidence)

    @pytest.mark.parametrize("number", [9, 15])
    def test_a_killed_agent(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None, number: int) -> None:
        with pytest.raises(errors.AgentError, match="killed by a signal") as raised:
            list(open_client(server).call("trial", asked("kill", number)))

        assert "dmesg" in (raised.value.next_step or "")

    def test_an_agent_that_just_ends(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None) -> None:
        with pytest.raises(errors.AgentError, match="exit status 5 and no answer") as raised:
            list(open_client(server).call("trial", asked("exit", 5)))

        assert raised.value.evidence == ["last words"]

    def test_a_full_disk(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None) -> None:
        with pytest.raises(errors.DiskFullError, match="No space left on device"):
            list(open_client(server).call("trial", asked("fill_disk")))

    def test_another_protocol(self, server: OpenSsh, open_client: Callable[..., AgentClient], monkeypatch: pytest.MonkeyPatch) -> None:
        ship(monkeypatch, wire_py=lambda text: text.replace(b"PROTOCOL = 1", b"PROTOCOL = 2"))

        with pytest.raises(errors.AgentError, match="speaks protocol 2, this program 1"):
            ping(open_client(server))

    def test_no_answer_in_time(self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None) -> None:
        events = open_client(server).call("trial", asked("wait"), timeout=5)
        pids = next(events).data["pids"]

        with pytest.raises(errors.AgentError, match="no answer to trial within 5 s"):
            next(events)

        wait_for("the agent and its child end", lambda: all(map(gone, pids)), 5)

    @pytest.mark.parametrize(("how", "message"), [("freeze", "gave no sign of life"), ("cut", "was closed")])
    def test_a_lost_connection(
        self,
        server: OpenSsh,
        open_client: Callable[..., AgentClient],
        make_proxy: Callable[..., Proxy],
        trial: None,
        how: str,
        message: str,
    ) -> None:
        proxy = make_proxy(server.port)
        server.known_hosts.write_text("".join(server.known_hosts_lines() + server.known_hosts_lines(proxy.port)))
        events = open_client(server, port=proxy.port).call("trial", asked("wait"), timeout=30)
        pids = next(events).data["pids"]

        getattr(proxy, how)()
        with pytest.raises(errors.ConnectionLostError, match=message) as raised:
            next(events)

        assert raised.value.next_step == "fab status --host gpu1"
        proxy.cut()
        wait_for("the agent and its child end", lambda: all(map(gone, pids)), 5)


class TestLeaving:
    def test_closing_the_iterator_ends_the_agent_and_its_children(
        self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None
    ) -> None:
        client = open_client(server)
        events = client.call("trial", asked("wait"))
        pids = next(events).data["pids"]
        assert not any(map(gone, pids))

        start = time.monotonic()
        events.close()  # type: ignore[attr-defined]

        wait_for("the agent and its child end", lambda: all(map(gone, pids)), 5)
        assert time.monotonic() - start < 1
        assert ping(client).user_id == os.geteuid()

    def test_a_verb_that_must_finish_does(
        self, server: OpenSsh, open_client: Callable[..., AgentClient], trial: None, tmp_path: Path
    ) -> None:
        events = open_client(server).call("trial_submit", asked("finish", tmp_path / "done"))
        next(events)

        events.close()  # type: ignore[attr-defined]

        wait_for("the verb's last step", (tmp_path / "done").exists, 5)


class TestPythons:
    def test_no_python(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        with pytest.raises(errors.PythonError, match="there is no /opt/none/python3") as raised:
            ping(open_client(server, python="/opt/none/python3"))

        assert "apt install python3" in (raised.value.next_step or "")

    def test_a_python_without_json(self, server: OpenSsh, open_client: Callable[..., AgentClient], tmp_path: Path) -> None:
        minimal = tmp_path / "python3"
        minimal.write_text(f'#!/bin/sh\nexec {sys.executable} "$1" "$2" "$3" "import sys; sys.modules[\'json\'] = None; $4"\n')
        minimal.chmod(0o755)

        with pytest.raises(errors.PythonError, match="lacks the module json") as raised:
            ping(open_client(server, python=str(minimal)))

        assert raised.value.next_step == "in gpu1: apt install python3"

    @pytest.mark.parametrize(("version", "message"), [("2.7", "not a Python 3"), ("3.8", r"python3 is 3\.8\.\d+, the agent needs 3.9")])
    def test_an_old_python(self, server: OpenSsh, open_client: Callable[..., AgentClient], version: str, message: str) -> None:
        found = sorted(Path("/root/.pyenv/versions").glob(f"{version}.*/bin/python")) if os.geteuid() == 0 else []
        if not found:
            pytest.skip(f"no Python {version} in pyenv")

        with pytest.raises(errors.PythonError, match=message):
            ping(open_client(server, python=str(found[0])))


@pytest.fixture
def other_user() -> Iterator[str]:
    """A throwaway user who may log in and nothing else. Ask for it first: it goes after the connections that use it."""
    name = f"orch-{os.getpid()}"
    run_command(["useradd", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh", "--password", "*", name])
    yield name
    uid = pwd.getpwnam(name).pw_uid
    try:
        wait_for("the user's processes end", lambda: not processes_of(uid), 10)
    finally:
        run_command(["userdel", name])


def processes_of(uid: int) -> list[str]:
    def owned(path: Path) -> bool:
        try:
            return path.stat().st_uid == uid
        except OSError:
            return False

    return [path.name for path in Path("/proc").glob("[0-9]*") if owned(path)]


@pytest.fixture
def sudoer(other_user: str) -> Iterator[str]:
    """The same user with a sudoers file of its own."""
    drop_in = Path("/etc/sudoers.d") / other_user
    drop_in.write_text(f"{other_user} ALL=(root) NOPASSWD: ALL\n")
    drop_in.chmod(0o440)
    yield other_user
    drop_in.unlink()


@needs_root
@pytest.mark.skipif(shutil.which("sudo") is None, reason="sudo is not installed")
class TestSudo:
    def test_as_root_by_sudo(self, sudoer: str, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]) -> None:
        client = open_client(start_server(), user=sudoer, become="sudo")

        assert ping(client).user_id == 0

    def test_without_sudo_it_is_the_user(
        self, other_user: str, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]
    ) -> None:
        assert ping(open_client(start_server(), user=other_user)).user_id == pwd.getpwnam(other_user).pw_uid

    def test_leaving_ends_it_behind_sudo_too(
        self, sudoer: str, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient], trial: None
    ) -> None:
        events = open_client(start_server(), user=sudoer, become="sudo").call("trial", asked("wait"))
        pids = next(events).data["pids"]

        events.close()  # type: ignore[attr-defined]

        wait_for("the agent and its child end", lambda: all(map(gone, pids)), 5)

    def test_a_password_is_wanted(
        self, other_user: str, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient]
    ) -> None:
        with pytest.raises(errors.RightsError, match=f"sudo -n is refused to {other_user}") as raised:
            ping(open_client(start_server(), user=other_user, become="sudo"))

        assert f"{other_user} ALL=(root) NOPASSWD: ALL" in (raised.value.next_step or "")
        assert any("sudo:" in line for line in raised.value.evidence)


PCT_STAND_IN = """#!/bin/sh
# A stand-in for Proxmox's pct: checks the words it is given and runs the command here, in a clean environment.
[ "$1 $2 $3 $4 $5" = "exec 101 --keep-env 0 --" ] || { echo "stand-in pct: unexpected: $*" >&2; exit 255; }
shift 5
exec env -i PATH=/usr/bin:/bin "$@"
"""


class TestContainers:
    def test_by_a_pct_stand_in(
        self, start_server: Callable[..., OpenSsh], open_client: Callable[..., AgentClient], open_folder: Path
    ) -> None:
        tools = open_folder / "tools"
        tools.mkdir()
        (tools / "pct").write_text(PCT_STAND_IN)
        (tools / "pct").chmod(0o755)
        server = start_server(options=(f"{PLAIN_SHELL} PATH={tools}:/usr/bin:/bin",))

        assert ping(open_client(server, reached_by="pct", container="101")).user_id == os.geteuid()

    @pytest.mark.skipif(shutil.which("pct") is not None, reason="this is a Proxmox host")
    def test_a_tool_that_is_not_there(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        with pytest.raises(errors.ContainerError, match="has no pct on the PATH"):
            ping(open_client(server, reached_by="pct", container="101"))

    @needs_root
    @pytest.mark.skipif(shutil.which("lxc-attach") is None, reason="LXC is not installed")
    def test_a_container_that_is_not_there(self, server: OpenSsh, open_client: Callable[..., AgentClient]) -> None:
        with pytest.raises(errors.ContainerError, match="is not running, or does not exist") as raised:
            ping(open_client(server, reached_by="lxc-attach", container="orchestrator-none"))

        assert raised.value.evidence[0].startswith("lxc-attach: orchestrator-none:")


def test_the_shipped_archive_is_small() -> None:
    assert len(archive.agent_archive()) < 600_000, "what each order leaves on the box"
    assert len(shipment.package_for("survey", None).first) < 130_000
    assert len(shipment.package_for("tune", None).first) < 160_000


def test_an_answer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(errors.AgentError, match="PlaceFacts does not fit"):
        agent_client.validate(wire.PlaceFacts, {"python": 3})
