"""known_hosts files: what they say of a host, and what is written into them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import paramiko
import pytest
from paramiko.hostkeys import HostKeys

from orchestrator.errors import HostKeyError
from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.host_keys import describe_key, known_keys, pin, preferred_algorithms, verify

KEY = paramiko.ECDSAKey.generate()
OTHER = paramiko.ECDSAKey.generate()
RSA = paramiko.RSAKey.generate(2048)
ENDPOINT = Endpoint("gpu1", "192.0.2.1", "root", 2222)
NAME = "[192.0.2.1]:2222"


def line(names: str, key: paramiko.PKey, marker: str = "") -> str:
    return f"{marker}{names} {key.get_name()} {key.get_base64()} a comment\n"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (line(NAME, KEY), True),
        (line(f"gpu1,{NAME}", KEY), True),
        (line(HostKeys.hash_host(NAME), KEY), True),
        ("# comment\n\n" + line("other", OTHER) + line(NAME, KEY), True),
        (f"{NAME} garbage\n{NAME} ssh-ed25519 not-base64\n|1|bad|hash x y\n" + line(NAME, KEY), True),
        (line("192.0.2.1", KEY), False),
        (line(HostKeys.hash_host("192.0.2.1"), KEY), False),
        (line("*", KEY, "@cert-authority "), False),
        ("# " + line(NAME, KEY), False),
        ("", False),
    ],
)
def test_known(tmp_path: Path, text: str, known: bool) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(text)

    assert [item.key for item in known_keys(ENDPOINT, [tmp_path / "absent", path])] == ([KEY] if known else [])


def test_the_first_file_that_speaks_of_the_host_counts(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text(line(NAME, KEY))
    theirs.write_text(line(NAME, OTHER) + line("192.0.2.7", OTHER))

    assert [item.key for item in known_keys(ENDPOINT, [ours, theirs])] == [KEY]
    assert [item.path for item in known_keys(Endpoint("b", "192.0.2.7", "root"), [ours, theirs])] == [theirs]


def test_verify_accepts_any_known_key(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line(NAME, OTHER) + line(NAME, RSA) + line(NAME, KEY))

    verify(ENDPOINT, KEY, known_keys(ENDPOINT, [path]))


@pytest.mark.parametrize(
    ("text", "message", "next_step"),
    [
        ("", "is unknown", "fab trust gpu1"),
        (line(NAME, OTHER), "has CHANGED", "fab trust gpu1 --replace"),
        (line(NAME, RSA), "no longer offered", "fab trust gpu1 --replace"),
        (line(NAME, KEY) + line(NAME, KEY, "@revoked "), "revoked", "ask who runs the host"),
    ],
)
def test_verify_refuses(tmp_path: Path, text: str, message: str, next_step: str) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(text)

    with pytest.raises(HostKeyError, match=message) as raised:
        verify(ENDPOINT, KEY, known_keys(ENDPOINT, [path]))

    assert raised.value.evidence[0] == f"offered: {describe_key(KEY)}"
    assert next_step in (raised.value.next_step or "")


def test_a_revocation_counts_from_any_file(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text(line(NAME, KEY))
    theirs.write_text(line(NAME, KEY, "@revoked "))

    with pytest.raises(HostKeyError, match="revoked"):
        verify(ENDPOINT, KEY, known_keys(ENDPOINT, [ours, theirs]))


def test_the_known_type_is_asked_for_first(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line(NAME, RSA) + line(NAME, KEY))

    wanted = preferred_algorithms(known_keys(ENDPOINT, [path]), ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256"])

    assert wanted == ["rsa-sha2-512", "rsa-sha2-256", "ecdsa-sha2-nistp256", "ssh-ed25519"]


def test_pin_adds_and_is_idempotent(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text("# ours\n" + line("gpu2", OTHER))

    assert len(pin(path, ENDPOINT, [KEY, RSA])) == 2
    assert pin(path, ENDPOINT, [KEY, RSA]) == []
    assert path.read_text().startswith("# ours\n" + line("gpu2", OTHER))
    assert {item.key for item in known_keys(ENDPOINT, [path])} == {KEY, RSA}


def test_pin_replaces_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    hashed = line(HostKeys.hash_host(NAME), OTHER)
    path.write_text(hashed + line(f"gpu1,{NAME}", OTHER) + line("gpu2", OTHER) + line(NAME, OTHER, "@revoked "))

    with pytest.raises(HostKeyError, match="another key"):
        pin(path, ENDPOINT, [KEY])
    assert path.read_text().startswith(hashed)

    pin(path, ENDPOINT, [KEY], replace=True)

    assert [item.key for item in known_keys(ENDPOINT, [path]) if not item.revoked] == [KEY]
    assert path.read_text().startswith(line("gpu1", OTHER) + line("gpu2", OTHER) + line(NAME, OTHER, "@revoked "))


def test_pin_says_why_it_can_not_write(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="can't be written"):
        pin(tmp_path / "no" / "folder", dataclasses.replace(ENDPOINT), [KEY])
