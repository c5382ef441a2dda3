"""Requests to a router and its answers, by what both routers really said (tests/data/router)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.agent import router_protocol as protocol
from orchestrator.agent.router import not_serving
from orchestrator.agent.router_protocol import Reply, RouterFailed
from orchestrator.agent.wire_router import RouterView, Trouble, Worker, plain_url

DATA = Path(__file__).resolve().parents[2] / "data" / "router"
OLD, NEW = "sglang-router-0.3.2", "smg-1.13.0"
both = pytest.mark.parametrize("kind", [OLD, NEW])


def reply(kind: str, name: str) -> Reply:
    kept = json.loads((DATA / kind / f"{name}.json").read_text())
    return Reply(kept["status"], kept["body"] if isinstance(kept["body"], str) else json.dumps(kept["body"]))


def metrics(kind: str, name: str) -> str:
    return (DATA / kind / f"metrics_{name}.txt").read_text()


@both
def test_workers_are_read_and_found_by_url(kind: str) -> None:
    workers = protocol.read_workers(reply(kind, "workers_two"))
    assert sorted(worker.url for worker in workers) == ["http://127.0.0.1:21001", "http://127.0.0.1:21002"]
    assert all(worker.serves and worker.model_id == "/models/tiny" for worker in workers)
    view = RouterView(workers, 2)
    found = view.worker("HTTP://127.0.0.1:21002/")
    assert found is not None
    assert found.id
    assert view.worker("http://127.0.0.1:21003") is None
    assert protocol.read_workers(reply(kind, "workers_empty")) == []


@both
def test_readiness_is_a_number_and_503_is_none(kind: str) -> None:
    assert protocol.read_healthy(reply(kind, "readiness_two")) == 2
    assert protocol.read_healthy(reply(kind, "readiness_after_delete")) == 1
    assert protocol.read_healthy(reply(kind, "readiness_none")) == 0


@both
def test_a_worker_that_was_removed_is_none_and_removing_it_again_is_no_error(kind: str) -> None:
    protocol.read_removed(reply(kind, "delete"))
    assert protocol.read_worker(reply(kind, "worker_gone")) is None
    protocol.read_removed(reply(kind, "delete_again"))


def test_smg_drains_a_worker_that_is_being_removed_and_the_older_one_has_none() -> None:
    assert protocol.read_worker(reply(OLD, "worker_after_delete")) is None
    draining = protocol.read_worker(reply(NEW, "worker_after_delete"))
    assert draining is not None
    assert (draining.status, draining.serves) == ("draining", False)


@both
def test_a_202_says_nothing_of_the_worker(kind: str) -> None:
    assert protocol.read_added(reply(kind, "post"))
    assert protocol.read_added(reply(kind, "post_dead"))
    for name in ("worker_pending", "worker_dead"):
        worker = protocol.read_worker(reply(kind, name))
        assert worker is not None
        assert not worker.serves
    back = protocol.read_worker(reply(kind, "worker_back"))
    assert back is not None
    assert back.serves


def test_adding_what_is_there_is_a_202_and_a_failed_job_or_a_409() -> None:
    assert protocol.read_added(reply(OLD, "post_again")) is not None
    failed = protocol.read_worker(reply(OLD, "worker_post_again"))
    assert failed is not None
    assert failed.serves
    assert (failed.job_status, "already exists" in str(failed.job_message)) == ("failed", True)
    assert protocol.read_added(reply(NEW, "post_again")) is None


@both
def test_a_keyed_worker_without_its_key_does_not_serve_however_healthy_it_looks(kind: str) -> None:
    worker = protocol.read_worker(reply(kind, "worker_keyless"))
    assert worker is not None
    assert worker.healthy is (kind == OLD)
    assert not worker.serves
    keyed = protocol.read_worker(reply(kind, "worker_keyed"))
    assert keyed is not None
    assert keyed.serves


@both
def test_another_key_is_named_as_such(kind: str) -> None:
    with pytest.raises(RouterFailed, match="another key") as failed:
        protocol.read_workers(reply(kind, "workers_unauthorized"))
    assert failed.value.category == Trouble.UNAUTHORIZED


@pytest.mark.parametrize(
    "answer",
    [
        Reply(200, "<html>nginx</html>"),
        Reply(404, '{"detail":"Not Found"}'),
        Reply(200, "[]"),
        Reply(200, '{"workers":[{"id":1}]}'),
        Reply(502, ""),
    ],
)
def test_what_is_no_router_is_told(answer: Reply) -> None:
    with pytest.raises(RouterFailed) as failed:
        protocol.read_workers(answer)
    assert failed.value.category == Trouble.NOT_UNDERSTOOD


def test_a_key_travels_with_the_worker_only() -> None:
    assert protocol.add_worker("http://w", None).body == {"url": "http://w"}
    assert protocol.add_worker("http://w", "WK").body == {"url": "http://w", "api_key": "WK"}
    assert [ask.reads for ask in (protocol.list_workers(), protocol.add_worker("http://w", None), protocol.remove_worker("1"))] == [
        True,
        False,
        False,
    ]


def test_counters_of_the_older_router() -> None:
    served = protocol.read_counters(metrics(OLD, "served"))
    assert (served.requests, served.answered, served.failed, served.retries, served.upstream_errors) == (6, 6, 0, 0, 0)
    retried = protocol.read_counters(metrics(OLD, "retried"))
    assert (retried.requests, retried.answered, retried.failed, retried.retries, retried.upstream_errors) == (18, 18, 0, 6, 6)
    assert retried.by_worker == {"http://127.0.0.1:21001": 9, "http://127.0.0.1:21002": 3, "http://127.0.0.1:21003": 6}
    none = protocol.read_counters(metrics(OLD, "none"))
    assert (none.requests, none.answered, none.failed, none.retries, none.exhausted) == (19, 18, 1, 10, 1)


def test_counters_of_smg() -> None:
    retried = protocol.read_counters(metrics(NEW, "retried"))
    assert (retried.requests, retried.answered, retried.failed, retried.retries, retried.upstream_errors) == (18, 18, 0, 4, 4)
    assert retried.by_worker["http://127.0.0.1:21003"] == 6
    none = protocol.read_counters(metrics(NEW, "none"))
    assert (none.requests, none.answered, none.failed) == (19, 18, 1), "no worker at all is a 404 there"


def test_an_open_circuit_breaker_is_no_serving_worker_however_healthy_it_looks() -> None:
    workers = protocol.read_workers(reply(OLD, "workers_two"))
    text = 'smg_worker_cb_state{worker="http://127.0.0.1:21002"} 1\nsmg_worker_cb_state{worker="http://127.0.0.1:21001"} -1\n'
    counters = protocol.read_counters(text)
    urls = [worker.url for worker in workers]
    assert not_serving(RouterView(workers, 2), urls) == []
    (missing,) = not_serving(RouterView(workers, 2, counters), urls)
    assert missing.startswith("http://127.0.0.1:21002 has failed so often")


def test_urls_are_compared_in_one_form() -> None:
    assert plain_url("HTTP://Gpu1:30000/") == plain_url("gpu1:30000") == "http://gpu1:30000"
    assert plain_url("http://gpu1/Base/") == "http://gpu1/Base"


def test_a_worker_without_a_model_does_not_serve() -> None:
    assert not Worker("1", "http://w", None, healthy=True).serves
    assert not Worker("1", "http://w", "unknown", healthy=True).serves
    assert Worker("1", "http://w", "m", healthy=True, status="ready").serves
    assert not Worker("1", "http://w", "m", healthy=True, status="draining").serves
