"""The moment of a server's last good answer, on stand-ins over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.drain import LastAnswer, load_of, read_last_answer
from orchestrator.agent.http import Client
from tests.agent.standin_sglang import StandIn, stand_in


def seen(server: StandIn, client: Client, keep: Path | None = None) -> float:
    """Ask until the server has answered, then close it: how long after its end the moment lies (not at all)."""
    with LastAnswer(client, keep) as last:
        assert wait_until(lambda: last.moment is not None, Deadline(10.0))
        server.close()
        closed = time.monotonic()
        wait_until(lambda: False, Deadline(0.4))
    assert last.moment is not None
    assert closed - 2.0 < last.moment <= closed
    return last.moment


@pytest.mark.parametrize("key", [None, "k-1", "another"])
def test_a_server_without_the_quickest_endpoint_with_a_key_or_with_one_that_is_not_known(key: str | None) -> None:
    server = StandIn()
    server.key = None if key is None else "k-1"
    seen(server, Client(server.port, "0.0.0.0", key))

    assert "GET /v1/models" in server.asked


def test_the_moment_is_kept_for_whoever_takes_the_stop_over(tmp_path: Path) -> None:
    keep = tmp_path / "last-answer"
    server = StandIn()
    moment = seen(server, Client(server.port), keep)

    assert read_last_answer(keep) == pytest.approx(moment, abs=0.5)
    with LastAnswer(Client(server.port), keep) as last:
        assert last.moment == read_last_answer(keep)


@pytest.mark.parametrize("content", [None, "", "torn"])
def test_a_moment_that_was_not_kept(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "last-answer").write_text(content)

    assert read_last_answer(tmp_path / "last-answer") is None


def test_a_load_behind_a_key_that_is_not_known_is_unknown() -> None:
    with stand_in() as server:
        server.key, server.load = "k-1", 3

        assert load_of(Client(server.port, "0.0.0.0", "k-1")) == 3
        assert load_of(Client(server.port, "0.0.0.0")) is None
