"""Stopping a stand-in with requests in flight: those that finish, those that are aborted, and those that are cut."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from orchestrator.agent import drain, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.http import Client, HttpError
from orchestrator.agent.launch_files import ExitStatus
from orchestrator.agent.processes import Server, find_server
from orchestrator.agent.stopping import Phase, StopReport, stop_server
from tests.lab.conftest import Standin

Start = Callable[..., Standin]
KEY = "k-1"
CLIENTS = 3


class Busy:
    """A server with requests of some clients in flight."""

    def __init__(self, standin: Standin, tokens: int) -> None:
        self._process = standin.process
        found = find_server(standin.port)
        assert found is not None
        self.server: Server = found
        self.client = Client(standin.port, "0.0.0.0", KEY)
        self.ends: list[str] = []
        self._body = {"text": "about", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]

    def _ask(self) -> None:
        try:
            answer = self.client.post_json("/generate", self._body, 60.0)
            self.ends.append(answer["meta_info"]["finish_reason"]["type"])
        except HttpError as error:
            self.ends.append(type(error).__name__)

    def stop(self, policy: wire.Policy, client: Client | None = None) -> StopReport:
        asked = client or self.client
        return stop_server(
            self.server,
            policy,
            lambda *_: None,
            load=lambda: drain.load_of(asked),
            abort=lambda: drain.abort_all(asked),
            exit_status=self._exit_status,
            version="0.5.23",
        )

    def _exit_status(self) -> ExitStatus | None:
        status = self._process.poll()
        if status is None:
            return None
        return ExitStatus("signal", "killed", str(-status)) if status < 0 else ExitStatus("", "exited", str(status))

    @contextmanager
    def requests(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        assert wait_until(lambda: drain.load_of(self.client) == CLIENTS, Deadline(20.0))
        yield
        for thread in self._threads:
            thread.join()


@pytest.fixture
def busy(start: Start) -> Callable[[int], Busy]:
    return lambda tokens: Busy(start("--api-key", KEY, "--host", "0.0.0.0", tokens_per_second=100).wait_ready(), tokens)


def test_requests_that_finish_in_time_are_not_lost(busy: Callable[[int], Busy]) -> None:
    made = busy(150)
    with made.requests():
        report = made.stop(wire.Policy(drain=30.0))

    assert made.ends == ["length"] * CLIENTS
    assert report.requests_lost == 0
    assert report.killed == []


def test_requests_that_do_not_are_aborted_and_counted(busy: Callable[[int], Busy]) -> None:
    made = busy(3000)
    with made.requests():
        report = made.stop(wire.Policy(drain=0.5))

    assert made.ends == ["abort"] * CLIENTS
    assert report.requests_lost == CLIENTS
    assert Phase.ABORTING in [stage.name for stage in report.stages]
    assert report.killed == []


def test_requests_that_are_not_to_be_aborted_are_cut_with_the_server_and_counted(busy: Callable[[int], Busy]) -> None:
    made = busy(3000)
    with made.requests():
        report = made.stop(wire.Policy(drain=0.3, grace=0.5, drain_end=wire.DrainEnd.STOP))

    assert made.ends == ["BrokenError"] * CLIENTS
    assert report.requests_lost == CLIENTS
    assert report.killed


def test_without_the_key_nobody_can_tell(busy: Callable[[int], Busy]) -> None:
    made = busy(100)
    with made.requests():
        report = made.stop(wire.Policy(drain=5.0), Client(made.client.port))

    assert report.requests_lost is None
