"""A stand-in for nvidia-smi: the queries of a lab host's made-up GPUs, in the real formats (driver 580).

Run as ``nvidia_smi.py HOST_FOLDER ARGUMENT...``. ``HOST_FOLDER/gpus.json`` says what GPUs there are; memory is what the
living processes recorded in ``HOST_FOLDER/processes`` hold. An unknown field fails the whole query with exit code 2 and its
text on the output, as the real one does. Standard library only, Python >= 3.9.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIVER = "580.159.04"
BUSY_MEMORY_MIB = 10


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of one GPU."""

    pid: int
    gpu: int
    memory_mib: int
    name: str


@dataclass(frozen=True)
class Gpu:
    """One made-up GPU and what is used of it now."""

    index: int
    uuid: str
    name: str
    compute_capability: str
    total: int
    used: int


@dataclass(frozen=True)
class Field:
    """A column: its header, its unit, and how it is read from a row."""

    header: str
    unit: str
    read: Callable[[Any], Any]


def _now(_gpu: Any) -> str:
    return datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]  # noqa: DTZ005 - local time, as the real one


_GPU_FIELDS: dict[str, Field] = {
    "timestamp": Field("timestamp", "", _now),
    "index": Field("index", "", lambda gpu: gpu.index),
    "uuid": Field("uuid", "", lambda gpu: gpu.uuid),
    "gpu_uuid": Field("uuid", "", lambda gpu: gpu.uuid),
    "name": Field("name", "", lambda gpu: gpu.name),
    "gpu_name": Field("name", "", lambda gpu: gpu.name),
    "compute_cap": Field("compute_cap", "", lambda gpu: gpu.compute_capability),
    "count": Field("count", "", lambda gpu: 8),
    "driver_version": Field("driver_version", "", lambda _gpu: DRIVER),
    "pci.bus_id": Field("pci.bus_id", "", lambda gpu: f"00000000:{gpu.index + 1:02X}:00.0"),
    "memory.used": Field("memory.used", "MiB", lambda gpu: gpu.used),
    "memory.total": Field("memory.total", "MiB", lambda gpu: gpu.total),
    "memory.free": Field("memory.free", "MiB", lambda gpu: gpu.total - gpu.used),
    "utilization.gpu": Field("utilization.gpu", "%", lambda _gpu: 0),
    "temperature.gpu": Field("temperature.gpu", "", lambda _gpu: 37),
    "power.draw": Field("power.draw", "W", lambda _gpu: "126.00"),
    "clocks.sm": Field("clocks.current.sm", "MHz", lambda _gpu: 1980),
    "clocks.current.sm": Field("clocks.current.sm", "MHz", lambda _gpu: 1980),
    "clocks.mem": Field("clocks.current.memory", "MHz", lambda _gpu: 2619),
    "clocks.max.sm": Field("clocks.max.sm", "MHz", lambda _gpu: 1980),
    "power.limit": Field("power.limit", "W", lambda _gpu: "700.00"),
    "pcie.link.gen.current": Field("pcie.link.gen.current", "", lambda _gpu: 5),
    "pcie.link.gen.max": Field("pcie.link.gen.max", "", lambda _gpu: 5),
    "pcie.link.width.current": Field("pcie.link.width.current", "", lambda _gpu: 16),
    "pcie.link.width.max": Field("pcie.link.width.max", "", lambda _gpu: 16),
    "clocks_event_reasons.active": Field("clocks_event_reasons.active", "", lambda _gpu: "0x0000000000000000"),
    "persistence_mode": Field("persistence_mode", "", lambda _gpu: "Enabled"),
    "mig.mode.current": Field("mig.mode.current", "", lambda _gpu: "[N/A]"),
}

_HOLDER_FIELDS: dict[str, Field] = {
    "pid": Field("pid", "", lambda row: row[0].pid),
    "process_name": Field("process_name", "", lambda row: row[0].name),
    "name": Field("process_name", "", lambda row: row[0].name),
    "used_memory": Field("used_gpu_memory", "MiB", lambda row: row[0].memory_mib),
    "used_gpu_memory": Field("used_gpu_memory", "MiB", lambda row: row[0].memory_mib),
    "gpu_uuid": Field("gpu_uuid", "", lambda row: row[1].uuid),
    "gpu_name": Field("gpu_name", "", lambda row: row[1].name),
    "gpu_bus_id": Field("gpu_bus_id", "", lambda row: _GPU_FIELDS["pci.bus_id"].read(row[1])),
}


def read_holders(folder: Path) -> list[Holder]:
    """The recorded processes that still live and hold memory."""
    holders: list[Holder] = []
    for path in sorted((folder / "processes").glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        lives = record["start_time"] and _start_time(record["pid"]) == record["start_time"]
        if lives and record["memory_mib"]:
            holders.append(Holder(record["pid"], record["gpu"], record["memory_mib"], _title(record["pid"])))
    return holders


def read_gpus(folder: Path, holders: list[Holder]) -> list[Gpu]:
    made_up = json.loads((folder / "gpus.json").read_text(encoding="utf-8"))
    gpus: list[Gpu] = []
    for index in range(made_up["count"]):
        held = sum(holder.memory_mib for holder in holders if holder.gpu == index)
        used = held + BUSY_MEMORY_MIB if held else 0
        uuid = f"{made_up['uuid']}-{index:012d}"
        gpus.append(Gpu(index, uuid, made_up["name"], made_up["compute_capability"], made_up["memory_mib"], used))
    return gpus


def _start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().strip(b"\0").split(b"\0")[0].decode(errors="replace")
    except OSError:
        return "[Not Found]"


def render(names: list[str], fields: dict[str, Field], rows: list[Any], options: list[str]) -> str:
    """The CSV of a query.

    Raises:
        KeyError: an unknown field, by name.
    """
    columns = [fields[name] for name in names]
    with_units = "nounits" not in options
    lines = [", ".join(_header(column, with_units=with_units) for column in columns)] if "noheader" not in options else []
    lines.extend(", ".join(_cell(column, row, with_units=with_units) for column in columns) for row in rows)
    return "".join(line + "\n" for line in lines)


def _header(field: Field, *, with_units: bool) -> str:
    return f"{field.header} [{field.unit}]" if field.unit and with_units else field.header


def _cell(field: Field, row: Any, *, with_units: bool) -> str:
    value = str(field.read(row))
    return f"{value} {field.unit}" if field.unit and with_units else value


def summary(gpus: list[Gpu]) -> str:
    """What a bare ``nvidia-smi`` shows, in one line a GPU."""
    lines = [f"NVIDIA-SMI {DRIVER} (stand-in of the lab: these GPUs are made up)"]
    lines.extend(f"  {gpu.index}  {gpu.name}  {gpu.used}MiB / {gpu.total}MiB" for gpu in gpus)
    return "\n".join(lines) + "\n"


def answer(folder: Path, arguments: list[str]) -> tuple[str, int]:
    """The output and the exit code for a command line."""
    values = dict(argument.partition("=")[::2] for argument in _joined(arguments))
    options = values.get("--format", "csv").split(",")
    holders = read_holders(folder)
    gpus = _chosen(read_gpus(folder, holders), values.get("--id"))
    try:
        if "--query-gpu" in values:
            return render(values["--query-gpu"].split(","), _GPU_FIELDS, gpus, options), 0
        if "--query-compute-apps" in values:
            rows = [(holder, gpu) for holder in holders for gpu in gpus if gpu.index == holder.gpu]
            return render(values["--query-compute-apps"].split(","), _HOLDER_FIELDS, rows, options), 0
    except KeyError as unknown:
        return f'Field "{unknown.args[0]}" is not a valid field to query.\n\n', 2
    if "-L" in values or "--list-gpus" in values:
        return "".join(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})\n" for gpu in gpus), 0
    if not arguments:
        return summary(gpus), 0
    return f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n{arguments}\n", 1


def _joined(arguments: list[str]) -> list[str]:
    """``-i 0`` as ``--id=0``."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == "--id=":
            joined[-1] += argument
        else:
            joined.append("--id=" if argument == "-i" else argument)
    return joined


def _chosen(gpus: list[Gpu], chosen: str | None) -> list[Gpu]:
    if not chosen:
        return gpus
    wanted = chosen.split(",")
    return [gpu for gpu in gpus if str(gpu.index) in wanted or gpu.uuid in wanted]


def main() -> int:
    """Answer once, or again and again with ``--loop-ms=N``."""
    every = dict(argument.partition("=")[::2] for argument in sys.argv[2:]).get("--loop-ms")
    arguments = [argument for argument in sys.argv[2:] if not argument.startswith("--loop-ms=")]
    while True:
        output, status = answer(Path(sys.argv[1]), arguments)
        sys.stdout.write(output)
        sys.stdout.flush()
        if every is None or status:
            return status
        time.sleep(int(every) / 1000)


if __name__ == "__main__":
    sys.exit(main())
