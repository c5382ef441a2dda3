from __future__ import annotations

import pytest

from orchestrator.agent import wire
from orchestrator.agent.managers import container_engine, is_script, unit_is_exclusive, unit_of, user_manager_of
from orchestrator.agent.procfs import Process

DOCKER = "f" * 64


@pytest.mark.parametrize(
    ("cgroup", "unit", "exclusive"),
    [
        ("/system.slice/sglang.service", "sglang.service", True),
        ("/system.slice/sglang@0.service", "sglang@0.service", True),
        ("/lxc.payload.101/system.slice/orchestrator-glm-1.service", "orchestrator-glm-1.service", True),
        ("/lxc/101/ns/system.slice/sglang.service/sub", "sglang.service", True),
        ("/user.slice/user-0.slice/session-3.scope", "session-3.scope", False),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service", "sglang.service", True),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope", False),
        ("/user.slice/user-1000.slice/user@1000.service/tmux-spawn-1.scope", "tmux-spawn-1.scope", False),
        ("/system.slice/ssh.service", "ssh.service", False),
        ("/system.slice/sshd@7-10.0.0.1:22.service", "sshd@7-10.0.0.1:22.service", False),
        ("/system.slice/cron.service", "cron.service", False),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", False),
        ("/.lxc", None, False),
        ("/", None, False),
    ],
)
def test_units(cgroup: str, unit: str | None, exclusive: bool) -> None:
    assert unit_of(cgroup) == unit
    assert unit_is_exclusive(cgroup) is exclusive


def test_user_manager() -> None:
    assert user_manager_of("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service") == "user@1000.service"
    assert user_manager_of("/system.slice/x.service") is None


@pytest.mark.parametrize(
    ("cgroup", "own", "engine"),
    [
        (f"/system.slice/docker-{DOCKER}.scope", "/system.slice/ssh.service", "docker"),
        (f"/docker/{DOCKER}", "/", "docker"),
        (f"/docker/{DOCKER}", f"/docker/{DOCKER}", None),
        (f"/machine.slice/libpod-{DOCKER}.scope", "/", "podman"),
        ("/kubepods/besteffort/pod1/abc", "/", "kubernetes"),
        ("/lxc.payload.101/system.slice/a.service", "/user.slice", "a container"),
        ("/lxc.payload.101/system.slice/a.service", "/lxc.payload.101/.lxc", None),
        ("/system.slice/sglang.service", "/.lxc", None),
        ("/system.slice/docker.service", "/", None),
    ],
)
def test_container_engines(cgroup: str, own: str, engine: str | None) -> None:
    assert container_engine(cgroup, own) == engine


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("bash run.sh", True),
        ("/bin/sh -e /opt/serve.sh", True),
        ("bash -c while_true", True),
        ("-bash", False),
        ("bash -i", False),
        ("bash", False),
        ("tmux new-session", False),
        ("", False),
    ],
)
def test_a_shell_at_work_on_a_script_is_told_from_one_that_waits_for_a_person(command: str, expected: bool) -> None:
    process = Process(wire.ProcessId(7, 1), 1, 7, 7, 0, "S", "", tuple(command.split()), "/")
    assert is_script(process) is expected
