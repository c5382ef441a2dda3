"""Taking down a real server: in mid-stream, in mid-load, started by hand, and kept up by systemd."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from orchestrator.agent.clock import Deadline, wait_until
from tests.rig.commands import wait_for
from tests.rig.sglang import ContainerProcess, ServerByHand, sglang_processes, stream
from tests.sglang.stage import PORT, Stage

UNIT = "somebodys-sglang.service"
STREAM_TOKENS = 1500
"""Several seconds of it, well below the model's context."""


def shared_memory(stage: Stage) -> set[str]:
    """What lies in the container's /dev/shm."""
    return set(stage.service.container.run("ls", "-A", "/dev/shm").stdout.split())


def test_teardown_in_mid_stream_lets_the_stream_end(stage: Stage, serving: ContainerProcess, neighbour: ServerByHand) -> None:
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(stream, stage.url, STREAM_TOKENS, begun.set)
        assert begun.wait(30.0)
        answer = stage.operator.ask("teardown", "--yes")
        streamed = client.result(timeout=60.0)

    answer.expect(0)
    assert streamed.whole
    assert streamed.tokens == STREAM_TOKENS
    assert answer.document["result"]["lost_requests"] == 0
    stage.assert_gone()


def test_teardown_in_mid_load_leaves_no_orphans(stage: Stage, neighbour: ServerByHand) -> None:
    """When the main process dies of SIGTERM now, its children, which carry no title of SGLang's yet, would go on loading."""
    stage.clear()
    before = shared_memory(stage)
    server = stage.service.start_by_hand(PORT)
    wait_for("its children are spawned", lambda: len(stage.processes_of(server.pid)) >= 3, 90.0)
    untitled = [process for process in stage.processes_of(server.pid) if "multiprocessing.spawn" in process.title]
    assert untitled, "too late: the children have their titles"

    answer = stage.operator.ask("teardown", "--yes")

    answer.expect(0)
    stage.assert_gone()
    assert shared_memory(stage) == before


def test_teardown_of_a_server_started_by_hand(stage: Stage, by_hand: ContainerProcess, neighbour: ServerByHand) -> None:
    answer = stage.operator.ask("teardown", "--yes")

    answer.expect(0)
    assert by_hand not in sglang_processes(stage.service)
    stage.assert_gone()


def test_teardown_of_somebodys_unit_is_not_undone_by_systemd(stage: Stage, neighbour: ServerByHand) -> None:
    stage.serving_as_unit(UNIT)

    answer = stage.operator.ask("teardown", "--yes", "--grace", "3")

    answer.expect(0)
    stage.assert_gone()
    assert not wait_until(lambda: stage.main() is not None, Deadline(4.0), 0.25), "started again: RestartSec is one second"
