"""``fab trust``: what is said of a key before anybody is asked, and what is pinned."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from orchestrator.remote.endpoint import Endpoint
from orchestrator.remote.host_keys import describe_key, known_keys, pin
from tests.unit.cli.test_front_ends import FrontEnd, make_front_end

NEW, OLD = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
ENDPOINT = Endpoint("gpu1", "127.0.0.1", "root", 1)


@pytest.fixture
def program(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("orchestrator.remote.trust.fetch_host_keys", lambda *_: [NEW])
    return make_front_end("orchestrator", tmp_path, capsys, monkeypatch)


def pinned(program: FrontEnd) -> list[paramiko.PKey]:
    return [item.key for item in known_keys(ENDPOINT, [program.folder / "inventory" / "known_hosts"])]


def test_a_first_key_is_shown_and_pinned(program: FrontEnd) -> None:
    done = program.run("trust", "gpu1", "--yes")
    assert done.returncode == 0
    assert describe_key(NEW) in done.stdout
    assert "CHANGED" not in done.stdout
    assert pinned(program) == [NEW]


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_a_changed_key_is_refused_with_both_fingerprints_before_any_question(program: FrontEnd, words: tuple[str, ...]) -> None:
    pin(program.folder / "inventory" / "known_hosts", ENDPOINT, [OLD])
    done = program.run("trust", "gpu1", *words)
    assert done.returncode == 4
    assert "has CHANGED" in done.said
    assert f"pinned: {describe_key(OLD)}" in done.said
    assert f"offered: {describe_key(NEW)}" in done.said
    assert "next: find out why; if the host was reinstalled: fab trust gpu1 --replace" in done.stderr
    assert pinned(program) == [OLD]


def test_a_key_that_only_the_operators_own_file_knows_is_changed_too(program: FrontEnd) -> None:
    (program.folder / ".ssh").mkdir()
    pin(program.folder / ".ssh" / "known_hosts", ENDPOINT, [OLD])
    assert program.run("trust", "gpu1", "--yes").returncode == 4
    assert program.run("trust", "gpu1", "--replace", "--yes").returncode == 0
    assert pinned(program) == [NEW]


def test_replacing_shows_the_old_key_and_says_that_it_replaces(program: FrontEnd) -> None:
    pin(program.folder / "inventory" / "known_hosts", ENDPOINT, [OLD])
    asked = program.run("trust", "gpu1", "--replace")
    assert asked.returncode == 2
    assert "next: compare, then give --replace --yes" in asked.stderr
    assert asked.stdout.index("has CHANGED") < asked.stdout.index(describe_key(OLD)) < asked.stdout.index(describe_key(NEW))
    done = program.run("trust", "gpu1", "--replace", "--yes")
    assert "instead of the old ones" in done.stdout
    assert pinned(program) == [NEW]
