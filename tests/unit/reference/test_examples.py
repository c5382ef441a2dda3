"""The commented examples of ``fab docs SECTION`` are valid, whole and true, as printed and with all that they hold set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from orchestrator.cli.verbs import verb_flags
from orchestrator.config import load_inventory
from orchestrator.config.models import Backend, Host, Service
from orchestrator.config.playbook import Playbook
from orchestrator.config.playbook_files import read_playbook
from orchestrator.config.routers import Router
from orchestrator.config.sections import SECTIONS
from orchestrator.config.sweep import SweepModel, load_sweep
from orchestrator.config.tuning import KNOB_KINDS, TuningProfile
from orchestrator.config.yaml_reader import Document, read_file
from orchestrator.reference.configuration_page import SECTION_MODELS
from orchestrator.reference.model_fields import GIVEN, models_below
from orchestrator.reference.pages import EXAMPLES

BASE = {
    "hosts.yml": "hosts:\n  gpu1:\n    address: 192.0.2.1\n    container:\n      reached_by: pct\n      id: 101\n"
    "  gpu2:\n    address: 192.0.2.2\n    container:\n      reached_by: pct\n      id: 101\n",
    "services/glm5.yml": "name: glm5\nhost: gpu1\npython: /opt/sglang/bin/python\nmodel: /models/m\n",
    "backends/fast.yml": 'name: fast\nkind: backend\nsummary: When it must be fast.\nvariants: [{sglang: ">=0.5.11"}]\n',
    "tuning/quick.yml": "name: quick\nsummary: Reads.\nknobs: [{knob: cpu_governor}]\n",
}
FILES = {
    "host": "hosts.yml",
    "container": "hosts.yml",
    "backend": "backends/fast.yml",
    "tuning": "tuning/quick.yml",
    "router": "routers/front.yml",
}
"""Which file of that inventory an example takes the place of; those that are not here and no files of their own are services."""
ROOTS: dict[str, type[BaseModel]] = {
    "backend": Backend,
    "tuning": TuningProfile,
    "router": Router,
    "sweep": SweepModel,
    "playbook": Playbook,
}


@dataclass(frozen=True)
class Found:
    """A key in an example. `line` counts from 0 in `lines`, those of its document as printed."""

    model: type[BaseModel]
    key: str
    value: Any
    line: int
    lines: list[str]

    @property
    def is_commented_out(self) -> bool:
        return self.lines[self.line].lstrip().startswith("#")

    @property
    def has_its_meaning(self) -> bool:
        """Whether the comment above says more than whether it may be left out."""
        above: list[str] = []
        for line in reversed(self.lines[: self.line]):
            if re.match(r"\s*# \S", line) is None:
                break
            above.insert(0, line.strip(" #"))
        return bool(above) and not above[0].startswith(("Required", "Left out"))


def documents(section: str) -> list[str]:
    return re.split(r"^---.*\n", (EXAMPLES / f"{section}.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)


def all_set(text: str) -> str:
    """With every ``#`` taken away that has no space behind it, as the examples say."""
    return re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE)


def load(section: str, text: str, folder: Path) -> None:
    """By the loader that reads such a file for the program."""
    for name, content in BASE.items():
        path = folder / "inventory" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    inventory = folder / "inventory"
    if section == "playbook":
        (folder / "playbook.yml").write_text(text, encoding="utf-8")
        loaded, mistakes = read_playbook(folder / "playbook.yml", verb_flags())
        assert loaded is not None, [str(mistake) for mistake in mistakes]
    elif section == "sweep":
        (inventory / "sweeps").mkdir()
        (inventory / "sweeps" / "example.yml").write_text(text, encoding="utf-8")
        load_sweep("example", load_inventory(inventory))
    else:
        path = inventory / FILES.get(section, "services/glm5.yml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        load_inventory(inventory)


def found_in(section: str, folder: Path) -> list[Found]:
    """Every key that the section's example has, set or not."""
    found: list[Found] = []
    for text in documents(section):
        (folder / "all.yml").write_text(all_set(text), encoding="utf-8")
        document = read_file(folder / "all.yml", folder)
        assert not document.mistakes, [str(mistake) for mistake in document.mistakes]
        lines = text.splitlines()
        for model, key, path, value in _keys(section, document):
            found.append(Found(model, key, value, document.line(path) - 1, lines))
    return found


def origin(model: type[BaseModel], key: str) -> type[BaseModel]:
    """The model that a key was written for: an inherited one means the same."""
    bases = [
        base
        for base in model.__mro__
        if issubclass(base, BaseModel) and key in {info.alias or name for name, info in base.model_fields.items()}
    ]
    return bases[-1]


Key = tuple[type[BaseModel], str, tuple[str | int, ...], Any]


def _keys(section: str, document: Document) -> Iterator[Key]:
    if FILES.get(section) != "hosts.yml":
        yield from _below(ROOTS.get(section, Service), document.data, ())
        return
    for name, host in document.data["hosts"].items():
        yield from _below(Host, host, ("hosts", name))


def _below(kind: Any, data: Any, path: tuple[str | int, ...]) -> Iterator[Key]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        by_key = {info.alias or name: info for name, info in kind.model_fields.items()}
        for key, value in data.items():
            yield kind, key, (*path, key), value
            yield from _below(by_key[key].annotation, value, (*path, key))
    elif get_origin(kind) is list:
        for index, item in enumerate(data):
            yield from _below(get_args(kind)[0], item, (*path, index))
    elif get_origin(kind) is dict:
        for key, item in data.items():
            yield from _below(get_args(kind)[1], item, (*path, key))
    else:
        for part in get_args(kind):
            if (isinstance(data, dict) and not isinstance(part, str)) or get_origin(part) is list:
                yield from _below(part, data, path)


def test_there_is_an_example_of_each_section_and_no_other() -> None:
    assert {path.stem for path in EXAMPLES.iterdir()} == set(SECTIONS) == set(SECTION_MODELS)


def test_every_model_belongs_to_one_section() -> None:
    roots: list[type[BaseModel]] = [Host, Service, *ROOTS.values()]
    held = [model for models in SECTION_MODELS.values() for model in models]
    assert sorted(held, key=str) == sorted({model for root in roots for model in models_below(root)}, key=str)


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_loads_as_it_is_printed(section: str, tmp_path: Path) -> None:
    for index, text in enumerate(documents(section)):
        load(section, text, tmp_path / str(index))


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_loads_with_all_of_it_set(section: str, tmp_path: Path) -> None:
    for index, text in enumerate(documents(section)):
        load(section, all_set(text), tmp_path / str(index))


@pytest.mark.parametrize("section", SECTIONS)
def test_an_example_has_every_key_with_what_it_means(section: str, tmp_path: Path) -> None:
    told = {(origin(found.model, found.key), found.key) for found in found_in(section, tmp_path) if found.has_its_meaning}
    wanted = {
        (origin(model, info.alias or name), info.alias or name)
        for model in SECTION_MODELS[section]
        for name, info in model.model_fields.items()
        if name not in GIVEN.get(model, ())
    }
    assert not {f"{model.__name__}.{key}" for model, key in wanted - told}


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_commented_out_shows_the_default(section: str, tmp_path: Path) -> None:
    for found in found_in(section, tmp_path):
        name = next(name for name, info in found.model.model_fields.items() if found.key in (name, info.alias))
        info = found.model.model_fields[name]
        if not found.is_commented_out or info.is_required() or found.model not in SECTION_MODELS[section]:
            continue
        default = info.get_default(call_default_factory=True, validated_data={})
        if default is not None and default not in ([], {}, "") and not isinstance(default, BaseModel):
            assert found.value == default, f"{found.model.__name__}.{found.key}"


def test_the_example_of_tuning_has_every_kind_of_knob(tmp_path: Path) -> None:
    assert {found.value for found in found_in("tuning", tmp_path) if found.key == "knob"} == set(KNOB_KINDS)
