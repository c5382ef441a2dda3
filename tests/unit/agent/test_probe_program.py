"""What can be read of kernels in source that has the shapes of SGLang's, FlashInfer's and the CuTe DSL's; none of it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from orchestrator.agent import probe_program
from orchestrator.agent.probe_program import architecture, probe

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes files of source, by their path; a name that can't be a module elsewhere on this machine's path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe_program, "_files", {})

    def write_files(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))

    return write_files


def ask(module: str, name: str = "", *tells: str) -> dict[str, Any]:
    return probe({"module": module, "name": name, "tells": list(tells)})


def said(answer: dict[str, Any]) -> list[tuple[str, list[str], int]]:
    return [(limit["kind"], limit["values"], limit["line"]) for limit in answer["limits"]]


MARKED = """
    from .utils import supported_compute_capability

    class FastWrapper:
        @supported_compute_capability([100, 103])
        @api
        def __init__(self, experts: int, top_k: int = 8):
            raise RuntimeError("never run")

        def _forward(self, x, mma_tiler_mn: Tuple[int, int] = (128, 128), *, cluster_shape_mn=(1, 1)):
            ...
"""


def test_a_class_is_found_through_re_exports_and_nothing_is_imported(write: Write, tmp_path: Path) -> None:
    write(kernels__fused__cute__moe=MARKED)
    (tmp_path / "kernels/__init__.py").write_text("from .fused import FastWrapper as FastWrapper\nraise RuntimeError('imported')\n")
    (tmp_path / "kernels/fused/__init__.py").write_text(
        "try:\n    from .cute import FastWrapper\nexcept ImportError:\n    FastWrapper = None\n"
    )
    (tmp_path / "kernels/fused/cute/__init__.py").write_text("if available():\n    from .moe import *\n")
    answer = ask("kernels", "FastWrapper", "mma_tiler_mn", "cluster_shape_mn", "top_k", "absent")
    assert answer["found"] is True
    assert (answer["path"], answer["line"]) == (str(tmp_path / "kernels/fused/cute/moe.py"), 4)
    assert answer["values"] == {"mma_tiler_mn": "(128, 128)", "cluster_shape_mn": "(1, 1)", "top_k": "8"}
    assert said(answer) == [("marks", ["10.0", "10.3"], 5)]


def test_packages_without_an_init_and_modules_are_found(write: Write) -> None:
    write(space__inner__part="value = 1\n")
    assert ask("space.inner.part")["found"] is True
    assert ask("space.inner.part", "value")["found"] is True


@pytest.mark.parametrize(
    ("module", "name", "missing"),
    [
        ("no_such_package_here", "X", "no_such_package_here"),
        ("kernels.absent", "X", "kernels.absent"),
        ("kernels.absent.part", "X", "kernels.absent"),
        ("kernels.moe", "Absent", "kernels.moe:Absent"),
        ("kernels.moe", "FastWrapper.absent", "kernels.moe:FastWrapper.absent"),
    ],
)
def test_what_is_missing_is_named(write: Write, tmp_path: Path, module: str, name: str, missing: str) -> None:
    write(kernels__moe=MARKED)
    (tmp_path / "kernels/__init__.py").write_text("")
    answer = ask(module, name)
    assert (answer["found"], answer["missing"]) == (False, missing)


def test_a_method_is_found(write: Write) -> None:
    write(kernels_moe=MARKED)
    assert ask("kernels_moe", "FastWrapper._forward", "mma_tiler_mn")["values"] == {"mma_tiler_mn": "(128, 128)"}


def test_defaults_that_are_taken_out_of_keyword_arguments_and_constants_are_told(write: Write) -> None:
    write(
        kernels_gemm="""
            TILE = (256, 128)

            def gemm(a, b, **kwargs):
                shape = kwargs.pop("cluster_shape_mn", (2, 1))
        """
    )
    assert ask("kernels_gemm", "gemm", "cluster_shape_mn", "TILE")["values"] == {"cluster_shape_mn": "(2, 1)", "TILE": "(256, 128)"}


def test_assertions_behind_a_function_are_found_in_its_file(write: Write) -> None:
    write(
        kernels_gemm="""
            def gemm(a):
                major, minor = capability(a.device)
                if major == 11 and minor == 0:
                    raise ValueError("SM110 is not supported")
                return compiled(sm_version=f"sm_{major}{minor}")

            def compiled(sm_version):
                return Kernel(sm_version)

            class Kernel:
                def __init__(self, sm_version, size):
                    supported = ["sm_100", "sm_103a"]
                    assert sm_version in supported, f"only {supported}"
                    assert size in (1, 2)

            class Unrelated:
                def __init__(self, arch):
                    assert arch in ["sm_90"]
        """
    )
    assert said(ask("kernels_gemm", "gemm")) == [("blocks", ["11.0"], 4), ("requires", ["10.0", "10.3"], 14)]


def test_a_check_that_raises_is_found(write: Write) -> None:
    write(
        kernels_gemm="""
            SUPPORTED = (90, 100)

            def gemm(device_arch):
                if device_arch not in SUPPORTED:
                    raise ValueError
                if device_arch == 90:
                    return
        """
    )
    assert said(ask("kernels_gemm", "gemm")) == [("requires", ["9.0", "10.0"], 5)]


def test_backends_of_a_requirement_are_joined(write: Write) -> None:
    write(
        kernels_gemm="""
            @supported_compute_capability([100, 103])
            def _cudnn(a): ...

            @supported_compute_capability([120])
            def _b12x(a): ...

            def _anything(a): ...

            @backend_requirement({"cudnn": _cudnn, "b12x": _b12x}, common_check=_anything)
            def gemm(a): ...

            @backend_requirement({"cudnn": _cudnn, "other": _anything})
            def unmarked(a): ...

            @utils.backend_requirement({}, common_check=_b12x)
            def common(a): ...
        """
    )
    assert said(ask("kernels_gemm", "gemm")) == [("requires", ["10.0", "10.3", "12.0"], 10)]
    assert said(ask("kernels_gemm", "unmarked")) == []
    assert said(ask("kernels_gemm", "common")) == [("requires", ["12.0"], 16)]


def test_architectures_that_an_operation_admits(write: Write) -> None:
    write(
        cute_mma="""
            class Base:
                admissible_archs = [Arch.sm_100a, Arch.sm_103a]

            class Fp4Op(Base):
                ...

            class F16Op(Base):
                admissible_archs = Arch.filter(lambda arch: arch.is_family_of(Arch.sm_100f) or arch.is_family_of(Arch.sm_110f))
        """
    )
    assert said(ask("cute_mma", "Fp4Op")) == [("admits", ["10.0", "10.3"], 3)]
    assert said(ask("cute_mma", "F16Op")) == [("admits", ["10.x", "11.x"], 9)]


@pytest.mark.parametrize(
    "text",
    [
        "@supported_compute_capability(everything())\ndef gemm(): ...",
        "@supported_compute_capability([100, BEST])\ndef gemm(): ...",
        "def gemm(arch):\n    assert arch in known()",
        "def gemm(arch):\n    if arch in [90]:\n        raise ValueError",
        "def gemm(size):\n    assert size in [64, 128]",
    ],
)
def test_what_is_no_plain_list_of_architectures_says_nothing(write: Write, text: str) -> None:
    write(kernels_gemm=text)
    answer = ask("kernels_gemm", "gemm")
    assert (answer["found"], said(answer)) == (True, [])


def test_names_that_are_made_when_asked_for_can_not_be_told(write: Write) -> None:
    write(kernels_lazy="def __getattr__(name): ...")
    answer = ask("kernels_lazy", "Fast")
    assert answer["found"] is None
    assert "made when" in answer["missing"] or "when they are asked for" in answer["missing"]


@pytest.mark.parametrize("text", ["def broken(:", "\0"])
def test_source_that_can_not_be_read_is_unknown(write: Write, text: str) -> None:
    write(kernels_broken=text)
    assert ask("kernels_broken", "broken")["found"] is None


def test_re_exports_in_a_circle_end(write: Write) -> None:
    write(circle_a="from circle_b import Fast\n", circle_b="from circle_a import Fast\n")
    assert ask("circle_a", "Fast")["found"] is False


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (100, "10.0"),
        (121, "12.1"),
        (90, "9.0"),
        ("sm_103a", "10.3"),
        ("sm100f", "10.x"),
        ((12, 0), "12.0"),
        ("generic", None),
        (None, None),
        (1.5, None),
        (64000, None),
    ],
)
def test_architecture(value: Any, expected: str | None) -> None:
    assert architecture(value) == expected
