"""Proving readiness against stand-ins: an HTTP server on loopback, processes that sleep, a log that the test writes."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.clock import Deadline, SteadyClock, wait_until
from orchestrator.agent.ready import ReadyReport, wait_ready
from orchestrator.agent.steps import LaunchFailed
from tests.agent.serving import free_port
from tests.agent.standin_sglang import Members, StandIn, stand_in

ENTRY = ("python", "-m", "sglang.launch_server")
CAPTURES = Path(__file__).parents[1] / "data/captures"


@dataclass(frozen=True)
class Ended:
    code: str
    status: str


@dataclass
class Scene:
    """A launch on a free port with a main process and one scheduler; the test adds what happens."""

    log: Path
    port: int = field(default_factory=free_port)
    members: Members = field(default_factory=Members)
    policy: wire.Policy = field(default_factory=wire.Policy)
    ended: Ended | None = None
    owners: set[int] | None = None
    arguments: list[str] = field(default_factory=lambda: ["--model-path", "/models/m"])
    reports: list[tuple[str, str]] = field(default_factory=list)
    first_answers: list[float] = field(default_factory=list)
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.main = self.members.add(" ".join(ENTRY), ENTRY)
        self.scheduler = self.members.add("sglang::scheduler")
        self.log.touch()

    def wait(self) -> ReadyReport:
        launch = wire.Launch("launch-1", "svc", "auto", "python", [*self.arguments, "--port", str(self.port)], "127.0.0.1", self.port)
        self.begun = time.monotonic()
        return wait_ready(
            launch,
            self.members.read,
            self.log,
            self.policy,
            lambda phase, detail: self.reports.append((phase, detail)),
            lambda: self.ended,
            owners=lambda: {self.main.pid} if self.owners is None else self.owners,
            on_first_answer=lambda: self.first_answers.append(time.monotonic()),
        )

    def fail(self) -> wire.Failure:
        with pytest.raises(LaunchFailed) as caught:
            self.wait()
        return caught.value.failure

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.begun

    def write(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as stream:
            stream.write(text)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "server.log")
    yield made
    made.members.close()


@pytest.fixture
def after() -> Iterator[Callable[[float, Callable[[], object]], None]]:
    """Do something a little later, while the test waits."""
    timers: list[threading.Timer] = []

    def schedule(seconds: float, action: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, action)
        timer.start()
        timers.append(timer)

    yield schedule
    for timer in timers:
        timer.join()


def test_ready_once_the_port_opens_and_three_generations_came_back(scene: Scene, after: Callable[..., None]) -> None:
    started: list[StandIn] = []
    after(0.4, lambda: started.append(StandIn(scene.port)))

    report = scene.wait()

    server = started[0]
    server.close()
    assert server.asked[:3] == ["GET /server_info", "POST /generate", "GET /ready"]
    assert server.asked[3:] == ["POST /generate"] * 3
    assert report.max_total_num_tokens == 8192
    assert report.version == "0.5.23"
    assert report.schedulers == 1
    assert scene.first_answers == [pytest.approx(report.first_answer, abs=0.05)]


def test_ready_is_seen_soon_after_the_first_good_answer(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        report = scene.wait()

        assert server.first_good_answer is not None
        assert report.ready - server.first_good_answer < 0.2


def test_generations_are_greedy_short_and_complete(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        scene.wait()

        assert [body["sampling_params"] for body in server.bodies] == [{"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}] * 4


@pytest.mark.slow
def test_the_log_shows_the_phase_and_never_decides(scene: Scene, after: Callable[..., None]) -> None:
    scene.policy = wire.Policy(load_total=1.0)
    scene.write((CAPTURES / "cpu-0.5.23/main.log").read_text(encoding="utf-8"))

    failure = scene.fail()

    assert failure.category == "timed_out"
    assert ("kv_cache", "8192 tokens") in scene.reports or ("ready", "") in scene.reports


def test_an_old_server_on_the_port_is_named_at_once(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        scene.owners = {os.getpid()}

        failure = scene.fail()

        assert failure.category == "port_in_use"
        assert str(os.getpid()) in failure.summary
        assert scene.elapsed < 1.0
        assert server.asked == []


def test_a_silent_listener_of_somebody_else_is_named_at_once(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", scene.port)):
        scene.owners = {os.getpid()}

        failure = scene.fail()

        assert failure.category == "port_in_use"
        assert scene.elapsed < 1.0


def test_who_holds_the_port_is_named_without_what_a_script_holds(scene: Scene) -> None:
    script = "sleep 60 & echo $!; wait; : --api-key canary-4711"
    shell = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        assert wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", Deadline(10))
        with socket.create_server(("127.0.0.1", scene.port)):
            scene.owners = {child, shell.pid}

            evidence = "\n".join(scene.fail().evidence)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()

    assert f"process {child}: sleep 60, started by process {shell.pid} (sh -c ...)" in evidence
    assert "canary" not in evidence


def test_a_listener_that_nobody_can_be_seen_behind_is_not_ours(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.ready._UNOWNED_PATIENCE", 0.3)
    with stand_in(scene.port) as server:
        scene.owners = set()

        failure = scene.fail()

        assert failure.category == "port_in_use"
        assert "can't be seen" in failure.summary
        assert server.asked == []


@pytest.mark.slow
def test_a_silent_listener_of_our_own_is_given_up_when_nothing_moves(scene: Scene) -> None:
    scene.policy = wire.Policy(load_stall=0.8)
    with socket.create_server(("127.0.0.1", scene.port)):
        failure = scene.fail()

    assert failure.category == "stalled"
    assert "no-progress limit (policy: load_stall) of 0.8 s ran out in phase imports" in failure.summary


def test_503_while_warming_up_is_not_ready(scene: Scene, after: Callable[..., None]) -> None:
    with stand_in(scene.port) as server:
        server.ready_status = 503
        after(0.5, lambda: setattr(server, "ready_status", 200))

        scene.wait()

        assert scene.elapsed >= 0.5
        assert server.asked[:2] == ["GET /server_info", "POST /generate"], "one answer may come early"
        assert server.asked[-3:] == ["POST /generate"] * 3, "and proves nothing yet"
        assert set(server.asked[2:-3]) == {"GET /ready"}


def test_without_the_ready_endpoint_health_is_asked_and_not_waited_for(scene: Scene, after: Callable[..., None]) -> None:
    with stand_in(scene.port) as server:
        server.ready_status, server.health_status = 404, 503

        def warmed_up() -> None:
            server.health_status, server.health_seconds = 200, 1.0

        after(0.4, warmed_up)
        report = scene.wait()

        assert scene.elapsed >= 0.4
        assert server.first_good_answer is not None
        assert report.first_answer - server.first_good_answer < 0.2
        assert scene.elapsed < 0.4 + 0.9, "a /health that takes a second is not waited for"


def test_too_few_tokens_are_no_generation(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        server.missing_tokens = 1

        failure = scene.fail()

    assert failure.category == "generation_failed"
    assert "3 tokens came back, 4 were asked for" in failure.summary


def test_a_generation_that_fails_starts_the_count_anew(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        server.generate_status = 500

        def recover() -> None:
            while not server.bodies:
                time.sleep(0.01)
            server.generate_status = 200

        thread = threading.Thread(target=recover)
        thread.start()
        scene.wait()
        thread.join()

        assert len(server.bodies) >= 4


def test_a_key_that_is_not_ours_is_named(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        server.key = "other"

        failure = scene.fail()

    assert failure.category == "generation_failed"
    assert "HTTP 401" in failure.summary


def test_a_server_that_shows_another_backend_is_not_what_was_asked(scene: Scene) -> None:
    scene.arguments += ["--moe-runner-backend", "flashinfer_cutedsl"]
    with stand_in(scene.port) as server:
        server.info["moe_runner_backend"] = "cutlass"

        failure = scene.fail()

    assert failure.category == "not_what_was_asked"
    assert "asked for flashinfer_cutedsl, the server shows cutlass" in failure.summary


def test_a_main_process_that_dies_while_loading_is_noticed_at_once(scene: Scene, after: Callable[..., None]) -> None:
    scene.write((CAPTURES / "h200-0.5.17/M_cutedsl_modelopt_fp4.log").read_text(encoding="utf-8"))

    def die() -> None:
        scene.members.kill(scene.main)
        scene.ended = Ended("killed", "KILL")

    after(0.3, die)
    failure = scene.fail()

    assert failure.category == "quantization_unsupported"
    assert failure.exit_status == "killed KILL"
    assert scene.elapsed < 0.3 + 0.5


@pytest.mark.slow
def test_a_main_process_that_dies_unrecorded_is_noticed_too(scene: Scene, after: Callable[..., None]) -> None:
    scene.write("ModuleNotFoundError\n")
    after(0.2, lambda: scene.members.kill(scene.main))

    failure = scene.fail()

    assert failure.exit_status is None
    assert scene.elapsed < 3.0


@pytest.mark.slow
def test_a_scheduler_that_vanishes_under_a_main_that_lives_on(scene: Scene, after: Callable[..., None]) -> None:
    """As SGLang 0.5.9 does: the port stays bound and /health hangs for ever."""
    after(0.8, lambda: scene.members.kill(scene.scheduler))

    failure = scene.fail()

    assert failure.category == "scheduler_died"
    assert scene.elapsed < 5.0


@pytest.mark.slow
def test_a_bind_error_ends_the_wait_while_the_process_lives_on(scene: Scene) -> None:
    scene.write((CAPTURES / "cpu-0.5.23/port_in_use.log").read_text(encoding="utf-8"))

    failure = scene.fail()

    assert failure.category == "port_in_use"
    assert scene.elapsed < 3.0


def test_fewer_schedulers_than_ranks_is_not_ready(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.ready._COUNT_PATIENCE", 0.3)
    scene.arguments += ["--tp-size", "2"]
    with stand_in(scene.port):
        failure = scene.fail()

    assert failure.category == "scheduler_died"
    assert failure.summary == "1 of 2 schedulers were seen"


@pytest.mark.slow
def test_no_progress_is_told_apart_from_slow_progress(scene: Scene, after: Callable[..., None]) -> None:
    scene.policy = wire.Policy(load_stall=0.6, load_total=1.6)
    for step in range(1, 8):
        after(0.2 * step, lambda: scene.write("Loading safetensors checkpoint shards:  25% Completed | 12/47 [00:31<01:22]\n"))

    failure = scene.fail()

    assert failure.category == "timed_out"
    assert "shards 12/47" in failure.summary


@pytest.mark.slow
def test_our_own_polling_in_the_log_is_no_progress(scene: Scene, after: Callable[..., None]) -> None:
    scene.policy = wire.Policy(load_stall=0.6, load_total=5.0)
    for step in range(1, 8):
        after(
            0.2 * step, lambda: scene.write('[2026-11-29 12:00:00] INFO:     127.0.0.1:1 - "GET /ready HTTP/1.1" 503 Service Unavailable\n')
        )

    failure = scene.fail()

    assert failure.category == "stalled"
    assert scene.elapsed < 1.2


@pytest.mark.slow
def test_a_generation_that_hangs_is_ended_by_the_watch(scene: Scene) -> None:
    scene.policy = wire.Policy(load_stall=0.8)
    with stand_in(scene.port) as server:
        server.generate_seconds = 3.0

        failure = scene.fail()

    assert failure.category == "stalled"
    assert "0 good generations" in failure.summary
    assert scene.elapsed < 2.0


def test_a_launch_of_which_no_process_was_ever_seen(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.watch._START_PATIENCE", 0.2)
    scene.members.close()

    failure = scene.fail()

    assert failure.summary == "no process of the launch was ever seen"


def test_the_key_of_the_secrets_is_used(scene: Scene) -> None:
    with stand_in(scene.port) as server:
        server.key = "k-1"
        launch = wire.Launch(
            "launch-1", "svc", "auto", "python", ["--model-path", "/models/m"], "127.0.0.1", scene.port, secrets={"api-key": "k-1"}
        )

        report = wait_ready(launch, scene.members.read, None, wire.Policy(), lambda *_: None, lambda: None, owners=lambda: {scene.main.pid})

    assert report.requested == {"model_path": "/models/m"}
    assert dataclasses.asdict(report)["remarks"] == []


def test_an_answer_refused_during_the_warm_up_is_no_failure(scene: Scene, after: Callable[..., None]) -> None:
    with stand_in(scene.port) as server:
        server.ready_status, server.generate_status = 503, 503

        def warmed_up() -> None:
            server.ready_status, server.generate_status = 200, 200

        after(0.5, warmed_up)
        scene.wait()

        assert scene.elapsed >= 0.5


@pytest.mark.slow
def test_a_scheduler_that_only_spins_is_ended_by_its_phases_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.agent.activity._WINDOW", 0.2)
    scene.members.add("sglang::scheduler_TP1", spins=True)
    scene.policy = wire.Policy(load_stall=1.5, phases={"distributed": wire.PhaseLimits(total=4.0)})
    scene.write("[2026-11-29 12:00:00 TP0] Init torch distributed begin.\n")

    failure = scene.fail()

    assert failure.category == "timed_out"
    assert "the limit for one phase (policy: phases: distributed: total) of 4 s ran out in phase distributed" in failure.summary
    assert "CPU use" in failure.summary
    assert "but no log output for" in failure.summary
    assert 'last line of the log: "Init torch distributed begin."' in failure.summary


@pytest.mark.slow
def test_without_a_log_that_tells_the_phase_no_phases_limit_holds(scene: Scene) -> None:
    scene.policy = wire.Policy(load_total=1.5, phases={"imports": wire.PhaseLimits(total=0.3)})

    failure = scene.fail()

    assert "the limit for the whole load (policy: load_total) of 1.5 s" in failure.summary


@pytest.mark.slow
def test_a_gap_is_told_and_ends_nothing(scene: Scene, after: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    scene.policy = wire.Policy(load_stall=20.0, load_total=20.0)
    clock = SteadyClock(lambda: time.monotonic() + jump[0])
    jump = [0.0]
    for module in ("ready", "watch"):
        monkeypatch.setattr(f"orchestrator.agent.{module}.steady", clock)
    clock.start()
    after(0.3, lambda: jump.__setitem__(0, 500.0))
    started: list[StandIn] = []
    after(0.8, lambda: started.append(StandIn(scene.port)))

    scene.wait()

    started[0].close()
    clock.stop()
    assert any("stood still for 500 s" in detail for _, detail in scene.reports)


class RankHandler(BaseHTTPRequestHandler):
    """What SGLang opens on the nodes other than rank 0: two paths."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/ping", "/health") else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""


@pytest.fixture
def rank(scene: Scene) -> Iterator[Scene]:
    """A launch of rank 1 of two, with one scheduler of the two, whose port is up."""
    scene.arguments = ["--model-path", "/models/m", "--tp-size", "2", "--nnodes", "2", "--node-rank", "1"]
    server = HTTPServer(("127.0.0.1", scene.port), RankHandler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield scene
    server.shutdown()
    server.server_close()


def test_a_rank_that_takes_no_requests_is_ready_once_its_port_is_up(rank: Scene) -> None:
    report = rank.wait()
    assert report.schedulers == 1
    assert len(rank.first_answers) == 1


def test_a_rank_whose_port_is_somebody_elses_is_not_ready(rank: Scene) -> None:
    rank.owners = {1}
    assert rank.fail().category == "port_in_use"


def test_a_rank_whose_scheduler_died_is_not_ready(rank: Scene, after: Callable[..., None]) -> None:
    rank.policy = dataclasses.replace(rank.policy, load_total=30.0)
    rank.owners = set()
    after(0.8, lambda: rank.members.kill(rank.scheduler))
    assert rank.fail().category == "scheduler_died"
