"""A small valid inventory that tests change one file of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

FILES = {
    "hosts.yml": "hosts:\n  box:\n    address: 192.0.2.1\n    container:\n      reached_by: pct\n      id: 101\n",
    "services/model.yml": "name: model\nhost: box\npython: /opt/sglang/bin/python\nmodel: /models/m\narguments:\n  --tp-size: 8\n",
    "backends/fast.yml": (
        "name: fast\nkind: backend\nsummary: When it must be fast.\nvariants:\n"
        '  - sglang: ">=0.5.11"\n    arguments:\n      --moe-runner-backend: fast\n'
    ),
}

WriteInventory = Callable[[Mapping[str, str | None]], Path]


@pytest.fixture
def write_inventory(tmp_path: Path) -> WriteInventory:
    """Write the valid inventory with some files replaced, added or (None) left out; returns its folder."""

    def write(changes: Mapping[str, str | None]) -> Path:
        for name, text in {**FILES, **changes}.items():
            if text is None:
                continue
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write
