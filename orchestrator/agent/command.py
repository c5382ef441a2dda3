"""Other programs, run with a bound that holds: a child that a hung driver keeps in state D is left behind, not waited for."""

import contextlib
import subprocess
from typing import Dict, List, NamedTuple, Optional, Sequence

_REAP_SECONDS = 0.5
_abandoned: "List[subprocess.Popen[bytes]]" = []
"""Children that could not be ended, kept so that Python doesn't try to reap them."""


class Output(NamedTuple):
    """What a program said. `status` is None when there is no such program or it did not end in time; `errors` then says which."""

    status: Optional[int]
    text: str
    errors: str

    @property
    def good(self) -> bool:
        return self.status == 0


def run_bounded(
    argv: Sequence[str],
    seconds: float,
    given: bytes = b"",
    environment: Optional[Dict[str, str]] = None,
    directory: Optional[str] = None,
) -> Output:
    """Run a program and return within `seconds` (and half a second for ending it), whatever it does.

    `subprocess.run(timeout=...)` does not do this: after the timeout it waits for the child without a bound.
    """
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=directory
        )
    except OSError as error:
        return Output(None, "", f"{argv[0]}: {error.strerror}")
    try:
        text, errors = child.communicate(given, timeout=seconds)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return Output(None, "", f"{argv[0]} did not end within {seconds:g} s")
    return Output(child.returncode, text.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


def _abandon(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        child.wait(_REAP_SECONDS)
    except subprocess.TimeoutExpired:
        _abandoned.append(child)
