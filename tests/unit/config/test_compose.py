"""One launch from a service and profiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.config import Backend, Overlay, Service, Variant, base_launch, compose_launch, policy, requirements
from orchestrator.config.models import PolicyModel, RequirementsModel
from orchestrator.errors import RefusedError, UsageError

SERVICE = Service.model_validate(
    {
        "name": "model",
        "host": "box",
        "python": "/opt/sglang/bin/python",
        "model": "/models/m",
        "bind": "0.0.0.0",
        "port": 30001,
        "user": "sglang",
        "directory": "/srv",
        "arguments": {
            "--tp-size": 8,
            "--moe-runner-backend": "auto",
            "--mem-fraction-static": 0.85,
            "--enable-metrics": True,
            "--skip-server-warmup": False,
            "--cuda-graph-bs-decode": [1, 2, 4],
            "--disable-cuda-graph": True,
        },
        "environment": {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": 8},
        "policy": {"grace": 3, "measure": False},
    }
)


def _backend(name: str, *variants: dict[str, Any], kind: str = "backend") -> Backend:
    return Backend.model_validate({"name": name, "kind": kind, "summary": "s", "variants": list(variants)})


FAST = _backend(
    "fast",
    {"sglang": ">=0.5.6,<0.5.11", "refused": "it runs something else"},
    {
        "sglang": ">=0.5.11,<0.6",
        "arguments": {"--moe-runner-backend": "fast", "--disable-cuda-graph": False},
        "environment": {"NCCL_DEBUG": "INFO"},
        "requirements": {"compute_capability": ["10.0"], "note": "n"},
    },
)
EIGHT = _backend("eight", {"sglang": ">=0.5.6", "arguments": {"--ep-size": 8}, "requirements": {"gpu_count": 8}}, kind="overlay")


def test_base_launch() -> None:
    launch = base_launch(SERVICE, "L1", {"api-key": "secret"})
    assert launch.arguments == [
        *("--model-path", "/models/m", "--host", "0.0.0.0", "--port", "30001"),
        *("--tp-size", "8", "--moe-runner-backend", "auto", "--mem-fraction-static", "0.85", "--enable-metrics"),
        *("--cuda-graph-bs-decode", "1", "2", "4", "--disable-cuda-graph"),
    ]
    assert launch.environment == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"}
    assert (launch.backend, launch.backend_flags, launch.backend_environment) == ("", [], [])
    assert (launch.service, launch.launch_id, launch.host, launch.port) == ("model", "L1", "0.0.0.0", 30001)
    assert (launch.python, launch.entry) == ("/opt/sglang/bin/python", ["-m", "sglang.launch_server"])
    assert (launch.user, launch.directory, launch.secrets) == ("sglang", "/srv", {"api-key": "secret"})


def test_a_profile_replaces_adds_and_takes_away() -> None:
    launch = compose_launch(SERVICE, [FAST, EIGHT], "0.5.23", "L2", {})
    flags = [item for item in launch.arguments if item.startswith("--")]
    assert len(flags) == len(set(flags))
    assert launch.arguments[launch.arguments.index("--moe-runner-backend") + 1] == "fast"
    assert launch.arguments[-2:] == ["--ep-size", "8"]
    assert "--disable-cuda-graph" not in launch.arguments
    assert launch.environment["NCCL_DEBUG"] == "INFO"
    assert launch.backend == "fast+eight"
    assert launch.backend_flags == ["--moe-runner-backend", "--disable-cuda-graph", "--ep-size"]
    assert launch.backend_environment == ["NCCL_DEBUG"]
    assert wire.from_json(wire.Launch, wire.to_json(launch)) == launch


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.5.10.post1", "backend profile fast can't be had in SGLang 0.5.10.post1: it runs something else"),
        ("0.6.0", "backend profile fast can't be had in SGLang 0.6.0: it does not exist there"),
    ],
)
def test_refused_by_version(version: str, message: str) -> None:
    for compose in (lambda: compose_launch(SERVICE, [FAST], version, "L", {}), lambda: requirements([FAST], version)):
        with pytest.raises(RefusedError) as caught:
            compose()
        assert caught.value.message.startswith(message)
        assert version == "unknown" or caught.value.evidence == ["fast can be had in SGLang >=0.5.11,<0.6"]


@pytest.mark.parametrize("value", [4, "8", True])
def test_profiles_that_contradict_each_other(value: object) -> None:
    other = _backend("other", {"sglang": ">=0.5.6", "arguments": {"--ep-size": value}}, kind="overlay")
    with pytest.raises(UsageError, match="backend profiles eight and other set flag --ep-size differently"):
        compose_launch(SERVICE, [EIGHT, other], "0.5.23", "L", {})


def test_requirements_in_the_profiles_order() -> None:
    assert requirements([FAST, EIGHT], "0.5.11") == [
        wire.Requirements(compute_capability=["10.0"], note="n"),
        wire.Requirements(gpu_count=8),
    ]


def test_policy_overrides_only_what_is_said() -> None:
    assert policy(SERVICE) == dataclasses.replace(wire.Policy(), grace=3.0, measure=False)


@pytest.mark.parametrize(("model", "kind"), [(PolicyModel, wire.Policy), (RequirementsModel, wire.Requirements)])
def test_models_mirror_the_wire(model: type[PolicyModel | RequirementsModel], kind: type[wire.Policy | wire.Requirements]) -> None:
    assert list(model.model_fields) == [item.name for item in dataclasses.fields(kind)]
    assert kind(**model().model_dump()) == kind()


def test_the_first_variant_that_fits_is_used() -> None:
    both = _backend("both", {"sglang": ">=0.5.11", "arguments": {"--a": 1}}, {"sglang": ">=0.5.6", "arguments": {"--a": 2}})
    assert isinstance(both.variants[0], Variant)
    assert compose_launch(SERVICE, [both], "0.5.12", "L", {}).arguments[-1] == "1"
    assert compose_launch(SERVICE, [both], "0.5.9", "L", {}).arguments[-1] == "2"


def test_a_sweep_lies_over_the_service_and_its_profiles() -> None:
    overlay = Overlay(
        {"--mem-fraction-static": 0.8, "--enable-metrics": False, "--max-running-requests": 64}, ["--max-running-requests", "--x"]
    )
    plain, swept = (compose_launch(SERVICE, [FAST], "0.5.23", "L", {}, overlay=item) for item in (None, overlay))
    added = [word for word in swept.arguments if word not in plain.arguments]
    gone = [word for word in plain.arguments if word not in swept.arguments]
    assert (added, gone) == (["0.8", "--max-running-requests", "64"], ["0.85", "--enable-metrics"])
    assert swept.swept_flags == ["--max-running-requests", "--x"], "also those that only other points set"
    assert dataclasses.replace(swept, arguments=plain.arguments, swept_flags=[]) == plain, "nothing else changed"
    assert wire.from_json(wire.Launch, wire.to_json(swept)) == swept


def test_a_sweep_does_not_time_a_profile_under_its_name_without_its_flag() -> None:
    with pytest.raises(UsageError, match="backend profile fast sets --moe-runner-backend itself"):
        compose_launch(SERVICE, [FAST], "0.5.23", "L", {}, overlay=Overlay({"--moe-runner-backend": "other"}, ["--moe-runner-backend"]))
    elsewhere = Overlay({}, ["--moe-runner-backend"])
    assert compose_launch(SERVICE, [FAST], "0.5.23", "L", {}, overlay=elsewhere).backend_flags[0] == "--moe-runner-backend"
