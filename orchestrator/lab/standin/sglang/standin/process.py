"""What the real server's processes do to themselves: titles, death with the parent, records of who they are."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """Overwrite argv, and environ unless SPT_NOENV is set, as setproctitle does; comm is cut to 15 bytes by the kernel."""
    arguments_start, arguments_end, environment_start, environment_end = _areas()
    end = arguments_end if os.environ.get("SPT_NOENV") or environment_start < arguments_start else environment_end
    room = end - arguments_start
    text = title.encode()[: room - 1]
    ctypes.memset(arguments_start, 0, room)
    ctypes.memmove(arguments_start, text, len(text))
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)


def die_with_parent() -> None:
    """SIGKILL to this process when its parent ends (srt/utils/common.py kill_itself_when_parent_died).

    As there, nothing happens when the parent has ended already: that is how orphans come about.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _areas() -> tuple[int, int, int, int]:
    """arg_start, arg_end, env_start, env_end of this process: fields 48 to 51 of /proc/self/stat (proc(5))."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end, environment_start, environment_end = (int(fields[number - 3]) for number in (48, 49, 50, 51))
    return start, end, environment_start, environment_end


class Record:
    """This process in the host's list of processes; the stand-in nvidia-smi and the lab's `down` read it."""

    def __init__(self, folder: str, role: str) -> None:
        self._path = Path(folder) / f"{os.getpid()}.json" if folder else None
        self._role = role
        self.update()

    def update(self, gpu: int | None = None, memory_mib: int = 0) -> None:
        """Write the record anew; `memory_mib` is what the process now holds of GPU number `gpu`."""
        if self._path is None:
            return
        record = {"pid": os.getpid(), "start_time": start_time("self"), "role": self._role, "gpu": gpu, "memory_mib": memory_mib}
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(record), encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            return

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def start_time(pid: int | str) -> int:
    """Field 22 of /proc/PID/stat, clock ticks since boot; 0 when there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def memory_held_by_others(folder: str, gpu: int) -> int:
    """MiB of GPU number `gpu` that living recorded processes other than this one hold."""
    if not folder:
        return 0
    held = 0
    for path in Path(folder).glob("*.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        is_other = record["gpu"] == gpu and record["pid"] != os.getpid()
        if is_other and record["start_time"] and start_time(record["pid"]) == record["start_time"]:
            held += record["memory_mib"]
    return held
