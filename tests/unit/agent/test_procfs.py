"""Parsers of what the kernel prints. Texts are the kernel's own, with names changed."""

from __future__ import annotations

import pytest

from orchestrator.agent.procfs import Listener, parse_cgroup, parse_environment, parse_listeners, parse_stat

STAT_TAIL = "S 13620 13622 13621 34816 13700 4194560 1 2 3 4 5 6 7 8 20 0 14 0 4711 99 100 18446744073709551615"

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7918 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 51001 1 0000000000000000 100 0 0 10 0
   1: 0100007F:7918 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 51002 1 0000000000000000 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 51003 1 0000000000000000 100 0 0 10 0
"""
TCP6 = """\
  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 61001 1
"""


@pytest.mark.parametrize("name", ["python", "sglang::schedul", "tmux: server", "a) R 1 (b", "two\nlines", "("])
def test_stat_with_any_name(name: str) -> None:
    found = parse_stat(f"13622 ({name}) {STAT_TAIL}")
    assert found.name == name
    assert (found.state, found.parent, found.group, found.session) == ("S", 13620, 13622, 13621)
    assert found.start_time == 4711


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/system.slice/sglang.service\n", "/system.slice/sglang.service"),
        ("0::/.lxc\n", "/.lxc"),
        ("9:name=systemd:/system.slice/x.service\n8:pids:/a\n0::/\n", "/system.slice/x.service"),
        ("9:name=systemd:/\n4:memory:/box\n0::/init.scope\n", "/init.scope"),
        ("12:cpu,cpuacct:/\n1:name=systemd:/lxc/101/ns/system.slice/a:b.service\n", "/lxc/101/ns/system.slice/a:b.service"),
        ("", "/"),
    ],
    ids=["v2", "v2 under lxc-attach", "hybrid", "hybrid, only v2 used", "v1 with a colon in the name", "nothing"],
)
def test_cgroup(text: str, path: str) -> None:
    assert parse_cgroup(text) == path


def test_only_listening_sockets_count() -> None:
    assert parse_listeners(TCP) == [Listener(31000, 51001, 1000), Listener(22, 51003, 0)]
    assert parse_listeners(TCP6) == [Listener(30000, 61001, 0)]


def test_environment() -> None:
    assert parse_environment(b"A=1\0B=x=y\0EMPTY=\0broken\0C=two\nlines\0") == {"A": "1", "B": "x=y", "EMPTY": "", "C": "two\nlines"}
