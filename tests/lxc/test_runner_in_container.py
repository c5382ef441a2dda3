"""Launches as units of a real systemd, and stopping other people's units, in a real LXC container. The server is a stand-in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lxc.in_container import PYTHON, STANDIN, STATE, AgentInContainer
from tests.rig.commands import wait_for
from tests.rig.container import Container

pytestmark = pytest.mark.lxc

SECRET = "sesame-4711"
STRANGE = "a b'c\"d$HOME ${x} $$ `y` \\ \\n %n %%\nsecond line\tend "

START = """
from orchestrator.agent.runner import choose_runner
out(choose_runner(folder(), launch()).start())
"""
LOOK = """
from orchestrator.agent.runner import runner_of
from orchestrator.agent.processes import find_server, find_leftovers
runner = runner_of(folder(), launch())
server = find_server(given["launch"]["port"])
out({"name": runner.name, "members": [str(p) for p in runner.members()], "exit": str(runner.exit_status() or ""),
     "manager": server.manager if server else None, "listening": server.listening if server else False,
     "server": [str(p) for p in server.members] if server else [], "launch_id": server.launch_id if server else None})
"""
STOP = """
import time
from orchestrator.agent.clean import check_clean, take_stock
from orchestrator.agent.processes import find_server
from orchestrator.agent.runner import runner_of
from orchestrator.agent.stopping import stop_server
server = find_server(given["launch"]["port"])
claims = take_stock(server)
policy = wire.Policy(drain=1, grace=8, clean=8)
runner = runner_of(folder(), launch()) if server.launch_id else None
report = stop_server(server, policy, ignore, exit_status=runner.exit_status if runner else None)
late = 0.0 if report.last_end is None else time.monotonic() - report.last_end  # None: all had ended before the first look
out({"report": report, "late": late, "verdicts": check_clean(claims, policy, ignore)})
"""


def a_launch(arguments: list[str], port: int = 30000, **changes: Any) -> dict[str, Any]:
    return {
        "launch_id": f"20260101T000000-{time.monotonic_ns()}",
        "service": "tiny",
        "backend": "auto",
        "python": PYTHON,
        "arguments": arguments,
        "host": "127.0.0.1",
        "port": port,
        "environment": {"PYTHONPATH": STANDIN},
        **changes,
    }


def standin(port: int, **settings: Any) -> dict[str, Any]:
    return a_launch(["--port", str(port)], port, environment={"PYTHONPATH": STANDIN, "STANDIN": json.dumps(settings)})


def log_of(launch: dict[str, Any]) -> str:
    return f"{folder_of(launch)}/server.log"


def folder_of(launch: dict[str, Any]) -> str:
    return f"{STATE}/tiny/launches/{launch['launch_id']}"


def wait_says(agent: AgentInContainer, launch: dict[str, Any], words: str) -> None:
    wait_for(f"{words!r} in the log", lambda: words in agent.text(log_of(launch)), 20.0, 0.2)


@pytest.fixture(scope="module")
def agent(container: Container) -> AgentInContainer:
    return AgentInContainer.install(container)


@pytest.fixture(autouse=True)
def nothing_left(agent: AgentInContainer) -> Iterator[None]:
    yield
    agent.container.shell("systemctl stop 'orchestrator-tiny-*' standin.service; systemctl reset-failed", check=False)


def test_unit_runs_the_server_and_its_exit_status_outlives_it(agent: AgentInContainer) -> None:
    launch = standin(31101)
    started = agent.python(START, launch=launch)
    assert started["name"] == f"orchestrator-tiny-{launch['launch_id']}.service"
    assert {fact["name"] for fact in started["facts"]} >= {"limit.open_files", "limit.locked_memory"}
    wait_says(agent, launch, "ready")
    seen = agent.python(LOOK, launch=launch)
    assert seen["manager"]["kind"] == "own_unit"
    assert seen["manager"]["name"] == started["name"] == seen["name"]
    assert seen["launch_id"] == launch["launch_id"]
    assert seen["listening"]
    assert len(seen["members"]) == 4
    assert seen["members"] == seen["server"]
    stopped = agent.python(STOP, launch=launch)
    assert stopped["report"]["killed"] == []
    assert stopped["report"]["exit_status"] == "success exited 0"
    assert stopped["late"] <= 0.4
    assert {verdict["outcome"] for verdict in stopped["verdicts"]} == {"pass"}
    units = agent.container.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "orchestrator-tiny-*").stdout
    wait_for("the log keeper's end", lambda: "running" not in units, 5.0, 0.2)
    assert agent.python(LOOK, launch=launch)["exit"] == "success exited 0"


@pytest.mark.parametrize(
    ("code", "exit_status"),
    [("import sys; sys.exit(3)", "exit-code exited 3"), ("import os; os.kill(os.getpid(), 9)", "signal killed KILL")],
    ids=["exit 3", "SIGKILL"],
)
def test_failed_unit_leaves_its_exit_status_and_no_unit(agent: AgentInContainer, code: str, exit_status: str) -> None:
    launch = a_launch([], entry=["-c", code])
    agent.python(START, launch=launch)
    wait_for("exit status", lambda: agent.text(f"{folder_of(launch)}/exit").strip() == exit_status, 10.0, 0.1)
    listed = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "orchestrator-tiny-*"]
    wait_for("no unit left", lambda: agent.container.run(*listed).stdout.strip() == "", 10.0, 0.2)


def test_environment_arguments_and_secrets_survive_systemd(agent: AgentInContainer) -> None:
    code = "import json, os, sys, time; print(json.dumps([dict(os.environ), sys.argv[1:]]), flush=True); time.sleep(60)"
    arguments = ["$HOME", "${PATH}x", "$$", "100% %n", "a b", 'quote"', "back\\slash", "", "line\nbreak"]
    environment = {"STRANGE": STRANGE, "EMPTY": "", "no_proxy": "example.org"}
    launch = a_launch(arguments, entry=["-c", code], environment=environment, secrets={"api-key": SECRET}, directory="/srv")
    agent.python(START, launch=launch)
    wait_says(agent, launch, "STRANGE")
    seen, argv = json.loads(agent.text(log_of(launch)))
    assert seen["STRANGE"] == STRANGE
    assert seen["EMPTY"] == ""
    assert seen["ORCHESTRATOR_LAUNCH"] == launch["launch_id"]
    assert seen["SPT_NOENV"] == "1"
    assert seen["no_proxy"] == "example.org,127.0.0.1,localhost,0.0.0.0"
    assert argv[: len(arguments)] == arguments
    assert argv[len(arguments) :] == ["--config", f"{folder_of(launch)}/config.yaml"]
    assert json.loads(agent.text(argv[-1])) == {"api-key": SECRET}
    agent.container.run("systemctl", "daemon-reload")
    unit = f"orchestrator-tiny-{launch['launch_id']}.service"
    public = agent.container.shell(
        f"su -s /bin/sh nobody -c 'systemctl show {unit}; cat /run/systemd/transient/{unit}; "
        f"cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; cat {folder_of(launch)}/*' 2>/dev/null",
        check=False,
    ).stdout
    assert unit in public
    assert SECRET not in public
    assert "second line" not in public
    assert (
        agent.container.shell(f"stat -c %a {folder_of(launch)}/environment {folder_of(launch)}/config.yaml").stdout.split() == ["600"] * 2
    )
    agent.container.run("systemctl", "stop", unit)
    assert agent.text(f"{folder_of(launch)}/exit").strip() == "success killed TERM", "also after a daemon-reload"


def test_unit_runs_as_its_user(agent: AgentInContainer) -> None:
    code = "import os, sys; print(os.getuid(), os.environ['HOME'], open(sys.argv[-1]).read(), flush=True)"
    launch = a_launch([], entry=["-c", code], user="nobody", secrets={"api-key": SECRET})
    agent.python(START, launch=launch)
    wait_for("its end", lambda: agent.text(f"{folder_of(launch)}/exit").strip() == "success exited 0", 10.0, 0.1)
    assert agent.text(log_of(launch)).startswith("65534 /nonexistent {")


def test_stop_while_loading_leaves_nothing_in_the_unit(agent: AgentInContainer) -> None:
    launch = standin(31102, loading=True, escape=True)
    agent.python(START, launch=launch)
    wait_says(agent, launch, "loading")
    stopped = agent.python(STOP, launch=launch)
    assert stopped["report"]["abandoned"] == []
    assert {verdict["outcome"] for verdict in stopped["verdicts"]} == {"pass"}
    assert agent.python(LOOK, launch=launch)["members"] == []


def test_log_is_rotated_while_the_server_writes_on(agent: AgentInContainer) -> None:
    code = "import time\nwhile True: print('x' * 999, flush=True); time.sleep(0.001)"
    launch = a_launch([], entry=["-c", code])
    small = "import orchestrator.agent.systemd as systemd; systemd.LOG_LIMIT = 100_000\n" + START
    started = agent.python(small, launch=launch)
    wait_for("server.log.1", lambda: "x" in agent.container.shell(f"head -c 10 {log_of(launch)}.1", check=False).stdout, 20.0, 0.5)
    first = agent.container.run("stat", "-c", "%s", log_of(launch)).stdout
    wait_for("the log to grow on", lambda: agent.container.run("stat", "-c", "%s", log_of(launch)).stdout != first, 10.0, 0.1)
    keeper = started["name"].replace(".service", "-log.service")
    assert agent.container.run("systemctl", "is-active", keeper).stdout.strip() == "active"
    agent.container.run("systemctl", "stop", started["name"])
    wait_for(
        "the keeper's end", lambda: agent.container.run("systemctl", "is-active", keeper, check=False).stdout.strip() != "active", 10.0, 0.2
    )
    assert agent.text(f"{folder_of(launch)}/exit").strip() == "success killed TERM"


@pytest.mark.parametrize(
    ("port", "wrapped", "more"),
    [(31103, False, ""), (31104, True, ""), (31107, False, "ExecStopPost=/bin/sleep 2\n"), (31108, False, "ExecStopPost=/bin/sleep 7\n")],
    ids=["server is the unit's main process", "server below a shell that restarts it", "unit ends later", "unit ends too late"],
)
def test_somebodys_unit_is_stopped_without_a_respawn_and_started_again(
    agent: AgentInContainer, port: int, wrapped: bool, more: str
) -> None:
    command = f"{PYTHON} -m sglang.launch_server --port {port}"
    if wrapped:
        agent.container.write("/opt/serve.sh", f"#!/bin/sh\nwhile true; do {command}; done\n", 0o755)
        command = "/opt/serve.sh"
    unit = f"[Service]\nExecStart={command}\nEnvironment=PYTHONPATH={STANDIN}\nRestart=always\nRestartForceExitStatus=0\nRestartSec=0.1\n"
    unit += more
    agent.container.write("/etc/systemd/system/standin.service", unit)
    agent.container.run("systemctl", "daemon-reload")
    agent.container.run("systemctl", "start", "standin.service")
    launch = standin(port)
    wait_for("the unit's server", lambda: bool(agent.python(LOOK, launch=launch)["listening"]), 20.0, 0.2)
    found = agent.python(LOOK, launch=launch)
    assert found["manager"] == {"kind": "systemd_unit", "name": "standin.service", "detail": ""}
    stopped = agent.python(STOP, launch=launch)
    assert stopped["report"]["abandoned"] == []
    assert stopped["late"] <= 0.4
    assert {verdict["outcome"] for verdict in stopped["verdicts"]} == {"pass"}
    state = ["systemctl", "show", "--value", "--property=ActiveState", "standin.service"]
    wait_for("the unit's end", lambda: agent.container.run(*state).stdout.strip() in ("inactive", "failed"), 20.0, 0.1)
    time.sleep(1.5)  # a respawn would come within RestartSec
    assert agent.python(LOOK, launch=launch)["server"] == []
    assert agent.container.run("systemctl", "show", "--value", "--property=Restart", "standin.service").stdout.strip() == "always"
    assert agent.container.shell("ls /run/systemd/system/standin.service.d", check=False).returncode != 0
    agent.python("from orchestrator.agent.runner import start_unit; start_unit('standin.service')")
    wait_for("the unit's server again", lambda: bool(agent.python(LOOK, launch=launch)["listening"]), 20.0, 0.2)


def test_supervisor_is_started_in_a_unit_of_its_own(agent: AgentInContainer) -> None:
    script = """
from pathlib import Path
from orchestrator.agent.runner import start_detached
out(start_detached("orchestrator-tiny-order-1", ["/bin/sh", "-c", "cat /proc/self/cgroup; exec sleep 60"], Path("/root/supervisor.log")))
"""
    holder = agent.python(script)
    assert holder == "orchestrator-tiny-order-1.service"
    wait_for("its output", lambda: holder in agent.text("/root/supervisor.log"), 10.0, 0.1)


def test_without_systemd_run_a_session_is_used_and_survives_lxc_attach(agent: AgentInContainer) -> None:
    launch = standin(31105)
    script = "from orchestrator.agent.runner import OwnSession\nout(OwnSession(folder(), launch()).start())\n"
    began = time.monotonic()
    started = agent.python(script, launch=launch)
    assert time.monotonic() - began < 10, "nothing keeps lxc-attach's pipes open"
    assert started["name"].startswith("session ")
    wait_says(agent, launch, "ready")
    seen = agent.python(LOOK, launch=launch)
    assert seen["manager"]["kind"] == "own_session"
    assert len(seen["members"]) == 4
    stopped = agent.python(STOP, launch=launch)
    assert stopped["report"]["exit_status"] == "success exited 0"
    assert stopped["late"] <= 0.4
    assert {verdict["outcome"] for verdict in stopped["verdicts"]} == {"pass"}


def test_server_started_by_hand_over_lxc_attach_is_a_session(agent: AgentInContainer) -> None:
    command = f"PYTHONPATH={STANDIN} nohup {PYTHON} -m sglang.launch_server --port 31106 >/root/hand.log 2>&1 </dev/null &"
    agent.container.shell(command)
    launch = standin(31106)
    wait_for("ready", lambda: "ready" in agent.text("/root/hand.log"), 20.0, 0.2)
    seen = agent.python(LOOK, launch=launch)
    assert (seen["manager"]["kind"], seen["manager"]["name"]) == ("session", "nohup")
    stopped = agent.python(STOP, launch=launch)
    assert {verdict["outcome"] for verdict in stopped["verdicts"]} == {"pass"}


def test_another_users_server_is_refused_for_want_of_rights(agent: AgentInContainer) -> None:
    launch = standin(31107)
    agent.python(START, launch=launch)
    wait_says(agent, launch, "ready")
    script = """
import os
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from orchestrator.agent.processes import find_server
from orchestrator.agent.refusal import AgentRefusal
try:
    out({"found": str(find_server(31107))})
except AgentRefusal as refusal:
    out(refusal.failure)
"""
    failure = agent.python(script, launch=launch)
    assert failure["category"] == "rights"
    assert "user root" in failure["message"]
    assert "user nobody" in failure["message"]
    assert agent.python(LOOK, launch=launch)["listening"], "nothing was touched"
