"""What a step works with: the box, the operator with the step's own deadline, and the states that a step may start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.agent import procfs
from orchestrator.agent.clock import Deadline
from tests.gpu import judging
from tests.gpu.box import Box, ByHand, wait
from tests.gpu.commands import Answer, Running
from tests.gpu.setting import FIRST

SERVING, NOTHING, ANYTHING = "serving", "nothing", "anything"
"""What of the service runs when a step begins."""
_STATUS_SECONDS = 60.0
_SETTLE_SECONDS = 150.0
_GONE_SECONDS = 30.0
"""For the last process of a server, the supervisor's and the driver's accounting of its GPU memory."""


class NotRunError(Exception):
    """A step can't be run here; the message says what it needs."""


@dataclass
class Findings:
    """What a step found: `problems` fail it, `seen` is told in the table, `columns` is a table of its own."""

    problems: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One step of the run. `usual` and `limit` are seconds, `usual` on an H200 with warm caches, without getting to `start`."""

    name: str
    about: str
    run: Callable[[Stage], Findings]
    start: str
    usual: float
    limit: float
    needs_gpu: bool = False


class Stage:
    """The box as a step sees it. `floor` is the GPUs' memory in use (MiB by UUID) before anything was started."""

    def __init__(self, box: Box, floor: Mapping[str, int], deadline: Deadline) -> None:
        self.box = box
        self.floor = floor
        self.deadline = deadline
        self._watched: list[Running] = []
        self._by_hand: list[ByHand] = []

    def ask(self, verb: str, *flags: str) -> Answer:
        """Run a verb until it ends, or the step's time is up."""
        return self.box.operator.ask(verb, *flags, seconds=self.deadline.left())

    def begin(self, verb: str, *flags: str) -> Running:
        """Start a verb; it is ended with the step."""
        running = self.box.operator.begin(verb, *flags)
        self._watched.append(running)
        return running

    def by_hand(self, port: int) -> ByHand:
        """Start a server past the program; it is ended with the step."""
        server = self.box.by_hand(port)
        self._by_hand.append(server)
        return server

    def status(self) -> dict[str, Any]:
        """What ``status`` says, empty where it could not be asked."""
        return self.box.operator.ask("status", seconds=_STATUS_SECONDS).document

    def server(self) -> dict[str, Any]:
        """The service's server.

        Raises:
            NotRunError: there is none.
        """
        server = (self.status().get("report") or {}).get("server")
        if server is None:
            raise NotRunError("nothing serves")
        return dict(server)

    def settle(self) -> None:
        """Wait until no order is at work any more: a step whose time was up may have left one."""
        wait(lambda: self.box.order_at_work() is None, min(_SETTLE_SECONDS, self.deadline.left()), "an order at work")

    def prepare(self, start: str) -> None:
        """Bring the service into the state that a step starts from.

        Raises:
            NotRunError: it can't be brought there.
        """
        self.settle()
        if start == ANYTHING:
            return
        problems = self._come_to_serve() if start == SERVING else self._come_to_nothing()
        if problems:
            raise NotRunError(f"the box could not be brought to {start}: {problems[0]}")

    def _come_to_serve(self) -> list[str]:
        status = self.status()
        if not judging.serves(status):
            return []
        if (status.get("report") or {}).get("server") is not None:
            self.ask("teardown", "--yes")
        answer = self.ask("launch", "--backend", FIRST, "--yes")
        return judging.came_to_serve(answer.exit_code, answer.document, self.status(), FIRST)

    def _come_to_nothing(self) -> list[str]:
        if not judging.is_down(self.status()):
            return []
        answer = self.ask("teardown", "--yes")
        return [*judging.ended(answer.exit_code, answer.document, 0), *judging.is_down(self.status())]

    def gone(self, *spared: ByHand) -> list[str]:
        """Whether everything that was started has ended but the spared servers, and the GPUs are back where they were."""
        wait(lambda: not self.box.started_but(*spared), _GONE_SECONDS, "processes")
        problems = judging.nothing_left(self.box.started_but(*spared))
        return problems if spared else [*problems, *self.back_to_floor()]

    def back_to_floor(self) -> list[str]:
        """Whether each GPU holds no more than before anything was started."""
        found = judging.back_to_floor(self.floor, self.box.gpu_memory())
        end = time.monotonic() + _GONE_SECONDS
        while found and time.monotonic() < end:
            time.sleep(0.5)
            found = judging.back_to_floor(self.floor, self.box.gpu_memory())
        return found

    def memory(self) -> str:
        """The GPUs' memory in use, in words."""
        return ", ".join(f"{used} MiB" for used in self.box.gpu_memory().values()) or "no GPU"

    def clear(self) -> None:
        """End what the step has started past the program: commands that still run, servers by hand."""
        for running in self._watched:
            running.end()
        for server in self._by_hand:
            server.end()


def pinned(server: Mapping[str, Any]) -> dict[int, int]:
    """The processes of a server that ``status`` tells of: number -> start time."""
    return {member["pid"]: member["start_time"] for member in [server["main"], *server["members"]]}


def living(processes: Mapping[int, int]) -> list[int]:
    """Those of the processes that have not ended."""
    found = (procfs.read_process(pid) for pid in processes)
    return [
        process.pid
        for process in found
        if process is not None and process.id.start_time == processes[process.pid] and not procfs.has_ended(process)
    ]
