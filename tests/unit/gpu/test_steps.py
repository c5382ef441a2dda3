"""The table of steps of a GPU run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from orchestrator.cli.tasks import namespace
from orchestrator.config import load_inventory
from tests.gpu.setting import BROKEN, FIRST, HOST, SECOND, SERVICE, on_cpu, on_gpu
from tests.gpu.stage import ANYTHING, NOTHING, SERVING
from tests.gpu.steps import STEPS
from tests.rig.inventory import write_inventory, write_service

REPOSITORY = Path(__file__).resolve().parents[3]


def test_steps_are_told_apart_and_end_within_a_call() -> None:
    assert Counter(step.name for step in STEPS).most_common(1)[0][1] == 1
    for step in STEPS:
        assert step.start in (SERVING, NOTHING, ANYTHING)
        assert step.usual < step.limit <= 560, step.name


def test_the_verbs_that_every_step_uses_are_there() -> None:
    assert {
        "doctor",
        "prep",
        "launch",
        "measure",
        "preflight",
        "relaunch",
        "teardown",
        "status",
        "attach",
        "sweep",
        "budget",
        "profile",
    } <= set(namespace.task_names)


@pytest.mark.parametrize("make", [on_gpu, on_cpu])
def test_the_service_is_a_valid_one_and_its_backends_are_shipped(make: object, tmp_path: Path) -> None:
    assert callable(make)
    setting = make(Path("/opt/sglang/bin/python"), "/opt/site")
    inventory = write_inventory(tmp_path, {HOST: {"address": "127.0.0.1"}}, "")
    write_service(inventory, SERVICE, setting.service(tmp_path / "model", 30000))
    for folder in ("backends",):
        for path in (REPOSITORY / "inventory" / folder).glob("*.yml"):
            (inventory / folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    loaded = load_inventory(inventory)
    assert {FIRST, SECOND, BROKEN} <= set(loaded.backends)
    assert loaded.services[SERVICE].environment["PYTHONPATH"] == "/opt/site"
    assert yaml.safe_load((inventory / "services" / f"{SERVICE}.yml").read_text(encoding="utf-8"))["port"] == 30000


def test_a_server_takes_over_from_the_login_what_steers_cuda_and_nothing_else() -> None:
    login = {
        "PATH": "/usr/local/cuda/bin:/usr/bin",
        "CUDA_HOME": "/usr/local/cuda",
        "NCCL_NVLS_ENABLE": "0",
        "OUT": "/out",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment = on_gpu(Path("/usr/bin/python3"), "", login).environment
    assert environment["PATH"] == login["PATH"]
    assert {"CUDA_HOME", "NCCL_NVLS_ENABLE"} <= set(environment)
    assert not {"OUT", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"} & set(environment)
