"""Each file of data/mistakes is an inventory with mistakes, and the lines that must tell of them (``...`` ends a prefix)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import load_inventory
from orchestrator.errors import ConfigError

WriteInventory = Callable[[Mapping[str, str | None]], Path]

CASES = sorted((Path(__file__).parent / "data" / "mistakes").glob("*.case"))


def _evidence(directory: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_inventory(directory)
    assert caught.value.exit_code == 2
    return [line.replace(f"{directory}/", "") for line in caught.value.evidence]


def _read(case: Path) -> tuple[dict[str, str], list[str]]:
    parts = re.split(r"^=== (\S+)\n", case.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return sections, sections.pop("expect").splitlines()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_mistake_is_told_with_its_line(case: Path, write_inventory: WriteInventory) -> None:
    sections, expected = _read(case)
    told = _evidence(write_inventory(sections))
    assert len(told) == len(expected), told
    for line, wanted in zip(told, expected, strict=True):
        assert line.startswith(wanted[:-3]) if wanted.endswith("...") else line == wanted, (line, wanted)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_no_secret_is_repeated(case: Path, write_inventory: WriteInventory) -> None:
    sections, _ = _read(case)
    assert "hunter2" not in "\n".join(_evidence(write_inventory(sections)))


def test_missing_folder(tmp_path: Path) -> None:
    assert _evidence(tmp_path / "none") == [
        f"{tmp_path}/none:1: (file): no such folder; it holds hosts.yml, services/ and backends/".replace(f"{tmp_path}/none/", "")
    ]


def test_missing_files_do_not_make_references_dangle(tmp_path: Path, write_inventory: WriteInventory) -> None:
    directory = write_inventory({"hosts.yml": None, "backends/fast.yml": None})
    assert _evidence(directory) == [
        "backends:1: (file): can't be listed: No such file or directory; it must be a folder of .yml files",
        "hosts.yml:1: (file): no such file",
    ]


def test_things_that_are_not_text_files(write_inventory: WriteInventory) -> None:
    directory = write_inventory({"hosts.yml": None})
    (directory / "hosts.yml").mkdir()
    (directory / "services" / "latin1.yml").write_bytes(b"name: x\nhost: caf\xe9\n")
    (directory / "services" / "nul.yml").write_bytes(b"name: x\nhost: a\x00b\n")
    os.mkfifo(directory / "services" / "pipe.yml")
    (directory / "services" / "huge.yml").write_bytes(b"a" * (1 << 20) + b"a")
    (directory / "services" / "loop.yml").symlink_to("loop.yml")
    (directory / "services" / ".#model.yml").symlink_to("nowhere")
    assert [line.partition(": not ")[0] for line in _evidence(directory)] == [
        "hosts.yml:1: (file): is not a file",
        "services/huge.yml:1: (file): larger than 1 MiB",
        "services/latin1.yml:2: (file): is not UTF-8 text",
        "services/loop.yml:1: (file): can't be read: Too many levels of symbolic links",
        "services/nul.yml:2: (file): is not YAML: control characters are not allowed",
        "services/pipe.yml:1: (file): is not a file",
    ]


def test_an_alias_bomb_and_deep_nesting_are_lines_like_any_other(write_inventory: WriteInventory) -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    directory = write_inventory(
        {"services/bomb.yml": bomb, "services/deep.yml": "[" * 50, "services/deeper.yml": "[" * 50_000, "services/long.yml": "9" * 50_000}
    )
    told = _evidence(directory)
    assert "services/deep.yml:1: (file): nested deeper than 20 levels" in told
    assert any(line.startswith("services/deeper.yml:1: (file): ") for line in told)
    assert "services/bomb.yml:9: i[5]: *h: aliases are not used here: write the value out" in told
    assert all(len(line) < 400 for line in told)
