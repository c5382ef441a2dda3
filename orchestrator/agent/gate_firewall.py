"""Closing a gate to other machines: it asks for no key, and binds what the service binds.

A table of nftables of its own for each gate, named after its port, drops what does not come over loopback. It lives as long as the launch:
the gate stays open after it was passed.
"""

import ipaddress
import os
import re
import shutil
from typing import List, Optional, Set

from orchestrator.agent.command import Output, run_bounded
from orchestrator.agent.crash_points import crash_point
from orchestrator.agent.gate import CHECK
from orchestrator.agent.http import reachable_address
from orchestrator.agent.launch_files import SYSTEM_PATH
from orchestrator.agent.processes import find_servers
from orchestrator.agent.wire import Outcome, Verdict

_SECONDS = 5.0
_NAME = "orchestrator_gate_{port}"
_TABLE = re.compile(r"^table inet orchestrator_gate_(\d+)", re.MULTILINE)
_RULES = """\
table inet {name}
delete table inet {name}
table inet {name} {{
    chain input {{
        type filter hook input priority -10; policy accept;
        iif != "lo" tcp dport {port} drop
    }}
}}
"""
"""One transaction (nft(8), FILE FORMAT), whether the table is there already or not."""


def close(host: str, port: int) -> Verdict:
    """Close a gate on `host`, where that is needed and possible, and say who reaches it now."""
    if _is_loopback(host):
        return _only_loopback(host)
    problem = _why_not()
    if problem is None:
        name = _NAME.format(port=port)
        crash_point("before the gate is closed")
        output = _nft("-f", "-", given=_RULES.format(name=name, port=port))
        crash_point("the gate is closed")
        if f"dport {port} drop" in _nft("list", "table", "inet", name).text:
            detail = f"gate {port} is closed to other machines: table inet {name} drops what does not come over loopback"
            return Verdict(CHECK, Outcome.PASS, detail, source="nft list ruleset")
        problem = "nftables does not take the rule: " + _first_line(output)
    return _open(f"gate {port} can be opened by whoever reaches {_where(host)}: {problem}", f"ss -ltnp sport = :{port}")


def who_can_reach(host: str) -> Verdict:
    """Who will reach a gate on `host`, told before there is one. Changes nothing."""
    if _is_loopback(host):
        return _only_loopback(host)
    problem = _why_not()
    if problem is None:
        return Verdict(CHECK, Outcome.PASS, "the gate will be closed to other machines, by a table of nftables", source="nft list tables")
    step = "install nftables in the place, or let a firewall before it pass the service's port only"
    return _open(f"the gate will be open, on a random port and without a key, to whoever reaches {_where(host)}: {problem}", step)


def remove(port: int) -> None:
    """Take the table of a gate away, where there is one."""
    if _can():
        _delete(port)


def sweep(spared: Optional[int] = None) -> None:
    """Take away the tables of gates whose server has gone; `spared` is the gate of one that is being started."""
    tables = _tables() if _can() else set()
    if not tables:
        return
    living = {server.gate_port for server in find_servers()}
    for port in sorted(tables):
        if port in living or port == spared:
            continue
        _delete(port)


def _delete(port: int) -> None:
    crash_point("before the gate's table is removed")
    _nft("delete", "table", "inet", _NAME.format(port=port))
    crash_point("the gate's table is removed")


def _tables() -> Set[int]:
    return {int(port) for port in _TABLE.findall(_nft("list", "tables", "inet").text)}


def _why_not() -> Optional[str]:
    """What keeps us from closing it; None where nothing is known to."""
    if not _can():
        return "nftables is not installed" if os.geteuid() == 0 else "only root can close it"
    output = _nft("list", "tables")
    return None if output.good else "nftables does not work here: " + _first_line(output)


def _can() -> bool:
    return os.geteuid() == 0 and _program() is not None


def _program() -> Optional[str]:
    return shutil.which("nft", path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def _nft(*words: str, given: str = "") -> Output:
    return run_bounded([_program() or "nft", *words], _SECONDS, given=given.encode())


def _first_line(output: Output) -> str:
    lines: List[str] = [line for line in output.errors.splitlines() if line.strip(" ^\t")]
    return lines[0] if lines else f"status {output.status}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in ("", "localhost")


def _where(host: str) -> str:
    return "this machine" if reachable_address(host) != host.strip("[]") else host


def _only_loopback(host: str) -> Verdict:
    return Verdict(CHECK, Outcome.PASS, f"no other machine reaches the gate: the service binds {host or '127.0.0.1'}")


def _open(detail: str, step: str) -> Verdict:
    return Verdict(CHECK, Outcome.WARN, detail, next_step=step)
