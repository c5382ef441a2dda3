"""The inventory in the repository is documentation that must stay valid and true."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from orchestrator.config import Inventory, compose_launch, load_inventory, requirements
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


def test_what_is_commented_out_is_valid_too(tmp_path: Path) -> None:
    """Every commented line of YAML (two spaces or none, a key and a value) is put in force, and only known conflicts remain."""
    service = (ROOT / "inventory" / "services" / "glm5-nvfp4.yml").read_text(encoding="utf-8")
    in_force = re.sub(r"^(\s*)# ((?:  )*[a-z_-]+:(?: .*)?)$", r"\1\2", service, flags=re.MULTILINE)
    assert in_force.count("\n  measure_seconds: 120.0") == 1
    for folder in ("services", "backends"):
        (tmp_path / folder).mkdir()
    for source in ("hosts.yml", *(f"backends/{path.name}" for path in (ROOT / "inventory" / "backends").iterdir())):
        (tmp_path / source).write_text((ROOT / "inventory" / source).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "services" / "glm5-nvfp4.yml").write_text(in_force, encoding="utf-8")
    loaded = load_inventory(tmp_path).service()
    assert set(loaded.secrets) == {"api-key", "admin-api-key"}
    assert loaded.user == "sglang"
    assert loaded.policy == type(loaded.policy)(), "the comments show the defaults"


def test_loading_is_quick() -> None:
    load_inventory(ROOT / "inventory")
    started = time.perf_counter()
    load_inventory(ROOT / "inventory")
    assert time.perf_counter() - started < 0.1


def test_a_changed_shipped_file_is_told(tmp_path: Path) -> None:
    for folder in ("services", "backends"):
        (tmp_path / folder).mkdir()
    text = (ROOT / "inventory" / "hosts.yml").read_text(encoding="utf-8").replace("gpus: 8", "gpus: eight")
    (tmp_path / "hosts.yml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_inventory(tmp_path)
    line = text[: text.index("gpus: eight")].count("\n") + 1
    assert caught.value.evidence == [f"{tmp_path}/hosts.yml:{line}: hosts.gpu1.gpus: expected a whole number, got the text 'eight'"]
