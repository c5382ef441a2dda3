"""A launch that was staged, in a unit of a real systemd: what its crash starts, before it was verified and after. A stand-in's"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lxc.in_container import STATE, AgentInContainer
from tests.lxc.test_runner_in_container import START, a_launch, log_of, standin
from tests.rig.commands import wait_for
from tests.rig.container import Container

pytestmark = pytest.mark.lxc

BOOT_UNIT = "orchestrator-tiny.service"
VERIFY = """
from orchestrator.agent.boot_unit import install, waiter_command
folder().mark_verified(launch().launch_id, {})
out(install(folder(), launch(), [], waiter_command(folder(), launch().launch_id)))
"""


@pytest.fixture(scope="module")
def agent(container: Container) -> AgentInContainer:
    return AgentInContainer.install(container)


@pytest.fixture(autouse=True)
def nothing_left(agent: AgentInContainer) -> Iterator[None]:
    yield
    agent.container.shell(
        "systemctl stop 'orchestrator-tiny*'; systemctl reset-failed; find /etc/systemd/system -name 'orchestrator-tiny*' -delete; "
        f"rm -rf {STATE}/tiny; systemctl daemon-reload",
        check=False,
    )


def unit_of(launch: dict[str, Any]) -> str:
    return f"orchestrator-tiny-{launch['launch_id']}.service"


def start(agent: AgentInContainer, launch: dict[str, Any], says: str) -> None:
    agent.python(START, launch=launch)
    wait_for(f"{says!r} in the log", lambda: says in agent.text(log_of(launch)), 20.0, 0.1)


def kill(agent: AgentInContainer, unit: str) -> None:
    agent.container.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit)
    wait_for("its end", lambda: agent.container.run("systemctl", "is-active", unit, check=False).stdout.strip() != "active", 10.0, 0.05)


def state(agent: AgentInContainer) -> str:
    return agent.container.run("systemctl", "is-active", BOOT_UNIT, check=False).stdout.strip()


def test_a_staged_launch_that_crashes_does_not_start_the_verified_one_a_second_time(agent: AgentInContainer) -> None:
    verified = standin(31121)
    start(agent, verified, "ready")
    assert agent.python(VERIFY, launch=verified) == []
    # It is gone as if somebody had stopped it: what would start it again is armed, and somebody else's server may have its port.
    agent.container.run("systemctl", "stop", unit_of(verified))
    staged = {**a_launch(["--port", "31121"], 31121), "gate_port": 31122}
    start(agent, staged, "waiting for activation")
    kill(agent, unit_of(staged))
    time.sleep(1.0)  # what a failed unit starts is queued before it has ended
    assert state(agent) == "inactive"
    assert agent.text(f"{STATE}/tiny/boot").strip() == verified["launch_id"]


def test_a_launch_that_was_staged_comes_back_once_it_is_verified_and_leaves_nothing_behind(agent: AgentInContainer) -> None:
    staged = {**standin(31123), "gate_port": 31124}
    start(agent, staged, "waiting for activation")
    agent.python("from orchestrator.agent import http\nout(http.Client(31124).post('/gate/activate', {}).status)", launch=staged)
    wait_for("it to be ready", lambda: "ready" in agent.text(log_of(staged)), 20.0, 0.1)
    assert agent.python(VERIFY, launch=staged) == []
    shown = agent.container.run("systemctl", "show", "--property=OnFailure", "--value", unit_of(staged)).stdout
    assert shown.strip() == BOOT_UNIT
    assert "--gated-launch-port" not in agent.text(f"/etc/systemd/system/{BOOT_UNIT}")
    kill(agent, unit_of(staged))
    wait_for("it to be back", lambda: state(agent) == "active", 20.0, 0.2)
    agent.container.shell(f"systemctl stop {BOOT_UNIT}; systemctl reset-failed")
    wait_for("nothing left", lambda: unit_of(staged) not in agent.container.run("ls", "/run/systemd/transient").stdout, 10.0, 0.2)
