"""Processes held by pidfd: what is signalled and waited for is the process that was looked at, never a later one of its number."""

import os
import select
import signal
import time
from typing import Dict, List, Optional, Set, Tuple

from orchestrator.agent import procfs, wire
from orchestrator.agent.clock import Deadline
from orchestrator.agent.procfs import Process
from orchestrator.agent.refusal import AgentRefusal


class HeldProcesses:
    """A growing set of processes. A process that only waits to be reaped counts as ended."""

    def __init__(self) -> None:
        self._held: Dict[wire.ProcessId, Tuple[Process, int]] = {}
        self.last_end: Optional[float] = None
        """Monotonic time at which one of them was last seen to have ended."""

    def add(self, process: Process) -> bool:
        """Hold a process; False when it has ended already or is held.

        Raises:
            AgentRefusal: the kernel, or this Python, has no pidfd (``kernel``).
        """
        if process.id in self._held:
            return False
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError) as error:
            raise AgentRefusal(
                "kernel", f"processes can't be held safely here: pidfd_open: {error}", next_step="use Linux 5.3 or newer"
            ) from None
        # Only a look after opening proves that the number still means the process that was scanned.
        if procfs.start_time(process.pid) != process.id.start_time:
            os.close(descriptor)
            return False
        self._held[process.id] = (process, descriptor)
        return True

    def send(self, number: int, only: Optional[Set[int]] = None) -> List[Process]:
        """Send a signal to those that live (of `only`, if given) and return whom it was sent to.

        Raises:
            PermissionError: this user may not signal one of them.
        """
        sent = []
        for process, descriptor in self._living(only):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                continue
            sent.append(process)
        return sent

    def wait(self, deadline: Deadline, only: Optional[Set[int]] = None) -> bool:
        """Wait until all of them (of `only`, if given) have ended: returns at once then, False when the deadline has passed."""
        poller = select.poll()
        waiting = {descriptor for _, descriptor in self._living(only)}
        for descriptor in waiting:
            poller.register(descriptor, select.POLLIN)
        while waiting:
            for descriptor, _ in poller.poll(min(deadline.left(), 3600.0) * 1000):
                poller.unregister(descriptor)
                waiting.discard(descriptor)
                self.last_end = time.monotonic()
            if waiting and deadline.passed:
                return False
        return True

    def alive(self) -> List[Process]:
        """Those that have not ended."""
        return [process for process, _ in self._living()]

    def pids(self) -> Set[int]:
        """Process ids of those that have not ended."""
        return {process.pid for process in self.alive()}

    def close(self) -> None:
        for _, descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def __enter__(self) -> "HeldProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _living(self, only: Optional[Set[int]] = None) -> List[Tuple[Process, int]]:
        poller = select.poll()
        for _, descriptor in self._held.values():
            poller.register(descriptor, select.POLLIN)
        ended = {descriptor for descriptor, _ in poller.poll(0)}
        return [
            (process, descriptor)
            for process, descriptor in self._held.values()
            if descriptor not in ended and (only is None or process.pid in only)
        ]
