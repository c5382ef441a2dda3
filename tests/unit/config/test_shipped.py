"""The inventory in the repository is documentation that must stay valid and true."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.load_limits import LoadLimits
from orchestrator.config import HookModel, Inventory, compose_launch, expectations, load_inventory, policy, requirements
from orchestrator.config.tuning import KNOB_KINDS, Expect
from orchestrator.config.versions import Version
from orchestrator.errors import ConfigError, RefusedError

ROOT = Path(__file__).parents[3]
VERSIONS = ["0.5.6", "0.5.9", "0.5.10", "0.5.10.post1", *(f"0.5.{patch}" for patch in range(11, 24))]
BACKENDS = {"auto", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "cutlass", "marlin", "triton", "deep_gemm"}
OVERLAYS = {"ep8", "piecewise_cuda_graph", "mscclpp", "single_batch_overlap"}


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    return load_inventory(ROOT / "inventory")


def _flags(inventory: Inventory, names: str, version: str) -> dict[str, str]:
    """What the profiles put on the founding service's command line."""
    launch = compose_launch(inventory.service("glm5-nvfp4"), inventory.backends_named(names), version, "L", {})
    pairs = zip(launch.arguments, [*launch.arguments[1:], "--"], strict=True)
    return {flag: "" if value.startswith("--") else value for flag, value in pairs if flag in launch.backend_flags}


def test_profiles_are_those_promised(inventory: Inventory) -> None:
    assert {name for name, item in inventory.backends.items() if item.kind == "backend"} == BACKENDS
    assert {name for name, item in inventory.backends.items() if item.kind == "overlay"} == OVERLAYS


def test_the_founding_service(inventory: Inventory) -> None:
    service = inventory.service(None, "gpu1")
    launch = compose_launch(service, inventory.backends_named("flashinfer_cutedsl+ep8"), "0.5.23", "L", {})
    assert " ".join(launch.arguments) == (
        "--model-path /models/GLM-5-NVFP4 --host 127.0.0.1 --port 30000 --tp-size 8 --quantization modelopt_fp4 "
        "--mem-fraction-static 0.85 --enable-metrics --moe-runner-backend flashinfer_cutedsl --ep-size 8"
    )
    place = inventory.place_of(service)
    assert (place.label, place.reached_by, place.gpus) == ("gpu1/101", "ssh", 8)


def test_at_most_one_variant_fits_a_version(inventory: Inventory) -> None:
    for backend in inventory.backends.values():
        for version in VERSIONS:
            fitting = [variant for variant in backend.variants if Version.parse(version) in variant.sglang]
            assert len(fitting) <= 1, (backend.name, version)
            assert fitting or backend.name == "marlin", (backend.name, version)


def test_a_backend_sets_the_runner_of_its_name(inventory: Inventory) -> None:
    for name in BACKENDS:
        assert _flags(inventory, name, "0.5.23")["--moe-runner-backend"] == name


@pytest.mark.parametrize("version", ["0.5.6", "0.5.9", "0.5.10.post1"])
def test_old_cutedsl_goes_through_deepep_and_says_so(inventory: Inventory, version: str) -> None:
    assert _flags(inventory, "flashinfer_cutedsl", version) == {
        "--moe-runner-backend": "flashinfer_cutedsl",
        "--moe-a2a-backend": "deepep",
        "--deepep-mode": "low_latency",
    }
    (needs,) = requirements(inventory.backends_named("flashinfer_cutedsl"), version)
    assert "silently run CUTLASS" in needs.note
    assert "deep_ep" in needs.python_modules
    assert "12.0" not in needs.compute_capability + needs.compute_capability_unproven


def test_cutedsl_on_consumer_blackwell_is_a_warning_and_on_hopper_refused(inventory: Inventory) -> None:
    (needs,) = requirements(inventory.backends_named("flashinfer_cutedsl"), "0.5.23")
    assert needs.compute_capability == ["10.0", "10.3"]
    assert "12.0" in needs.compute_capability_unproven
    assert "9.0" not in needs.compute_capability_unproven
    assert needs.quantization == ["modelopt_fp4", "modelopt_mixed", "nvfp4_online"]


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.9", {"--enable-piecewise-cuda-graph": ""}),
        ("0.5.10", {"--enforce-piecewise-cuda-graph": ""}),
        ("0.5.14", {"--cuda-graph-backend-prefill": "tc_piecewise"}),
        ("0.5.21", {"--cuda-graph-backend-prefill": "tc_piecewise"}),
        ("0.5.22", {"--cuda-graph-backend-prefill": "breakable"}),
    ],
)
def test_piecewise_cuda_graph_by_version(inventory: Inventory, version: str, flags: dict[str, str]) -> None:
    assert _flags(inventory, "piecewise_cuda_graph", version) == flags


@pytest.mark.parametrize(
    ("name", "version", "accepted"),
    [
        ("cutlass", "0.5.10.post1", True),
        ("cutlass", "0.5.14", False),
        ("cutlass", "0.5.15", True),
        ("cutlass", "0.5.16", False),
        ("triton", "0.5.23", False),
    ],
)
def test_where_nvfp4_is_accepted(inventory: Inventory, name: str, version: str, accepted: bool) -> None:
    (needs,) = requirements(inventory.backends_named(name), version)
    assert ("modelopt_fp4" in needs.quantization) is accepted


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.12"])
def test_marlin_before_it_knew_nvfp4(inventory: Inventory, version: str) -> None:
    with pytest.raises(RefusedError) as caught:
        compose_launch(inventory.service(), inventory.backends_named("marlin"), version, "L", {})
    assert caught.value.evidence == ["marlin can be had in SGLang >=0.5.13"]


def _seconds(limits: LoadLimits, phase: str) -> tuple[float, float]:
    total = limits.total(phase)
    assert total is not None
    return total.seconds, limits.stall(phase).seconds


def test_what_is_commented_out_is_valid_too(tmp_path: Path) -> None:
    """Every commented line of YAML (two spaces or none, a key and a value) is put in force, and only known conflicts remain."""
    service = (ROOT / "inventory" / "services" / "glm5-nvfp4.yml").read_text(encoding="utf-8")
    in_force = re.sub(r"^(\s*)# ((?:  )*(?:- )?[a-z_-]+:(?: .*)?)$", r"\1\2", service, flags=re.MULTILINE)
    assert in_force.count("\n  measure_seconds: 120.0") == 1
    shutil.copytree(ROOT / "inventory", tmp_path, dirs_exist_ok=True)
    (tmp_path / "services" / "glm5-nvfp4.yml").write_text(in_force, encoding="utf-8")
    loaded = load_inventory(tmp_path).service()
    assert set(loaded.secrets) == {"api-key", "admin-api-key"}
    assert loaded.user == "sglang"
    first, second = loaded.hooks.before
    assert (first.command[0], first.timeout, first.on_failure) == (
        f"{tmp_path}/hooks/drain-router",
        HookModel(command=["x"]).timeout,
        "refuse",
    )
    assert (second.command[0], second.on_failure, len(loaded.hooks.after)) == ("logger", "warn", 1)
    assert loaded.webhook is not None
    assert (loaded.webhook.url.target, loaded.webhook.when, loaded.webhook.sender) == (
        ("SLACK_WEBHOOK_URL",),
        ["failure", "success"],
        "auto",
    )
    of_loads: dict[str, Any] = {"load_total": None, "load_stall": None, "stage_total": None, "phases": {}}
    assert loaded.policy.model_copy(update=of_loads) == type(loaded.policy)(), "the comments show the defaults"
    written = dataclasses.replace(policy(loaded), load_stall=None)
    for phase in written.phases:
        for cold in ((), ("cold",)):
            shown, default = LoadLimits(written, cold), LoadLimits(wire.Policy(), cold)
            assert _seconds(shown, phase) == _seconds(default, phase), "the comments show the defaults"
    assert [(item.prompt, item.chat) for item in expectations(loaded)] == [
        ("The capital city of France is", False),
        ("What is 17 + 25? Answer with the number alone.", True),
    ]
    assert re.search(str(expectations(loaded)[1].matches), "It is 42.")


def test_what_is_commented_out_in_a_tuning_profile_is_valid_too(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "inventory", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tuning" / "blackwell-pcie.yml"
    in_force = re.sub(r"^(\s*)# ((?:  )*(?:- )?[a-z_]+:(?: .*)?)$", r"\1\2", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path.write_text(in_force, encoding="utf-8")
    profile = load_inventory(tmp_path).tuning("blackwell-pcie")
    assert (profile.expect.kernel, profile.expect.driver) == ("6.8.*-pve", "580.*")
    assert [(knob.name, knob.value, knob.persists) for knob in profile.knobs if knob.place == "container"] == [
        ("net.core.somaxconn", "4096", False)
    ]


def test_observe_reads_every_kind_and_sets_nothing(inventory: Inventory) -> None:
    profile = inventory.tuning("observe")
    assert {knob.knob for knob in profile.knobs} == set(KNOB_KINDS)
    assert all(knob.value is None for knob in profile.knobs)


def test_what_blackwell_pcie_sets_and_in_which_order(inventory: Inventory) -> None:
    profile = inventory.tuning_of(inventory.host("gpu1"))
    wanted = [(knob.name or knob.knob, knob.value) for knob in profile.knobs if knob.value is not None]
    assert wanted == [
        ("gpu_persistence_mode", "Enabled"),
        ("pcie_max_read_request", "4096"),
        ("cpu_governor", "performance"),
        ("cpu_energy_preference", "performance"),
        ("cpu_resume_latency", "99"),
        ("kernel.numa_balancing", "0"),
        ("vm.swappiness", "10"),
    ]
    order = [knob.knob for knob in profile.knobs]
    assert order.index("gpu_persistence_mode") < order.index("gpu_power_limit") < order.index("gpu_clocks") < order.index("sysctl")
    assert all(knob.why and knob.place == "host" for knob in profile.knobs)
    assert profile.settings("container") == []


def test_a_shipped_tuning_profile_expects_no_version_of_anybodys_machine(inventory: Inventory) -> None:
    assert all(profile.expect == Expect() for profile in inventory.tunings.values())
    assert {host.tuning for host in inventory.hosts.values()} == set(inventory.tunings)


def test_loading_is_quick() -> None:
    load_inventory(ROOT / "inventory")
    started = time.process_time()
    load_inventory(ROOT / "inventory")
    assert time.process_time() - started < 0.1


def test_a_changed_shipped_file_is_told(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "inventory", tmp_path, dirs_exist_ok=True)
    text = (ROOT / "inventory" / "hosts.yml").read_text(encoding="utf-8").replace("gpus: 8", "gpus: eight")
    (tmp_path / "hosts.yml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_inventory(tmp_path)
    line = text[: text.index("gpus: eight")].count("\n") + 1
    assert caught.value.evidence == [f"{tmp_path}/hosts.yml:{line}: hosts.gpu1.gpus: expected a whole number, got the text 'eight'"]
