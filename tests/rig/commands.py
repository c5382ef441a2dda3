"""Running the machine's own commands, with a deadline and an error that shows what they said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

from orchestrator.agent.clock import Deadline, wait_until


class CommandError(AssertionError):
    """A command of the rig failed; the message carries its output."""


def run_command(
    argv: Sequence[str],
    *,
    timeout: float = 30.0,
    check: bool = True,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` with its output captured; `stdin` None is an empty one.

    Raises:
        CommandError: with `check`, when it exits with anything but 0.
        subprocess.TimeoutExpired: it ran for more than `timeout` seconds (it is killed).
    """
    done = subprocess.run(
        list(argv),
        input="" if stdin is None else stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        env=environment,
    )
    if check and done.returncode != 0:
        raise CommandError(f"{' '.join(argv)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def wait_for(what: str, condition: Callable[[], bool], seconds: float, interval: float = 0.05) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: it did not within `seconds`; the message names `what`.
    """
    if not wait_until(condition, Deadline(seconds), interval):
        raise TimeoutError(f"{what}: not within {seconds:g} s")
