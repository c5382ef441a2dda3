"""Whether a load still does anything: its log grows, its processes use the CPU, a compiler runs below it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional

COMPILERS = frozenset({"nvcc", "ninja", "cicc", "ptxas", "cc1plus", "cudafe++", "c++", "g++", "clang++", "nvlink", "fatbinary"})
"""What JIT compilation runs below a scheduler (FlashInfer, DeepGEMM, Triton, torch inductor)."""

BUSY_FRACTION = 0.05
"""Of one core: an idle scheduler with ``--sleep-on-idle`` takes 2.4 %, an idle main process 1 %."""

_WINDOW = 2.0
"""Shorter than this, CPU time in clock ticks says nothing."""


@dataclass(frozen=True)
class ProcessStat:
    """Fields of /proc/PID/stat (fs/proc/array.c): `cpu` is user and system time in seconds, `start_time` in clock ticks."""

    state: str
    start_time: int
    cpu: float


def read_stat(pid: int, root: Path = Path("/proc")) -> Optional[ProcessStat]:
    """What /proc says of a process; None when there is none."""
    try:
        text = (root / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may itself hold brackets and spaces.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return ProcessStat(fields[0], int(fields[19]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))


@dataclass(frozen=True)
class Seen:
    """What was last seen to move, and when (monotonic)."""

    what: str
    moment: float


class ActivityMeter:
    """Keeps the moment of the last sign of life of a load."""

    def __init__(self, now: float, root: Path = Path("/proc")) -> None:
        self._root = root
        self._log_size = 0
        self._cpu: Dict[int, float] = {}
        self._sampled = now
        self.last = Seen("the start", now)
        self._logged: Optional[float] = None

    def note_log(self, size: int, now: float) -> None:
        """Tell how much log there is."""
        if size != self._log_size:
            self._log_size = size
            self._logged = now
            self.last = Seen("log output", now)

    def sample(self, pids: Iterable[int], now: float) -> None:
        """Look at CPU time and compilers of the processes; at most each 2 s, more often it does nothing."""
        elapsed = now - self._sampled
        if elapsed < _WINDOW:
            return
        self._sampled = now
        used = 0.0
        cpu: Dict[int, float] = {}
        for pid in pids:
            stat = read_stat(pid, self._root)
            if stat is None:
                continue
            cpu[pid] = stat.cpu
            # A process seen for the first time has just been started: all its time is new.
            used += stat.cpu - self._cpu.get(pid, 0.0)
        first = not self._cpu
        self._cpu = cpu
        compilers = self._compilers(cpu)
        if compilers:
            self.last = Seen(f"compilers: {', '.join(compilers)}", now)
        elif not first and used / elapsed > BUSY_FRACTION:
            self.last = Seen(f"CPU use: {used / elapsed:.1f} cores", now)

    def told(self, now: float) -> str:
        """What was last seen, and how long ago; where that is CPU time alone, when there was output."""
        text = f"{self.last.what}, {now - self.last.moment:.0f} s ago"
        if not self.last.what.startswith("CPU use"):
            return text
        output = "no log output at all" if self._logged is None else f"no log output for {now - self._logged:.0f} s"
        return f"{text}, but {output} (a rank that waits for the others in NCCL spins like that)"

    def idle(self, now: float) -> float:
        """Seconds since the last sign of life."""
        return now - self.last.moment

    def _compilers(self, pids: Iterable[int]) -> List[str]:
        names = set()
        for pid in pids:
            try:
                name = (self._root / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
            except OSError:
                continue
            if name in COMPILERS:
                names.add(name)
        return sorted(names)
