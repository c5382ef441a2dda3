"""Host keys: what is known, whether an offered one may be trusted, and how a new one is pinned.

The format is OpenSSH's known_hosts (sshd(8)): hashed names, ``[address]:port`` and ``@revoked`` are understood; wildcards and
``@cert-authority`` are not, so such a host counts as unknown.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys

from orchestrator.errors import HostKeyError
from orchestrator.remote.endpoint import Endpoint

KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
"""In the order of preference; what paramiko 5 can verify."""

SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""Algorithms to ask for, where they are not called like the key's type (RFC 8332)."""


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that speaks of the host."""

    key: paramiko.PKey
    path: Path
    line: int
    revoked: bool = False


def describe_key(key: paramiko.PKey) -> str:
    """A key as ``ssh-keygen -l`` tells it: its type and SHA256 fingerprint."""
    return f"{key.get_name()} {key.fingerprint}"


def user_known_hosts() -> Path:
    """OpenSSH's own file of the operator."""
    return Path.home() / ".ssh" / "known_hosts"


def known_keys(endpoint: Endpoint, files: Sequence[Path]) -> list[KnownKey]:
    """What the first of `files` that speaks of the endpoint says; a revocation counts from any of them."""
    chosen: list[KnownKey] = []
    revoked: list[KnownKey] = []
    for path in files:
        found = list(_matching_keys(endpoint.known_hosts_name, path))
        revoked += [item for item in found if item.revoked]
        chosen = chosen or [item for item in found if not item.revoked]
    return revoked + chosen


def _matching_keys(name: str, path: Path) -> Iterator[KnownKey]:
    for line in _lines_about(name, path):
        try:
            entry = HostKeyEntry.from_line(line.entry, line.number)
        except (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
            continue
        if entry is not None and entry.key is not None:
            yield KnownKey(entry.key, path, line.number, revoked=line.revoked)


class _Line(NamedTuple):
    number: int
    entry: str
    """Without its marker."""
    revoked: bool


class _File(NamedTuple):
    """A file of known hosts: the lines by each name, and those whose name is hashed."""

    plain: dict[str, list[_Line]]
    hashed: list[tuple[str, _Line]]


def _lines_about(name: str, path: Path) -> list[_Line]:
    try:
        status = path.stat()
        file = _read_file(path, status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostKeyError(f"{path} can't be read: {error.strerror}", next_step=f"ls -l {path}") from error
    found = {*file.plain.get(name, ()), *(line for hashed, line in file.hashed if _hash_matches(name, hashed))}
    return sorted(found)


@functools.lru_cache(maxsize=16)
def _read_file(path: Path, changed: int, size: int) -> _File:
    """The file as it was when it was last `changed`: with many hosts, each asks for its own line of the same one."""
    file = _File({}, [])
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        marker, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
        names = rest.split(maxsplit=1)[:1]
        if not names or text.startswith("#") or marker not in ("", "@revoked"):
            continue
        line = _Line(number, rest.strip(), bool(marker))
        for item in names[0].split(","):
            if item.startswith("|1|"):
                file.hashed.append((item, line))
            else:
                file.plain.setdefault(item, []).append(line)
    return file


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostKeyError(f"{path} can't be read: {error.strerror}", next_step=f"ls -l {path}") from error


def _names_match(name: str, names: str) -> bool:
    return any(item == name or (item.startswith("|1|") and _hash_matches(name, item)) for item in names.split(","))


def _hash_matches(name: str, hashed: str) -> bool:
    try:
        return HostKeys.hash_host(name, hashed) == hashed
    except (ValueError, AssertionError, IndexError):  # a damaged line
        return False


def preferred_algorithms(known: Sequence[KnownKey], available: Sequence[str]) -> list[str]:
    """`available` with those first that prove a known key: else a host known by its ed25519 key alone is asked for its RSA key."""
    types = [item.key.get_name() for item in known if not item.revoked]
    wanted = [algorithm for kind in types for algorithm in SIGNATURES.get(kind, (kind,)) if algorithm in available]
    return list(dict.fromkeys([*wanted, *available]))


def verify(endpoint: Endpoint, offered: paramiko.PKey, known: Sequence[KnownKey]) -> None:
    """Return if `offered` is one of the known keys.

    Raises:
        HostKeyError: it is revoked, changed or unknown; the message tells which, the evidence holds the fingerprints.
    """
    host, where = endpoint.host, endpoint.where
    same = [item for item in known if item.key == offered]
    if any(item.revoked for item in same):
        raise HostKeyError(
            f"{host}: {where} offers a host key that is marked @revoked: do not connect",
            evidence=[f"offered: {describe_key(offered)}", *(f"revoked in {item.path}:{item.line}" for item in same if item.revoked)],
            next_step="ask who runs the host why the key was revoked",
        )
    if same:
        return
    trusted = [item for item in known if not item.revoked]
    evidence = [f"offered: {describe_key(offered)}", *(f"known:   {describe_key(item.key)} ({item.path}:{item.line})" for item in trusted)]
    if not trusted:
        raise HostKeyError(
            f"{host}: the host key of {where} is unknown",
            evidence=evidence,
            next_step=f"compare with its console (ssh-keygen -lf {_key_file(offered)}), then: fab trust {host}",
        )
    same_type = any(item.key.get_name() == offered.get_name() for item in trusted)
    what = "the host key has CHANGED" if same_type else f"the known host key is no longer offered, only one of type {offered.get_name()}"
    raise HostKeyError(
        f"{host}: {what} at {where}: another machine answers, or the host was reinstalled",
        evidence=evidence,
        next_step=f"find out why; if the host was reinstalled: fab trust {host} --replace",
    )


def replaced_keys(offered: Sequence[paramiko.PKey], known: Sequence[KnownKey]) -> list[KnownKey]:
    """The keys that are trusted now, of which the host offers none: pinning what it offers replaces them."""
    return [item for item in known if not item.revoked and item.key not in offered]


def changed_keys(endpoint: Endpoint, offered: Sequence[paramiko.PKey], replaced: Sequence[KnownKey]) -> HostKeyError:
    """The error for a host that no longer has a key that is trusted, with both sides' fingerprints."""
    return HostKeyError(
        f"{endpoint.host}: the host key of {endpoint.where} has CHANGED: another machine answers, or the host was reinstalled",
        evidence=[
            *(f"pinned:  {describe_key(item.key)} ({item.path}:{item.line})" for item in replaced),
            *(f"offered: {describe_key(key)}" for key in offered),
        ],
        next_step=f"find out why; if the host was reinstalled: fab trust {endpoint.host} --replace",
    )


def compared_keys(endpoint: Endpoint, offered: Sequence[paramiko.PKey], fingerprints: Collection[str]) -> list[paramiko.PKey]:
    """Those of the offered keys that were compared elsewhere (``SHA256:...``).

    Each key is asked for by a connection of its own, so one that is right proves nothing of the others.

    Raises:
        HostKeyError: there is none among them.
    """
    wanted = {item.strip().rstrip("=") for item in fingerprints}
    found = [key for key in offered if key.fingerprint.rstrip("=") in wanted]
    if not found:
        raise HostKeyError(
            f"{endpoint.host}: {endpoint.where} offers no key with a fingerprint that was given",
            evidence=[*(f"offered: {describe_key(key)}" for key in offered), *(f"given:   {item}" for item in fingerprints)],
            next_step="on its console: for f in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $f; done",
        )
    return found


def _key_file(key: paramiko.PKey) -> str:
    kind = key.get_name().removeprefix("ssh-").split("-")[0]
    return f"/etc/ssh/ssh_host_{kind}_key.pub"


def pin(path: Path, endpoint: Endpoint, keys: Sequence[paramiko.PKey], *, replace: bool = False) -> list[str]:
    """Write `keys` as the endpoint's into the known_hosts file `path` (made if need be) and return the lines added.

    Keys that are pinned already are left alone. With `replace`, what the file says of the endpoint is removed first.

    Raises:
        HostKeyError: the file holds another key of the endpoint and `replace` is False, or can't be written.
    """
    name = endpoint.known_hosts_name
    pinned = [item for item in _matching_keys(name, path) if not item.revoked]
    others = [item for item in pinned if all(item.key != key for key in keys)]
    lines = _read_lines(path)
    if others and not replace:
        raise HostKeyError(
            f"{endpoint.host}: {path} holds another key of {endpoint.where}",
            evidence=[f"{path}:{item.line}: {describe_key(item.key)}" for item in others],
            next_step=f"find out why; if the host was reinstalled: fab trust {endpoint.host} --replace",
        )
    if others:
        lines = [kept for line in lines if (kept := _without_name(line, name)) is not None]
        pinned = []
    added = [f"{name} {key.get_name()} {key.get_base64()}" for key in keys if all(item.key != key for item in pinned)]
    if added:
        _write_lines(path, lines + added)
    return added


def _without_name(line: str, name: str) -> str | None:
    """The line without `name` among its hosts; None when no other is left. Comments and markers stay."""
    names, _, rest = line.partition(" ")
    if line.startswith(("#", "@")) or not _names_match(name, names):
        return line
    left = [item for item in names.split(",") if not _names_match(name, item)]
    return f"{','.join(left)} {rest}" if left else None


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HostKeyError(f"{path} can't be written: {error.strerror}", next_step=f"ls -ld {path.parent}") from error
