"""Steps in which something ends: servers that are told to stop, killed, or starved, and an operator who goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from orchestrator.agent import gpu, procfs
from orchestrator.agent.wire import State
from orchestrator.lab.processes import kill
from tests.gpu import judging
from tests.gpu.box import memory_held, wait
from tests.gpu.setting import FIRST, SECOND
from tests.gpu.stage import NOTHING, SERVING, Findings, NotRunError, Stage, Step, living, pinned
from tests.rig.sglang import generate, stream

_CHILDREN_SECONDS = 120.0
"""Until a server that starts has spawned its children: the time of its imports."""
_LEFT_FREE_MIB = 20 * 1024
"""Of a GPU that somebody else holds nearly all of."""
_LEAST_TOTAL_MIB = 40 * 1024


def teardown_streaming(stage: Stage) -> Findings:
    """A stream that runs when its server is told to stop comes to its own end."""
    wanted = stage.box.setting.stream_tokens
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(stream, stage.box.url, wanted, begun.set)
        if not begun.wait(30.0):
            return Findings(["the stream did not begin"])
        answer = stage.ask("teardown", "--yes")
        streamed = client.result(timeout=60.0)
    problems = judging.ended(answer.exit_code, answer.document, 0)
    problems += judging.stream_survived(streamed.tokens, wanted, whole=streamed.whole)
    if answer.result.get("lost_requests") != 0:
        problems.append(f"lost requests: {answer.result.get('lost_requests')}")
    return Findings([*problems, *stage.gone()], [f"{streamed.tokens} tokens came", f"{answer.seconds:.1f} s", f"then {stage.memory()}"])


def teardown_loading(stage: Stage) -> Findings:
    """When the main process dies of SIGTERM now, its children, which carry no title of SGLang's yet, would go on loading."""
    before = _shared_memory()
    server = stage.by_hand(stage.box.port)
    late = wait(lambda: any("multiprocessing.spawn" in process.title for process in server.members()), _CHILDREN_SECONDS, "children")
    untitled = [process for process in server.members() if "multiprocessing.spawn" in process.title]
    answer = stage.ask("teardown", "--yes")
    problems = [*late, *judging.ended(answer.exit_code, answer.document, 0), *judging.nothing_left(list(map(str, server.members())))]
    problems += [f"left in /dev/shm: {name}" for name in sorted(_shared_memory() - before)]
    return Findings([*problems, *stage.gone()], [f"{len(untitled)} children without a title of SGLang's", f"{answer.seconds:.1f} s"])


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def kill_scheduler(stage: Stage) -> Findings:
    """The process that holds the GPU is killed; the service is brought back."""
    server = stage.server()
    found = (procfs.read_process(pid) for pid in pinned(server))
    ranks = [process for process in found if process is not None and "sglang::scheduler" in process.title]
    if not ranks:
        return Findings(["no process is titled sglang::scheduler"])
    return _killed(stage, server, ranks[0].id.pid)


def kill_server(stage: Stage) -> Findings:
    """The main process is killed; the service is brought back."""
    server = stage.server()
    return _killed(stage, server, server["main"]["pid"])


def _killed(stage: Stage, server: Mapping[str, Any], pid: int) -> Findings:
    processes = pinned(server)
    began = time.monotonic()
    kill(pid, processes[pid], signal.SIGKILL)
    problems = wait(lambda: not living(processes), 60.0, "the end of all its processes")
    seconds = time.monotonic() - began
    problems += stage.back_to_floor() + judging.is_down(stage.status())
    answer = stage.ask("launch", "--backend", FIRST, "--yes")
    problems += judging.came_to_serve(answer.exit_code, answer.document, stage.status(), FIRST)
    recorded = stage.box.state.launch_folder(str(server["launch_id"])) / "exit"
    told = recorded.read_text(encoding="utf-8").strip() if recorded.exists() else "nothing"
    return Findings(
        problems, [f"all gone after {seconds:.1f} s", f"recorded of its end: {told}", f"served again after {answer.seconds:.0f} s"]
    )


def operator_killed(stage: Stage) -> Findings:
    """The operator's process is killed in mid-relaunch; the box goes on, and another one follows it to its end."""
    other = SECOND if stage.server()["backend"] == FIRST else FIRST
    known = set(stage.box.state.order_ids())
    running = stage.begin("relaunch", "--backend", other, "--yes", "--no-measure")

    def fresh() -> list[str]:
        return [order for order in stage.box.state.order_ids() if order not in known]

    late = wait(lambda: any(State.LOADING in stage.box.states(order) for order in fresh()), stage.deadline.left() / 2, "LOADING")
    running.kill()
    if late:
        return Findings(late)
    answer = stage.ask("attach", "--order", fresh()[0])
    problems = judging.came_to_serve(answer.exit_code, answer.document, stage.status(), other)
    return Findings(problems, ["killed in LOADING", f"attached to for {answer.seconds:.0f} s"])


def two_servers(stage: Stage) -> Findings:
    """Another server on the same GPU, which is not ours, sees nothing of our teardown."""
    ours = pinned(stage.server())
    neighbour = stage.by_hand(stage.box.neighbour_port)
    stage.box.wait_serving(neighbour, stage.deadline.left() / 2)
    before, both = {process.id for process in neighbour.members()}, stage.memory()
    answer = stage.ask("teardown", "--yes")
    problems = [*judging.ended(answer.exit_code, answer.document, 0), *judging.nothing_left(list(map(str, living(ours))))]
    if {process.id for process in neighbour.members()} != before:
        problems.append("the neighbour's processes are other ones")
    try:
        generated = generate(neighbour.url, 8)
    except httpx.HTTPError as error:
        generated = 0
        problems.append(f"the neighbour does not answer: {error!r}")
    problems += [] if generated == 8 else [f"the neighbour gave {generated} tokens of 8"]
    problems += stage.gone(neighbour)
    seen = [f"{both} with both, {stage.memory()} with the neighbour alone"]
    neighbour.end()
    return Findings([*problems, *stage.back_to_floor()], seen)


def foreign_memory(stage: Stage) -> Findings:
    """A process of somebody's holds most of the GPU: named in the plan, and what comes of it is not taken for a good launch."""
    cards = gpu.read_gpus()
    total = cards[0].memory_total if cards else 0
    if total < _LEAST_TOTAL_MIB:
        raise NotRunError(f"the GPU has {total} MiB, and {_LEAST_TOTAL_MIB} are wanted")
    with memory_held(stage.box, total - _LEFT_FREE_MIB) as holder:
        answer = stage.ask("launch", "--backend", FIRST, "--yes")
        problems = judging.lost_room(answer.exit_code, answer.document, holder.pid)
        alive = holder.poll() is None
    problems += [] if alive else ["the foreign process was ended"]
    failure = answer.result.get("failure") or {}
    seen = [f"exit code {answer.exit_code}: {failure.get('category')}: {failure.get('summary')}"]
    told = [verdict for verdict in (answer.document.get("plan") or {}).get("verdicts", ()) if verdict["check"] == "gpu_memory"]
    return Findings(problems, [*seen, *(f"{verdict['detail']}: {'; '.join(verdict['evidence'])}" for verdict in told)])


STEPS = (
    Step("teardown-streaming", "in mid-stream, GPU memory back to its floor", teardown_streaming, SERVING, 25, 120),
    Step("teardown-loading", "in mid-load, without orphans", teardown_loading, NOTHING, 50, 200),
    Step("kill-scheduler", "SIGKILL, and recovery", kill_scheduler, SERVING, 80, 260),
    Step("operator-killed", "in mid-relaunch", operator_killed, SERVING, 80, 260),
    Step("two-servers", "on one GPU, of which one is ours", two_servers, SERVING, 80, 260),
    Step("foreign-memory", "a foreign process holds most of the GPU", foreign_memory, NOTHING, 90, 260, needs_gpu=True),
    Step("kill-server", "SIGKILL, and recovery", kill_server, SERVING, 70, 240),
)
