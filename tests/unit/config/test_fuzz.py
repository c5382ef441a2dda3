"""Whatever stands in the files, loading answers with an inventory or a ConfigError whose lines are lines."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import load_inventory
from orchestrator.config.tuning import KNOB_KINDS
from orchestrator.errors import ConfigError

ROOT = Path(__file__).parents[3] / "inventory"
FILES = ("hosts.yml", "services/glm5-nvfp4.yml", "backends/marlin.yml", "tuning/blackwell-pcie.yml", "tuning/observe.yml")
SHIPPED = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES}
LINE = re.compile(r"[^\n\r]+:[1-9][0-9]*: [^\n\r]+: [^\n\r]+")

PIECES = st.sampled_from(
    [
        *"\n\n:-?,[]{}#&*!|>'\"%@`~ \t",
        *("  ", ": ", "- ", "? ", "<<: ", "&a", "*a", "---", "...", "%YAML 1.1\n", "!!python/object:os.system "),
        *("hosts", "name", "box", "address", "secrets", "arguments", "variants", "knobs", "knob", "value"),
        *("off", "true", "null", "22:22", "0755", "1e-3", "9" * 25, "\\x00", "\x85", "\u2028", "é"),
    ]
)
YAML_LIKE = st.lists(PIECES, max_size=40).map("".join)
NAMES = st.sampled_from([*sorted(set(re.findall(r"[a-z_]+(?=:)", "".join(SHIPPED.values())))), "host", "box", "--tp-size", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES | st.text(max_size=8) | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=25,
)
KNOBS = st.fixed_dictionaries(
    {"knob": st.sampled_from(list(KNOB_KINDS))},
    optional={
        "name": st.sampled_from(["kernel.numa_balancing", "net.core.somaxconn", "\x1b[31m.x"]) | st.text(max_size=8),
        "place": st.sampled_from(["host", "container", "\x1b"]),
        "value": VALUES,
        "persist": st.booleans(),
        "why": st.text(max_size=8),
    },
)


def _load(**changes: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for name, text in SHIPPED.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(changes.get(path.parent.name if "/" in name else "hosts", text.encode()))
        for line in _evidence(directory):
            assert LINE.fullmatch(line)
            assert line.isprintable()


def _evidence(directory: Path) -> list[str]:
    try:
        load_inventory(directory)
    except ConfigError as error:
        return error.evidence or ["no evidence"]
    return []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=YAML_LIKE | st.text(max_size=60), file=st.sampled_from(["hosts", "services", "backends", "tuning"]))
def test_random_text(text: str, file: str) -> None:
    _load(**{file: text.encode("utf-8", "surrogatepass")})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(content=st.binary(max_size=60), file=st.sampled_from(["hosts", "services", "backends", "tuning"]))
def test_random_bytes(content: bytes, file: str) -> None:
    _load(**{file: content})


@settings(max_examples=40, deadline=None, derandomize=True)
@given(hosts=VALUES, service=VALUES, backend=VALUES, knobs=VALUES | st.lists(KNOBS, max_size=4))
def test_random_values(hosts: Any, service: Any, backend: Any, knobs: Any) -> None:
    tuning = {"name": "x", "summary": "s", "knobs": knobs}
    documents = {"hosts": {"hosts": hosts}, "services": service, "backends": backend, "tuning": tuning}
    _load(**{name: yaml.safe_dump(value).encode() for name, value in documents.items()})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(file=st.sampled_from(sorted(SHIPPED)), start=st.floats(0, 1), length=st.integers(0, 30), piece=YAML_LIKE)
def test_shipped_files_with_a_piece_replaced(file: str, start: float, length: int, piece: str) -> None:
    text = SHIPPED[file]
    at = int(start * len(text))
    _load(**{file.split("/")[0].removesuffix(".yml"): (text[:at] + piece + text[at + length :]).encode()})
