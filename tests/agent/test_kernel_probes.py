"""Probes in a real Python of a service: forks of a kernel library, imports that fail, hang or crash, and no GPU to be seen."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from orchestrator.agent import kernel_probes, wire
from orchestrator.agent.installation import find_sglang
from orchestrator.agent.kernel_probes import Probed
from orchestrator.agent.launch_rules import STANDALONE_CUTEDSL
from orchestrator.agent.preflight import preflight
from orchestrator.agent.service_python import ServicePython
from orchestrator.agent.wire import Probe
from orchestrator.config import choose, compose_launch, load_inventory, requirements, signs
from tests.agent.serving import free_port
from tests.rig.sglang import find_environment

FAST = Probe("fastkernels", "FastMoE", ["mma_tiler_mn", "cluster_shape_mn"], load=True)


def library(folder: Path, preamble: str = "", marked: str = "[100, 103]") -> ServicePython:
    """A service's Python that finds a small kernel library."""
    package = folder / "fastkernels"
    package.mkdir()
    (package / "__init__.py").write_text(f"{preamble}\nfrom .moe import FastMoE\n")
    (package / "moe.py").write_text(
        "def supported_compute_capability(values):\n    return lambda function: function\n\n\n"
        "class FastMoE:\n"
        f"    @supported_compute_capability({marked})\n"
        "    def run(self, mma_tiler_mn=(128, 128), cluster_shape_mn=(2, 1)): ...\n"
    )
    return ServicePython(sys.executable, {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"})


def ask(python: ServicePython, seconds: float = 30.0) -> Probed:
    [answer] = kernel_probes.ask(python, [FAST], seconds)
    return answer


def test_source_is_read_and_the_import_is_tried(tmp_path: Path) -> None:
    answer = ask(library(tmp_path))
    assert (answer.found, answer.unloadable) == (True, "")
    assert answer.values == {"mma_tiler_mn": "(128, 128)", "cluster_shape_mn": "(2, 1)"}
    assert kernel_probes.said(answer) == ["FastMoE is marked for 10.0, 10.3 (fastkernels/moe.py:6)"]


def test_an_import_sees_no_gpu(tmp_path: Path) -> None:
    python = library(tmp_path, "import os\nif os.environ['CUDA_VISIBLE_DEVICES'] != '': raise ImportError('sees a GPU')")
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    try:
        assert ask(python).unloadable == ""
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("preamble", "broken", "words"),
    [
        ("import no_such_dependency_here", True, "ModuleNotFoundError: No module named 'no_such_dependency_here'"),
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", False, "ImportError: libcuda.so.1"),
        ("raise RuntimeError('no CUDA device')", False, "RuntimeError: no CUDA device"),
        ("import sys; sys.exit('gone')", False, "SystemExit: gone"),
        ("import os; os.kill(os.getpid(), 11)", False, "ended with status -11"),
        ("import os; os._exit(0)", False, "ended with status 0"),
        ("print('x' * 100, flush=True)", False, ""),
    ],
)
def test_an_import_that_fails_leaves_what_was_read(tmp_path: Path, preamble: str, broken: bool, words: str) -> None:
    answer = ask(library(tmp_path, preamble))
    assert (answer.found, answer.broken) == (True, broken)
    assert words in answer.unloadable
    assert len(answer.limits) == 1


def test_a_name_that_its_package_leaves_out_may_be_there_with_a_gpu(tmp_path: Path) -> None:
    python = library(tmp_path)
    package = tmp_path / "fastkernels/__init__.py"
    package.write_text("try:\n    import absent_of_this_test\n    from .moe import FastMoE\nexcept ImportError:\n    pass\n")
    answer = ask(python)
    assert (answer.found, answer.broken) == (True, False)
    assert "has no attribute 'FastMoE'" in answer.unloadable


@pytest.mark.parametrize(("made", "found"), [("return 1", True), ("raise AttributeError(name)", None)])
def test_a_name_that_is_made_when_asked_for_shows_in_the_import(tmp_path: Path, made: str, found: bool | None) -> None:
    python = library(tmp_path)
    (tmp_path / "fastkernels/__init__.py").write_text(f"def __getattr__(name):\n    {made}\n")
    assert ask(python).found is found


@pytest.mark.slow
def test_an_import_that_hangs_is_ended_and_leaves_what_was_read(tmp_path: Path) -> None:
    began = time.monotonic()
    answer = ask(library(tmp_path, "import time; time.sleep(600)"), 2.0)
    assert time.monotonic() - began < 10
    assert (answer.found, answer.broken) == (True, False)
    assert "did not answer within 2 s" in answer.unloadable


def test_a_python_that_can_not_be_started_answers_unknown() -> None:
    answer = ask(ServicePython("/no/such/python"))
    assert answer.found is None
    assert "can't start /no/such/python" in answer.missing


def test_signs_are_told_where_they_can_be(tmp_path: Path) -> None:
    python = library(tmp_path)
    names = [
        "fastkernels.moe",
        "fastkernels.absent",
        "fastkernels:FastMoE",
        "fastkernels:Absent",
        "fastkernels.absent.part",
        "no_such_here.part",
    ]
    request = wire.SignsRequest(names, python.path, python.environment)
    found = kernel_probes.signs(request, lambda kind, data: None).found
    assert found == {"fastkernels.moe": True, "fastkernels.absent": False, "fastkernels:FastMoE": True, "fastkernels:Absent": False}


@pytest.mark.sglang
@pytest.mark.slow
def test_the_signs_of_a_real_sglang() -> None:
    environment = find_environment()
    if environment is None:
        pytest.skip("no SGLang environment: run `make sglang-cpu`")
    names = [
        STANDALONE_CUTEDSL,
        "sglang.srt.layers.quantization.modelopt_quant:ModelOptNvFp4FusedMoEMethod.apply",
        "sglang.srt.layers.moe.ep_moe.layer:DeepEPMoE.forward_flashinfer_cutedsl",
        "sglang.srt.server_args:prepare_server_args",
    ]
    began = time.monotonic()
    found = kernel_probes.signs(wire.SignsRequest(names, str(environment.python)), lambda kind, data: None).found
    assert time.monotonic() - began < 10
    assert found == {names[0]: True, names[1]: True, names[2]: False, names[3]: True}


@pytest.mark.sglang
@pytest.mark.slow
def test_the_shipped_profiles_against_a_real_sglang_without_their_kernels(tmp_path: Path) -> None:
    """The variant is told by source and version alike, the parser takes its arguments, and the kernels are missed by name."""
    environment = find_environment()
    if environment is None:
        pytest.skip("no SGLang environment: run `make sglang-cpu`")
    python = ServicePython(str(environment.python), {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"})
    inventory = load_inventory(Path(__file__).parents[2] / "inventory")
    profiles = inventory.backends_named("flashinfer_cutedsl")
    found = kernel_probes.signs(wire.SignsRequest(signs(profiles), python.path), lambda kind, data: None).found
    version = str(find_sglang(python).version)
    choice = choose(profiles[0], version, found)
    assert choice.certain
    assert f"by its version {version}, and its source has {STANDALONE_CUTEDSL}" in choice.rests
    # A checkout of the same that says nothing of its version is taken for the same.
    assert choose(profiles[0], "0.0.0.dev0", found).variant == choice.variant
    service = inventory.services["glm5-nvfp4"]
    composed = compose_launch(service, profiles, version, "new", {}, found)
    launch = dataclasses.replace(composed, python=python.path, environment=python.environment, port=free_port())
    request = wire.PreflightRequest(launch, str(tmp_path / "state"), requirements(profiles, version, found))
    report = preflight(request, lambda kind, data: None)
    outcomes = {verdict.check: verdict.outcome for verdict in report.verdicts}
    assert (outcomes["arguments"], outcomes["quantization"]) == ("pass", "pass")
    assert (outcomes["python_modules"], outcomes["kernel"]) == ("refuse", "refuse")
    assert "kernel_choice" not in outcomes
