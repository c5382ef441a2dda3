"""Putting files in their place: nothing that is there is lost, and nothing is left half-written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows.init_files import File, put_in_place

HOSTS = "hosts:\n  gpu1: {address: a}\n"
MORE = HOSTS + "  gpu2: {address: b}\n"
FILES = [
    File("services/glm5.yml", "service"),
    File("hosts.yml", MORE, HOSTS),
    File("tuning/gpu2.yml", "tuning"),
    File("backends/auto.yml", "b"),
]


def everything(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    folder = tmp_path / "inventory"
    (folder / "services").mkdir(parents=True)
    (folder / "hosts.yml").write_text(HOSTS)
    (folder / "services/mine.yml").write_text("mine")
    return folder


def test_new_files_come_to_be_and_one_gets_more_lines(inventory: Path) -> None:
    (inventory / "hosts.yml").chmod(0o640)
    put_in_place(inventory, FILES)
    expected = {file.name: file.text for file in FILES} | {"services/mine.yml": "mine"}
    assert everything(inventory) == expected
    assert (inventory / "hosts.yml").stat().st_mode & 0o777 == 0o640


def test_a_new_inventory_is_made_with_its_folders(tmp_path: Path) -> None:
    put_in_place(tmp_path / "a/inventory", [File("hosts.yml", HOSTS)])
    assert sorted(path.name for path in (tmp_path / "a/inventory").iterdir()) == ["backends", "hosts.yml", "services", "tuning"]


def test_a_link_is_followed_and_stays_one(inventory: Path, tmp_path: Path) -> None:
    (inventory / "hosts.yml").rename(tmp_path / "kept-elsewhere.yml")
    (inventory / "hosts.yml").symlink_to(tmp_path / "kept-elsewhere.yml")
    put_in_place(inventory, FILES)
    assert (inventory / "hosts.yml").is_symlink()
    assert (tmp_path / "kept-elsewhere.yml").read_text() == MORE


@pytest.mark.parametrize("name", ["services/glm5.yml", "backends/auto.yml", "hosts.yml"])
def test_what_has_come_into_being_or_changed_meanwhile_stays_and_nothing_is_written(inventory: Path, name: str) -> None:
    (inventory / name).parent.mkdir(exist_ok=True)
    (inventory / name).write_text("somebody was faster")
    before = everything(inventory)
    with pytest.raises(RefusedError, match=name):
        put_in_place(inventory, FILES)
    assert everything(inventory) == before
    assert sorted(path.name for path in inventory.iterdir() if path.is_dir()) in (["services"], ["backends", "services"])


@pytest.mark.parametrize("after", range(16))
def test_ctrl_c_at_any_moment_leaves_all_or_nothing(inventory: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Before each call of the system that changes something."""
    before, left = everything(inventory), [after]

    def interrupting(call: object) -> object:
        def run(*arguments: object, **options: object) -> object:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return call(*arguments, **options)  # type: ignore[operator]

        return run

    for name in ("link", "fsync"):
        monkeypatch.setattr(os, name, interrupting(getattr(os, name)))
    for name in ("mkdir", "replace", "unlink"):
        monkeypatch.setattr(Path, name, interrupting(getattr(Path, name)))
    try:
        put_in_place(inventory, FILES)
    except KeyboardInterrupt:
        monkeypatch.undo()
        assert everything(inventory) == before
    else:
        assert left[0] >= 0, "the interruption came"
        monkeypatch.undo()
        assert everything(inventory) == {**before, **{file.name: file.text for file in FILES}}


def test_ctrl_c_right_after_the_link_takes_the_file_back(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, before = os.link, everything(inventory)

    def interrupted(source: Path, target: Path) -> None:
        link(source, target)
        if target.name == "glm5.yml":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(inventory, FILES)
    assert everything(inventory) == before


def test_what_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text("a file")
    with pytest.raises(UsageError, match="can't be written"):
        put_in_place(tmp_path / "inventory", [File("hosts.yml", HOSTS)])
