"""The program's inventory in Ansible's variables."""

from __future__ import annotations

import shlex
from typing import Any

from ansible_collections.lxc_gpu.orchestrator.plugins.plugin_utils.logins import host_variables


def host(name: str, **changes: Any) -> dict[str, Any]:
    login = {"address": f"{name}.example", "port": 22, "user": "root", "become": "none", "identity_files": [], "jump": None}
    return {"name": name, **login, "python": "python3", "tuning": None, **changes}


def test_a_plain_host_gets_its_login_and_what_the_actions_need() -> None:
    found = host_variables(host("gpu1"), {}, [{"name": "a", "host": "gpu1"}, {"name": "b", "host": "gpu2"}], "/srv/my inventory")
    assert (found["ansible_host"], found["ansible_port"], found["ansible_user"]) == ("gpu1.example", 22, "root")
    assert (found["orchestrator_host"], found["orchestrator_services"]) == ("gpu1", ["a"])
    assert not {"ansible_become", "ansible_ssh_private_key_file", "ansible_python_interpreter"} & set(found)
    words = shlex.split(found["ansible_ssh_common_args"])
    assert words == ["-o", 'UserKnownHostsFile="/srv/my inventory/known_hosts" ~/.ssh/known_hosts']


def test_a_host_behind_others_is_reached_through_them_in_their_order() -> None:
    gate, inner = host("gate", address="2001:db8::1", port=2222), host("inner", user="op", jump="gate")
    last = host("gpu1", jump="inner", become="sudo", identity_files=["/k/one", "/k/two"], python="/usr/bin/python3.11")
    found = host_variables(last, {"gate": gate, "inner": inner, "gpu1": last}, [], "/i")
    assert shlex.split(found["ansible_ssh_common_args"])[2:] == ["-o", "ProxyJump=root@[2001:db8::1]:2222,op@inner.example:22"]
    assert (found["ansible_become"], found["ansible_become_method"]) == (True, "sudo")
    assert (found["ansible_ssh_private_key_file"], found["ansible_python_interpreter"]) == ("/k/one", "/usr/bin/python3.11")
