"""What the unit made by :mod:`persistence` runs at each boot: the kept request, by the same code as ``fab prep``.

It has to end, since guests wait for it. So it waits for others for a while only, and the work itself is done in a child, which
is left behind when it hangs in a driver where no signal reaches it.
"""

import importlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Dict, List, NoReturn, Optional

from orchestrator.agent import wire_host
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.wire_host import KnobOutcome, KnobResult

WAIT_SECONDS = 15.0
WORK_SECONDS = 65.0
"""Together with starting Python they stay below the unit's TimeoutStartSec, so that it is our line that says what happened."""
_REAP_SECONDS = 1.0
_NAMED = 4

_SETTERS = ("nvidia-persistenced.service", "tuned.service", "cpupower.service")
"""What sets some of the same knobs as it starts, or resets them: the NVIDIA driver forgets limits when its last client goes, unless
persistence is on."""

_GOOD = frozenset({KnobOutcome.SAME, KnobOutcome.CHANGED, KnobOutcome.OBSERVED, KnobOutcome.UNAVAILABLE, KnobOutcome.TOLD})
"""Also what only a reboot or a person can change: it was told, and failing would not change it. Whatever else means that the host isn't
as its profile wants it, or that nobody can say."""

_ERROR, _WARNING, _INFORMATION = "<3>", "<4>", "<6>"
"""sd-daemon(3): the journal takes these off a line and keeps the level."""


def main(folder: str, *words: str) -> NoReturn:
    """Apply the request kept in `folder`. Ends with 0 when each of its knobs was read back as wanted, or can't be set by anybody here.

    `words` are ``--look`` (go no further than to load all that it takes) or other bounds than ours: ``WAIT_SECONDS WORK_SECONDS``.
    """
    request = _read_request(folder)
    if "--look" in words:
        _load_all(request)
        _say(_INFORMATION, f"{len(request.settings)} knobs of {request.profile}")
        sys.exit(0)
    wait, work = [float(word) for word in words] if words else [WAIT_SECONDS, WORK_SECONDS]
    _say(_INFORMATION, f"profile {request.profile}: {len(request.settings)} knobs")
    _wait_for_setters(wait)
    sys.exit(_in_child(request, work))


def _read_request(folder: str) -> wire_host.TuneRequest:
    from orchestrator.agent.state_folder import read_record

    path = Path(folder) / "request.json"
    request = read_record(wire_host.TuneRequest, path)
    if request is None:
        _say(_ERROR, f"{path} is missing or damaged: fab prep --persist writes it anew")
        sys.exit(1)
    return request


def _load_all(request: wire_host.TuneRequest) -> None:
    """What is not in the archive is to be missed now, not at the next boot."""
    from orchestrator.agent import tuning
    from orchestrator.agent.knobs import KNOBS

    assert tuning
    for setting in request.settings:
        if setting.kind in KNOBS:
            importlib.import_module("orchestrator.agent." + KNOBS[setting.kind].module)


def _wait_for_setters(seconds: float) -> None:
    """Wait until nothing that sets the same knobs is about to start. Not by After= in the unit: see there."""
    if wait_until(lambda: not _starting_setters(), Deadline(seconds), 0.25):
        return
    late = " and ".join(_starting_setters())
    _say(_WARNING, f"{late} did not start within {seconds:g} s: going on without, so that guests need not wait for it")


def _starting_setters() -> List[str]:
    """Which of the setters systemd still has to start."""
    from orchestrator.agent.systemd import systemctl

    output = systemctl("list-jobs", "--plain", "--no-legend", "--", *_SETTERS, seconds=5.0)
    return sorted({word for word in output.text.split() if word in _SETTERS})


def _in_child(request: wire_host.TuneRequest, seconds: float) -> int:
    """Do the work in a child and return its exit status; 1 when it did not end within `seconds`."""
    child = os.fork()
    if child == 0:
        os._exit(_guarded(request))
    if _has_ended(child, seconds):
        return _status(child)
    os.kill(child, signal.SIGKILL)
    stuck = None if _has_ended(child, _REAP_SECONDS) else _describe_stuck(child)
    left = f"; left behind: {stuck}" if stuck else ""
    _say(_ERROR, f"not done within {seconds:g} s, given up so that guests can start{left}: fab prep says which knob it is")
    return 1


def _guarded(request: wire_host.TuneRequest) -> int:
    """The work; its traceback goes to the journal."""
    try:
        return _apply(request)
    except BaseException:  # noqa: BLE001 - the child must end here, whatever it was
        import traceback

        traceback.print_exc()
        return 1


def _apply(request: wire_host.TuneRequest) -> int:
    from orchestrator.agent.kernel_files import KernelFiles
    from orchestrator.agent.refusal import AgentRefusal
    from orchestrator.agent.tuning import apply

    try:
        report = apply(request, KernelFiles())
    except AgentRefusal as refusal:
        _say(_ERROR, " / ".join([refusal.failure.message, *refusal.failure.evidence]))
        return 1
    for result in report.results:
        _say(_level(result), line(result))
    bad = [result for result in report.results if result.outcome not in _GOOD]
    if bad:
        _say(_ERROR, f"{len(bad)} of {len(report.results)} knobs are not as profile {request.profile} wants them")
    return 1 if bad else 0


def line(result: KnobResult) -> str:
    """One knob in one line of the journal."""
    name = " ".join(filter(None, (result.setting.kind, result.setting.name)))
    values = _values(result.before)
    if result.after != result.before:
        values = f"{values} -> {_values(result.after)}"
    wanted = "" if result.setting.value is None else f", wanted {result.setting.value}"
    detail = f": {result.detail}" if result.detail else ""
    return f"{result.outcome}: {name}: {values}{wanted}{detail} ({result.source})"


def _values(items: Dict[str, str]) -> str:
    """Each value once; the items that have it are named where there are several values, and counted where they are many."""
    by_value: Dict[str, List[str]] = {}
    for item, value in items.items():
        by_value.setdefault(value, []).append(item)
    if len(by_value) == 1:
        return next(iter(by_value)) or "empty"
    named = {value: ",".join(names) if len(names) <= _NAMED else f"{len(names)} items" for value, names in by_value.items()}
    return " ".join(f"{value}[{names}]" for value, names in named.items()) or "unread"


def _level(result: KnobResult) -> str:
    if result.outcome not in _GOOD:
        return _ERROR
    return _WARNING if result.outcome in (KnobOutcome.TOLD, KnobOutcome.UNAVAILABLE) else _INFORMATION


def _has_ended(child: int, seconds: float) -> bool:
    descriptor = os.pidfd_open(child)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _status(child: int) -> int:
    """Its exit status; 1 where a signal ended it."""
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


def _describe_stuck(child: int) -> Optional[str]:
    from orchestrator.agent.command import find_stuck

    stuck = find_stuck(child, "the child that sets knobs")
    return str(stuck) if stuck is not None else None


def _say(level: str, text: str) -> None:
    for part in text.splitlines():
        sys.stdout.write(f"{level}{part}\n")
    sys.stdout.flush()
