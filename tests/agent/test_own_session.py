"""Launches in a session of their own. `sh` and stand-ins are started in place of SGLang."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent import procfs, systemd, waiter, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.conditions import read_conditions
from orchestrator.agent.processes import find_servers, read_environment
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.runner import OwnSession, choose_runner, runner_of, start_detached
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.stopping import stop_members, stop_server
from orchestrator.agent.wire import ManagerKind
from tests.agent.box import STANDIN, is_running, wait_for
from tests.rig.network import free_port

SECRET = "sesame-4711"
POLICY = wire.Policy(grace=5, clean=10)


def a_launch(arguments: list[str], **changes: object) -> wire.Launch:
    given: dict[str, object] = {
        "launch_id": f"20260101T000000-{os.getpid()}-{time.monotonic_ns()}",
        "service": "tiny",
        "backend": "auto",
        "python": sys.executable,
        "arguments": arguments,
        "host": "127.0.0.1",
        "port": 30000,
        **changes,
    }
    return wire.Launch(**given)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(str(tmp_path), "tiny")
    made.create()
    return made


@pytest.fixture
def open_folder() -> Iterator[StateFolder]:
    """A state folder that another user can pass through, as in /var/lib; pytest's own folders are closed to everybody else."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        made = StateFolder(root, "tiny")
        made.create()
        yield made


@pytest.fixture
def started(folder: StateFolder) -> Iterator[list[OwnSession]]:
    runners: list[OwnSession] = []
    yield runners
    for runner in runners:
        stop_members(runner.members, wire.Policy(clean=10), lambda *_: None)


def script(code: str) -> dict[str, object]:
    return {"entry": ["-c", code]}


@pytest.mark.slow
def test_server_is_started_detached_and_its_end_recorded(folder: StateFolder, started: list[OwnSession]) -> None:
    runner = OwnSession(folder, a_launch(["one"], **script("import sys, time; print(sys.argv[1], flush=True); time.sleep(1); sys.exit(3)")))
    started.append(runner)
    result = runner.start()
    assert result.main is not None
    main = procfs.read_process(result.main.pid)
    assert main is not None
    assert main.session == main.pid == int(runner.name.split()[1])
    assert main.session != os.getsid(0)
    assert os.readlink(f"/proc/{main.pid}/fd/0") == "/dev/null"
    assert {fact.name for fact in result.facts} >= {"limit.open_files", "limit.locked_memory"}
    assert runner.exit_status() is None
    assert [member.pid for member in runner.members()] == [main.pid]
    status = runner.exit_status(10)
    assert str(status) == "exit-code exited 3"
    log = folder.launch_folder(runner.launch.launch_id) / "server.log"
    assert log.read_text() == "one\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_killed_server_is_recorded_with_its_signal(folder: StateFolder, started: list[OwnSession]) -> None:
    runner = OwnSession(folder, a_launch([], **script("import time; time.sleep(300)")))
    started.append(runner)
    result = runner.start()
    assert result.main is not None
    os.kill(result.main.pid, signal.SIGKILL)
    assert str(runner.exit_status(10)) == "signal killed KILL"
    assert runner.members() == []


def test_server_inherits_no_lock_and_no_ignored_signal(folder: StateFolder, started: list[OwnSession], tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            runner = OwnSession(folder, a_launch([], **script("import time; time.sleep(300)")))
            started.append(runner)
            result = runner.start()
        finally:
            signal.signal(signal.SIGHUP, before)
    assert result.main is not None
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    descriptors = f"/proc/{result.main.pid}/fd"
    # While it starts, Python has one more open now and then.
    assert wait_until(lambda: len(os.listdir(descriptors)) == 3, Deadline(10.0)), os.listdir(descriptors)
    ignored = next(line for line in Path(f"/proc/{result.main.pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    assert not int(ignored.split()[1], 16) & 1 << (signal.SIGHUP - 1)


def test_environment_and_secrets_reach_the_server_and_nobody_else(folder: StateFolder, started: list[OwnSession], tmp_path: Path) -> None:
    own_config = tmp_path / "own.yaml"
    own_config.write_text("# comment\nmem-fraction-static: 0.5\napi_key: old\n")
    strange = "a b'c\"d$HOME ${x} `y` \\ %n\nsecond line\tend"
    launch = a_launch(
        ["--config", str(own_config), "--port", "1"],
        **script("import time; time.sleep(300)"),
        environment={"STRANGE": strange, "no_proxy": "example.org"},
        secrets={"api-key": SECRET},
        host="10.1.2.3",
    )
    runner = OwnSession(folder, launch)
    started.append(runner)
    result = runner.start()
    assert result.main is not None
    environment = read_environment(result.main.pid)
    assert environment is not None
    assert environment["STRANGE"] == strange
    assert environment["ORCHESTRATOR_LAUNCH"] == launch.launch_id
    assert environment["SPT_NOENV"] == "1"
    assert environment["no_proxy"] == environment["NO_PROXY"] == "example.org,127.0.0.1,localhost,0.0.0.0,10.1.2.3"
    main = procfs.read_process(result.main.pid)
    assert main is not None
    assert SECRET not in main.title
    assert main.arguments.count("--config") == 1
    config = Path(main.arguments[main.arguments.index("--config") + 1])
    assert config.suffix == ".yaml"
    assert json.loads(config.read_text()) == {"mem-fraction-static": 0.5, "api-key": SECRET}
    path = folder.launch_folder(launch.launch_id)
    readable = [file.name for file in path.iterdir() if file.stat().st_mode & 0o077]
    assert readable == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run a server as another user")
def test_server_runs_as_its_user_and_can_read_its_configuration(open_folder: StateFolder, started: list[OwnSession]) -> None:
    code = "import os, sys; print(os.getuid(), os.getgroups(), open(sys.argv[-1]).read(), flush=True)"
    launch = a_launch([], **script(code), user="nobody", secrets={"api-key": SECRET}, python="/usr/bin/python3")
    runner = OwnSession(open_folder, launch)
    started.append(runner)
    runner.start()
    assert str(runner.exit_status(10)) == "success exited 0"
    log = (open_folder.launch_folder(launch.launch_id) / "server.log").read_text()
    assert log.startswith("65534 [65534]")
    assert SECRET in log


def test_missing_program_is_refused_with_its_name(folder: StateFolder) -> None:
    with pytest.raises(AgentRefusal, match="/no/such/python") as refused:
        OwnSession(folder, a_launch([], python="/no/such/python")).start()
    assert "No such file" in refused.value.failure.evidence[0]


def test_value_that_no_environment_file_carries_is_refused(folder: StateFolder) -> None:
    with pytest.raises(AgentRefusal, match="control character"):
        OwnSession(folder, a_launch([], environment={"BELL": "\a"})).start()


def test_standin_server_is_started_found_and_stopped_by_its_marker(folder: StateFolder, started: list[OwnSession]) -> None:
    port = free_port()
    launch = a_launch(["--port", str(port)], port=port, environment={"PYTHONPATH": str(STANDIN)})
    runner = OwnSession(folder, launch)
    started.append(runner)
    result = runner.start()
    log = folder.launch_folder(launch.launch_id) / "server.log"
    wait_for("ready", lambda: "ready" in log.read_text())
    server = next(server for server in find_servers() if server.main.id == result.main)
    assert server.launch_id == launch.launch_id
    assert server.manager.kind == ManagerKind.OWN_SESSION
    assert server.manager.name == runner.name
    assert runner_of(folder, launch).name == runner.name
    assert len(runner.members()) == 4
    report = stop_server(server, POLICY, lambda *_: None, exit_status=runner.exit_status)
    assert report.exit_status == "success exited 0"
    assert report.killed == []
    assert runner.members() == []


def test_waiter_is_no_member_and_ends_with_the_server(folder: StateFolder, started: list[OwnSession]) -> None:
    runner = OwnSession(folder, a_launch([], **script("import time; time.sleep(300)")))
    started.append(runner)
    result = runner.start()
    assert result.main is not None
    session = json.loads((folder.launch_folder(runner.launch.launch_id) / "session").read_text())
    assert session["waiter"] not in {member.pid for member in runner.members()}
    assert os.readlink(f"/proc/{session['waiter']}/fd/1") == "/dev/null"
    stop_members(runner.members, POLICY, lambda *_: None)
    wait_for("the waiter's end", lambda: not is_running(session["waiter"]))


def test_log_rotation_keeps_every_line_and_the_writer(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 99 + b"\n")
        waiter.rotate(str(log), 1000)
        assert log.stat().st_size == 100, "below the limit nothing happens"
        writer.write((b"y" * 99 + b"\n") * 10)
        waiter.rotate(str(log), 1000)
        assert log.stat().st_size == 0
        writer.write(b"after\n")
    assert log.read_text() == "after\n"
    old = tmp_path / "server.log.1"
    assert old.stat().st_size == 1100
    assert stat.S_IMODE(old.stat().st_mode) == 0o600


def test_detached_program_outlives_its_starter(tmp_path: Path) -> None:
    if systemd.is_available():
        pytest.skip("systemd starts it here; tests/lxc covers that")
    log = tmp_path / "supervisor.log"
    holder = start_detached("orchestrator-tiny-order-1", [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"], log)
    assert holder.startswith("session ")
    wait_for("its output", lambda: log.read_text() == "True\n")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_without_systemd_a_session_is_chosen(folder: StateFolder) -> None:
    if systemd.is_available():
        pytest.skip("systemd runs here")
    assert isinstance(choose_runner(folder, a_launch([])), OwnSession)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a server another user's groups and hard limits")
def test_a_copy_has_the_groups_umask_and_limits_that_were_found(open_folder: StateFolder) -> None:
    shown = "os.getuid(), os.getgid(), sorted(os.getgroups()), oct(os.umask(0)), dict(os.environ)"
    code = f"import os, time; print({shown}, flush=True); time.sleep(60)"
    conditions = wire.Conditions(5, [5, 6], 0o027, {"NOFILE": [512, 1024], "CORE": [0, 0]})
    environment = {"PATH": "/usr/bin:/bin", "WHOLE": "yes"}
    launch = a_launch([], user="nobody", conditions=conditions, environment=environment, python="/usr/bin/python3", **script(code))
    runner = OwnSession(open_folder, launch)
    started = runner.start()
    try:
        log = open_folder.launch_folder(launch.launch_id) / "server.log"
        wait_for("its word", lambda: "WHOLE" in log.read_text())
        assert log.read_text().startswith("65534 5 [5, 6] 0o27 {")
        assert "'HOME'" not in log.read_text(), "its environment is whole as it was found"
        assert started.main is not None
        again = read_conditions(started.main.pid)
        assert again is not None
        assert (again.group, again.groups, again.umask) == (5, [5, 6], 0)
        assert (again.limits["NOFILE"], again.limits["CORE"]) == ([512, 1024], [0, 0])
    finally:
        stop_members(runner.members, POLICY, lambda *_: None)


def test_the_log_keeper_ends_with_the_server_whose_end_it_is_shown(tmp_path: Path) -> None:
    assert waiter.has_content(str(tmp_path / "gone"))
    (tmp_path / "exit").touch()
    assert not waiter.has_content(str(tmp_path / "exit"))
    (tmp_path / "exit").write_text("success exited 0\n")
    assert waiter.has_content(str(tmp_path / "exit"))
