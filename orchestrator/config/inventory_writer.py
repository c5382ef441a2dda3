"""The text of an inventory's files for a machine that was found: hosts.yml and its entries, and a tuning profile. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.agent.private_files import DEFAULT_ROOT
from orchestrator.config.models import Become, ReachedBy
from orchestrator.config.yaml_writer import comment_line, commented_line, yaml_value

HOSTS_HEADING = """\
# The machines, and how each is reached. `--host NAME` and `-H NAME` mean the names below, never DNS names.
#
# Checked by `fab hosts`; every mistake is reported as FILE:LINE. YAML here is kept free of its traps: true and false are the
# only booleans, and what readers of YAML take for different things (off, 22:22, 0755, 1e-3) must be put in quotes.
# Anchors, aliases and merge keys are not used.

hosts:
"""

KNOWN_HOSTS_HEADING = """\
# Host keys of the machines in hosts.yml, in OpenSSH's format. Read first, then the operator's own ~/.ssh/known_hosts.
# `fab trust HOST` shows a machine's key and, once you have compared its fingerprint, adds it here.
"""

_ENTRY_INDENTATION = 2
_ENTRY = re.compile(r"^( +)[^\s#].*:", re.MULTILINE)
_KERNEL = re.compile(r"(\d+\.\d+)\.")
_DRIVER = re.compile(r"(\d+)\.\d")

TUNING_HEADING = """\
# What the knobs of {name} should be: a copy of the profile {base}, which comes with the program, for you to change. `fab prep`
# reads each knob, sets what differs, reads it back, and keeps the values it found, so that `fab prep --revert` can put them back.
# `fab prep --plan` shows what would be done.
#
# A knob without a value is read and told, never set. With `fab prep --persist` those that have one are set at each boot
# too; `persist: false` leaves one out of that. Little of this is proven to make decoding faster: time it, before and after.
"""


@dataclass(frozen=True)
class ContainerEntry:
    """A container that is entered through its host. `id` is Proxmox's number, or a name that is one; else `name` counts."""

    reached_by: ReachedBy
    id: int | None = None
    name: str | None = None
    title: str = ""


@dataclass(frozen=True)
class HostEntry:
    """One machine for hosts.yml.

    Attributes:
        about: what it is, in a line of comment.
        gpus: how many there must be; None leaves it out, with `gpus_comment` beside it.
    """

    name: str
    address: str
    user: str
    port: int = 22
    become: Become = "none"
    identity_files: Sequence[str] = ()
    jump: str | None = None
    state_root: str = DEFAULT_ROOT
    gpus: int | None = None
    gpus_comment: str = ""
    tuning: str | None = None
    container: ContainerEntry | None = None
    about: str = ""


def host_text(entry: HostEntry, indentation: int = _ENTRY_INDENTATION) -> str:
    """The entry's lines, to stand below ``hosts:``."""
    lines = [comment_line(entry.about)] if entry.about else []
    lines.append(f"{yaml_value(entry.name)}:")
    lines += [f"  {line}" for line in _host_lines(entry)]
    return "".join(f"{' ' * indentation}{line}\n" if line else "\n" for line in lines)


def _host_lines(entry: HostEntry) -> list[str]:
    lines = [
        commented_line("address", entry.address, "a name or an IP address"),
        commented_line("port", entry.port, "of its SSH server"),
        commented_line("user", entry.user, "who logs in"),
        commented_line("become", entry.become, "none | sudo (`sudo -n`, which never asks)"),
    ]
    if entry.identity_files:
        lines.append(commented_line("identity_files", list(entry.identity_files), "only these keys are offered"))
    if entry.jump is not None:
        lines.append(commented_line("jump", entry.jump, "another entry of this file, through which it is reached"))
    lines.append(commented_line("state_root", entry.state_root, "holds one folder for each service, on the machine"))
    if entry.gpus is not None:
        lines.append(commented_line("gpus", entry.gpus, entry.gpus_comment or "how many there must be"))
    elif entry.gpus_comment:
        lines.append(comment_line(f"gpus: left out: {entry.gpus_comment}"))
    if entry.tuning is not None:
        lines.append(commented_line("tuning", entry.tuning, "what `fab prep` brings it to: a profile of tuning/"))
    return lines if entry.container is None else [*lines, *_container_lines(entry.container, entry.state_root)]


def _container_lines(entry: ContainerEntry, state_root: str) -> list[str]:
    lines = [commented_line("reached_by", entry.reached_by, "run on the host: ssh | pct | lxc-attach | incus")]
    if entry.id is not None:
        lines.append(commented_line("id", entry.id, f"called {entry.title} there" if entry.title else "its number there"))
    if entry.name is not None:
        lines.append(commented_line("name", entry.name, "what it is called there"))
    lines.append(commented_line("state_root", state_root, "the same, in the container"))
    return ["container:", *(f"  {line}" for line in lines)]


def with_entries(text: str | None, entries: Sequence[HostEntry]) -> str | None:
    """hosts.yml with `entries` at the end of its hosts; every line that is there stays as it is. None where that can't be done.

    Args:
        text: the file as it is; None where there is none.
    """
    if text is None:
        return HOSTS_HEADING + "\n".join(host_text(entry) for entry in entries)
    before = _hosts_in(text)
    if before is None or any(entry.name in before for entry in entries):
        return None
    found = _ENTRY.search(text)
    indentation = len(found[1]) if found is not None else _ENTRY_INDENTATION
    above, groups = _parted(text)
    after = "".join([above if above.endswith("\n") else f"{above}\n", *(f"\n{host_text(entry, indentation)}" for entry in entries), groups])
    hosts = _hosts_in(after)
    added = [entry.name for entry in entries]
    if hosts is None or list(hosts) != [*before, *added] or any(hosts[name] != before[name] for name in before):
        return None
    return after


def _parted(text: str) -> tuple[str, str]:
    """A hosts.yml before and from where its groups begin, with the blank and commented lines above them, if they stand below the hosts."""
    below = re.search(r"^hosts:.*?^((?:[ \t]*(?:#[^\n]*)?\n)*groups:.*)", text, re.MULTILINE | re.DOTALL)
    return (text, "") if below is None else (text[: below.start(1)], text[below.start(1) :])


def _hosts_in(text: str) -> Mapping[str, Any] | None:
    """The entries of a hosts.yml that holds nothing else, but groups; an empty ``hosts:`` has none."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    if not isinstance(data, dict) or set(data) - {"groups"} != {"hosts"}:
        return None
    hosts = data["hosts"] if data["hosts"] is not None else {}
    return hosts if isinstance(hosts, dict) else None


def tuning_text(base: str, text: str, name: str, about: str, kernel: str | None, driver: str | None) -> str:
    """A tuning profile called `name` with the knobs, and the comments, of the shipped profile `base`, whose file holds `text`.

    Args:
        kernel: what runs there (``uname -r``), driver: the NVIDIA kernel module's version; of both only the series is expected.
    """
    _, heading, knobs = text.partition("\nknobs:\n")
    assert heading, f"{base} has its knobs at its end"
    lines = [TUNING_HEADING.format(name=name, base=base), f"name: {yaml_value(name)}", f"summary: {yaml_value(about)}", ""]
    expected = {"kernel": series(_KERNEL, kernel), "driver": series(_DRIVER, driver)}
    if any(expected.values()):
        lines += ["# What was there when this was written, as shell patterns; `fab doctor` tells when it has changed.", "expect:"]
        lines += [f"  {key}: {yaml_value(pattern)}" for key, pattern in expected.items() if pattern is not None]
        lines.append("")
    return "\n".join([*lines, "knobs:", knobs])


def series(pattern: re.Pattern[str], version: str | None) -> str | None:
    """``6.8.*`` of ``6.8.12-9-pve``: what stays the same while a machine only gets its updates."""
    found = pattern.match(version or "")
    return None if found is None else f"{found[1]}.*"
