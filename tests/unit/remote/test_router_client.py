"""The httpx edge of the router client: what is sent again, what never is, and that nothing of the environment steers it."""

from __future__ import annotations

import json

import httpx
import pytest

from orchestrator.agent.clock import Deadline
from orchestrator.agent.router_protocol import RouterFailed, add_worker, list_workers
from orchestrator.agent.wire_router import RouterAddress, Trouble
from orchestrator.remote.router_client import ATTEMPTS, open_router

ADDRESS = RouterAddress("front", "http://front:30000/", "http://front:29000/metrics", "RK")


class Scripted(httpx.MockTransport):
    """Answers as it is told, an exception for no answer; after the last it repeats that."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers)
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def empty() -> httpx.Response:
    return httpx.Response(200, text=json.dumps({"workers": [], "healthy_workers": 0}))


def test_a_read_is_sent_again_and_carries_the_key() -> None:
    transport = Scripted(httpx.ConnectError("refused"), empty())
    with open_router(ADDRESS, transport) as router:
        assert router.worker_of("http://w") is None
    assert [str(request.url) for request in transport.requests] == ["http://front:30000/workers"] * 2
    assert transport.requests[0].headers["Authorization"] == "Bearer RK"


def test_a_read_that_finds_nobody_ends_in_a_named_trouble() -> None:
    transport = Scripted(httpx.ReadTimeout("too slow"))
    with open_router(ADDRESS, transport) as router, pytest.raises(RouterFailed, match="front") as failed:
        router.look()
    assert failed.value.category == Trouble.UNREACHABLE
    assert len(transport.requests) == ATTEMPTS
    assert "RK" not in str(failed.value)


def test_a_write_is_never_sent_again() -> None:
    transport = Scripted(httpx.ReadError("cut off"))
    with open_router(ADDRESS, transport) as router, pytest.raises(RouterFailed):
        router.post("http://w", "WK")
    (request,) = transport.requests
    assert (request.method, json.loads(request.content)) == ("POST", {"url": "http://w", "api_key": "WK"})


def test_a_redirect_is_no_answer() -> None:
    transport = Scripted(httpx.Response(302, headers={"Location": "http://elsewhere/workers"}))
    with open_router(ADDRESS, transport) as router, pytest.raises(RouterFailed) as failed:
        router.look()
    assert failed.value.category == Trouble.NOT_UNDERSTOOD
    assert {request.url.host for request in transport.requests} == {"front"}


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with open_router(RouterAddress("front", "http://127.0.0.1:9")) as router, pytest.raises(RouterFailed, match=r"127\.0\.0\.1:9"):
        router.remove("http://w", Deadline(0.1))


def test_counters_are_read_at_their_own_url() -> None:
    transport = Scripted(empty(), empty(), httpx.Response(200, text='smg_worker_retries_total{endpoint="generate"} 3\n'))
    with open_router(ADDRESS, transport) as router:
        view = router.look()
    assert view.counters is not None
    assert view.counters.retries == 3
    assert str(transport.requests[-1].url) == "http://front:29000/metrics"


def test_reading_is_what_may_be_repeated() -> None:
    assert list_workers().reads
    assert not add_worker("http://w", None).reads
