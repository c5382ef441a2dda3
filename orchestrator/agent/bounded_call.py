"""Calls that may never return, such as a read of a device that has fallen off its bus: made in a child that can be left behind.

A thread would not do. One that the kernel holds in state D keeps its whole process from ending, and with it the channel to the operator.
"""

import contextlib
import marshal
import os
import select
import time
from typing import Any, Callable, List, NamedTuple, NoReturn, Optional, Sequence

_LENGTH_BYTES = 4
_PIPE_BYTES = 65536
_SIGKILL = 9
"""On every Linux. Importing :mod:`signal` for its name takes longer than most calls."""
_REAP_SECONDS = 0.5


class Answer(NamedTuple):
    """What a call returned; `problem` says why it returned nothing. `stuck`: it did not return in time and was left behind."""

    value: Any
    problem: Optional[str] = None
    error_number: int = 0
    """errno where the problem is an OSError, else 0."""
    stuck: bool = False


def call_each_bounded(functions: Sequence[Callable[[], Any]], seconds: float) -> List[Answer]:
    """Make each call, in order, and return their answers; none takes more than `seconds` (and half a second for ending it).

    They are made in a child, so nothing that they change in memory is seen here. They must not import anything, for the child closes
    the archive that this program is in, and may return what :mod:`marshal` can carry.
    """
    answers: List[Answer] = []
    while len(answers) < len(functions):
        answers += _run(functions[len(answers) :], seconds)
    return answers


def call_bounded(function: Callable[[], Any], seconds: float) -> Answer:
    """Make one call. See :func:`call_each_bounded`."""
    return call_each_bounded([function], seconds)[0]


def _run(functions: Sequence[Callable[[], Any]], seconds: float) -> List[Answer]:
    """Answers of one child: of all calls, or of those up to the first that got stuck."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _serve(functions, writing)
    os.close(writing)
    answers: List[Answer] = []
    arrived = bytearray()
    try:
        for _ in functions:
            answers.append(_receive(reading, arrived, seconds))
            if answers[-1].stuck:
                break
    finally:
        os.close(reading)
        _end(child)
    return answers


def _serve(functions: Sequence[Callable[[], Any]], writing: int) -> NoReturn:
    try:
        # A child that is left behind must hold neither the channel to the operator nor any lock.
        for name in os.listdir("/proc/self/fd"):
            if int(name) != writing:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        for function in functions:
            piece = marshal.dumps(tuple(_answer(function)))
            piece = len(piece).to_bytes(_LENGTH_BYTES, "little") + piece
            while piece:
                piece = piece[os.write(writing, piece) :]
    finally:
        os._exit(0)


def _answer(function: Callable[[], Any]) -> Answer:
    try:
        return Answer(function())
    except OSError as error:
        return Answer(None, error.strerror or str(error), error.errno or 0)
    except Exception as error:  # noqa: BLE001 - whatever it is, it travels as data
        return Answer(None, f"{type(error).__name__}: {error}")


def _receive(reading: int, arrived: bytearray, seconds: float) -> Answer:
    """The next answer. `arrived` holds what came with an earlier one."""
    end = time.monotonic() + seconds
    length = _take(reading, arrived, _LENGTH_BYTES, end)
    content = _take(reading, arrived, int.from_bytes(length, "little"), end) if length else length
    if content is None:
        return Answer(None, f"no answer within {seconds:g} s", stuck=True)
    return Answer(*marshal.loads(content)) if content else Answer(None, "the child that asked ended early")  # noqa: S302 - our own child's


def _take(reading: int, arrived: bytearray, count: int, end: float) -> Optional[bytes]:
    """`count` bytes; empty when the child has ended before, None when `end` has come."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    while len(arrived) < count:
        left = end - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        piece = os.read(reading, _PIPE_BYTES)
        if not piece:
            return b""
        arrived += piece
    taken = bytes(arrived[:count])
    del arrived[:count]
    return taken


def _end(child: int) -> None:
    """End the child and reap it, if the kernel lets it go; it is ours and not reaped yet, so its number means nobody else."""
    os.kill(child, _SIGKILL)
    end = time.monotonic() + _REAP_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < end:
        time.sleep(0.002)
