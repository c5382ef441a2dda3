"""The files of examples/ansible agree with each other and with the program."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator import __version__
from orchestrator.config import load_inventory
from tests.rig.controller import EXAMPLES, REPOSITORY

COLLECTION = EXAMPLES / "collections" / "ansible_collections" / "lxc_gpu" / "orchestrator"
ACTIONS = ("doctor", "prep", "relaunch")
PLUGINS = "ansible_collections.lxc_gpu.orchestrator.plugins"


def documented(name: str, part: str = "DOCUMENTATION") -> Any:
    return yaml.safe_load(vars(importlib.import_module(f"{PLUGINS}.modules.{name}"))[part])


def documented_options(name: str) -> dict[str, Any]:
    """The module's own options and those of the fragments that it names."""
    found: dict[str, Any] = {}
    for named in documented(name)["extends_documentation_fragment"]:
        fragment, _, part = named.removeprefix("lxc_gpu.orchestrator.").partition(".")
        shared = importlib.import_module(f"{PLUGINS}.doc_fragments.{fragment}").ModuleDocFragment
        found |= yaml.safe_load(getattr(shared, part.upper() or "DOCUMENTATION"))["options"]
    found |= documented(name)["options"]
    return found


@pytest.mark.parametrize("name", ACTIONS)
def test_the_options_are_those_that_are_documented(name: str) -> None:
    options = importlib.import_module(f"{PLUGINS}.action.{name}").ActionModule.OPTIONS
    described = documented_options(name)
    spec = [{key: value for key, value in option.items() if key != "description"} for option in described.values()]
    assert list(described) != []
    assert dict(zip(described, spec, strict=True)) == options


@pytest.mark.parametrize("name", ACTIONS)
def test_documentation_and_examples_are_yaml_whose_options_exist(name: str) -> None:
    options = set(documented_options(name))
    assert documented(name)["module"] == name
    assert {"exit_code", "msg", "evidence", "next_step"} <= set(documented(name, "RETURN"))
    used = [task for play in documented(name, "EXAMPLES") for task in play.get("tasks", [play])]
    assert used
    for task in used:
        assert set(task[f"lxc_gpu.orchestrator.{name}"] or {}) <= options


@pytest.mark.parametrize("name", ACTIONS)
def test_each_playbook_uses_options_that_exist(name: str) -> None:
    (play,) = yaml.safe_load((EXAMPLES / f"{name}.yml").read_text(encoding="utf-8"))
    assert play["gather_facts"] is False, "Ansible itself needs no connection"
    assert set(play["tasks"][0][f"lxc_gpu.orchestrator.{name}"]) <= set(documented_options(name))


def test_the_collection_is_the_programs_version_and_names_all_actions() -> None:
    galaxy = yaml.safe_load((COLLECTION / "galaxy.yml").read_text(encoding="utf-8"))
    assert (galaxy["version"], f"{galaxy['namespace']}.{galaxy['name']}") == (__version__, "lxc_gpu.orchestrator")
    runtime = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    assert sorted(runtime["action_groups"]["all"]) == sorted(ACTIONS)
    assert sorted(path.stem for path in (COLLECTION / "plugins" / "action").glob("*.py")) == sorted(ACTIONS)


def test_the_inventory_names_hosts_of_the_shipped_one() -> None:
    gpus = yaml.safe_load((EXAMPLES / "hosts.yml").read_text(encoding="utf-8"))["gpus"]
    folder = EXAMPLES / gpus["vars"]["orchestrator_inventory"]
    named = {(variables or {}).get("orchestrator_host", name) for name, variables in gpus["hosts"].items()}
    assert named <= set(load_inventory(folder.resolve()).hosts)
    assert folder.resolve() == REPOSITORY / "inventory"


@pytest.mark.parametrize("path", sorted(COLLECTION.rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_of_the_program_is_imported(path: Path) -> None:
    """It may be installed elsewhere than Ansible, and is called by its command line."""
    names = [
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert not [name for name in names if name.split(".")[0] == "orchestrator"]


def test_the_inventory_plugins_example_is_its_file() -> None:
    shipped = yaml.safe_load((EXAMPLES / "gpus.orchestrator.yml").read_text(encoding="utf-8"))
    plugin = importlib.import_module(f"{PLUGINS}.inventory.hosts")
    assert yaml.safe_load(plugin.EXAMPLES) == shipped
    assert shipped["plugin"] in yaml.safe_load(plugin.DOCUMENTATION)["options"]["plugin"]["choices"]
    assert (EXAMPLES / shipped["folder"]).resolve() == REPOSITORY / "inventory"
