"""``fab trust``: what is said of a key before anybody is asked, and what is pinned."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import ConnectError
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


CONTAINER = Endpoint("gpu1", "127.0.0.2", "root", 2)
WITH_CONTAINER = """hosts:
  gpu1:
    address: 127.0.0.1
    port: 1
    user: root
    container: {reached_by: ssh, id: 101, address: 127.0.0.2, port: 2, user: root}
"""


@pytest.fixture
def half_reachable(program: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """A host that does not answer, and its container, which does."""

    def fetch(endpoint: Endpoint, *_: object) -> list[paramiko.PKey]:
        if endpoint.port == 1:
            raise ConnectError("gpu1: 127.0.0.1:1 does not answer")
        return [NEW]

    monkeypatch.setattr("orchestrator.remote.trust.fetch_host_keys", fetch)
    (program.folder / "inventory" / "hosts.yml").write_text(WITH_CONTAINER)
    for service in (program.folder / "inventory").glob("services/*"):
        service.unlink()
    return program


def test_a_container_is_trusted_although_its_host_does_not_answer(half_reachable: FrontEnd) -> None:
    done = half_reachable.run("trust", "gpu1", "--yes")
    assert done.returncode == 4
    assert "gpu1: 127.0.0.1:1 does not answer" in done.stderr
    assert "gpu1/101, 127.0.0.2:2: pinned in" in done.stdout
    assert [item.key for item in known_keys(CONTAINER, [half_reachable.folder / "inventory" / "known_hosts"])] == [NEW]


def test_a_container_may_be_named_alone(half_reachable: FrontEnd) -> None:
    done = half_reachable.run("trust", "gpu1/101", "--yes")
    assert (done.returncode, "does not answer" in done.stderr) == (0, False)
    assert "gpu1/101, 127.0.0.2:2: pinned in" in done.stdout


def test_what_lies_behind_a_host_that_does_not_answer_is_not_asked(half_reachable: FrontEnd) -> None:
    hosts = half_reachable.folder / "inventory" / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("port: 2,", "port: 2, jump: gpu1,"))
    done = half_reachable.run("trust", "gpu1", "--yes")
    assert done.returncode == 4
    assert "gpu1/101: not asked, as the way to it leads through gpu1" in done.said
    assert "pinned in" not in done.stdout


@pytest.mark.parametrize("names", ["gpu1,gpu1", "all"])
def test_hosts_are_trusted_one_at_a_time(half_reachable: FrontEnd, names: str) -> None:
    done = half_reachable.run("trust", names, "--yes")
    assert done.returncode == 2
    assert f"one host at a time, and '{names}' names several" in done.stderr
