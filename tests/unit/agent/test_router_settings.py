"""A router's settings, read off its command line or off the unit that it runs in."""

from __future__ import annotations

import pytest

from orchestrator.agent import router_settings
from orchestrator.agent.router_settings import BadFlagError, is_here, read_flags, settings_at
from orchestrator.agent.wire_router import RouterSettings

ROUTER = ["/srv/router/bin/python", "-m", "sglang_router.launch_router", "--port", "30001"]


def test_what_is_not_named_has_the_routers_own_default() -> None:
    assert read_flags(ROUTER, "here") == RouterSettings(source="here")


def test_flags_are_read_as_argparse_reads_them() -> None:
    retries = ["--retry-max-retries", "5", "--retry-max-retries=40", "--retry-initial-backoff-ms", "500"]
    checks = ["--health-check-interval-secs=2", "--health-failure-threshold", "4", "--health-success-threshold", "1"]
    found = read_flags([*ROUTER, *retries, *checks, "--cb-failure-threshold", "3"], "x")
    assert (found.attempts, found.first, found.breaker_failures) == (40, 0.5, 3)
    assert (found.check_every, found.check_failures, found.check_successes) == (2.0, 4, 1)


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--disable-retries", "attempts", 1),
        ("--disable-circuit-breaker", "breaker_failures", None),
        ("--cb-failure-threshold=4294967295", "breaker_failures", None),
        ("--disable-health-check", "check_failures", None),
    ],
)
def test_what_is_off_is_off(flag: str, name: str, value: object) -> None:
    assert getattr(read_flags([*ROUTER, flag], ""), name) == value


def test_a_value_that_is_no_number_is_said() -> None:
    with pytest.raises(BadFlagError, match="--retry-max-retries many"):
        read_flags(["--retry-max-retries", "many"], "")
    with pytest.raises(BadFlagError, match=r"2\.5: not a whole"):
        read_flags(["--retry-max-retries", "2.5"], "")


def started(monkeypatch: pytest.MonkeyPatch, words: list[str], unit: str = "", exec_start: str = "") -> RouterSettings | None:
    monkeypatch.setattr(router_settings, "listening_pids", lambda port: {4711} if port == 30001 else set())
    monkeypatch.setattr(router_settings, "_command_line", lambda pid: words)
    monkeypatch.setattr(router_settings, "_unit_of", lambda pid: unit)
    monkeypatch.setattr("orchestrator.agent.systemd.show", lambda name, *properties: {"ExecStart": exec_start} if name == unit else {})
    return settings_at("http://127.0.0.1:30001")


def test_the_process_on_the_port_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    found = started(monkeypatch, [*ROUTER, "--api-key", "secret", "--retry-max-retries", "40"])
    assert found == RouterSettings(attempts=40, source="the command line of process 4711")


def test_where_the_title_hides_the_command_line_its_unit_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "{ path=/srv/smg ; argv[]=/srv/smg launch --retry-max-retries 40 ; ignore_errors=no ; start_time=[n/a] ; pid=0 }"
    found = started(monkeypatch, ["smg::router      "], "router.service", shown)
    assert found == RouterSettings(attempts=40, source="ExecStart= of router.service")


@pytest.mark.parametrize("words", [["smg::router"], ["nginx: master process"], [], [*ROUTER, "--retry-max-retries", "x"]])
def test_what_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    assert started(monkeypatch, words) is None


def test_another_machines_router_is_not_looked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_settings, "listening_pids", lambda port: pytest.fail("looked"))
    assert settings_at("http://192.0.2.7:30001") is None
    assert not is_here("192.0.2.7")
    assert is_here("127.0.0.1")
