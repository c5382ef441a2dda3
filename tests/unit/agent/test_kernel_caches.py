"""Whether the caches of compiled kernels are cold, on trees of files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.kernel_caches import why_cold

INSTALLED = 1_000_000.0
LATER, EARLIER = INSTALLED + 60, INSTALLED - 60


@dataclass
class Place:
    """A user's home and a virtual environment, in which FlashInfer, Triton, torch and SGLang were installed at one moment."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    def install(self, *names: str, moment: float = INSTALLED) -> None:
        for name in names:
            folder = self.root / f"venv/lib/python3.11/site-packages/{name}-1.2.3.dist-info"
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder, (moment, moment))

    def compiled(self, path: str, moment: float = LATER) -> None:
        kernel = self.root / path / "kernel.so"
        kernel.parent.mkdir(parents=True, exist_ok=True)
        kernel.touch()
        os.utime(kernel, (moment, moment))

    def why(self, *arguments: str, **environment: str) -> list[str]:
        launch = wire.Launch(
            "l", "s", "b", str(self.root / "venv/bin/python"), list(arguments), "127.0.0.1", 30000, environment=dict(environment)
        )
        return [reason.replace(str(self.root), "") for reason in why_cold(launch, str(self.home), "sglang")]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").touch(mode=0o755)
    (tmp_path / "venv/pyvenv.cfg").touch()
    made.install("flashinfer_python", "triton", "torch", "sglang")
    return made


def test_caches_that_are_newer_than_the_packages_are_warm(place: Place) -> None:
    place.compiled("home/.cache/flashinfer/0.6.1/90a/cached_ops/sampling")
    place.compiled("home/.triton/cache/ABC")

    assert place.why() == []


def test_a_missing_cache_is_cold(place: Place) -> None:
    place.compiled("home/.triton/cache/ABC")

    assert place.why() == ["FlashInfer: /home/.cache/flashinfer is missing or empty"]


def test_a_cache_from_before_an_upgrade_is_cold(place: Place) -> None:
    place.compiled("home/.cache/flashinfer/0.6.1/90a/cached_ops/sampling", EARLIER)
    place.compiled("home/.triton/cache/ABC", LATER)

    assert place.why() == ["FlashInfer: nothing in /home/.cache/flashinfer is newer than the installed packages"]


def test_another_sglang_makes_every_cache_cold(place: Place) -> None:
    place.compiled("home/.cache/flashinfer/0.6.1/90a/cached_ops/sampling")
    place.compiled("home/.triton/cache/ABC")
    place.install("sglang", moment=LATER + 60)

    assert len(place.why()) == 2


def test_the_launchs_environment_says_where_the_caches_are(place: Place) -> None:
    place.compiled("fi/.cache/flashinfer/0.6.1/90a/cached_ops/sampling")
    place.compiled("tr/ABC")

    assert place.why(FLASHINFER_WORKSPACE_BASE=str(place.root / "fi"), TRITON_CACHE_DIR=str(place.root / "tr")) == []
    assert place.why(HOME=str(place.root / "fi"), TRITON_CACHE_DIR=str(place.root / "tr")) == []


def test_caches_that_only_some_launches_use_count_for_those(place: Place) -> None:
    place.compiled("home/.cache/flashinfer/0.6.1/90a/cached_ops/sampling")
    place.compiled("home/.triton/cache/ABC")
    place.install("sgl_kernel")

    assert place.why("--moe-runner-backend", "deep_gemm") == ["DeepGEMM: /home/.cache/sglang/deep_gemm is missing or empty"]
    assert place.why("--enable-torch-compile", TORCHINDUCTOR_CACHE_DIR=str(place.root / "no")) == [
        "torch inductor: /no is missing or empty"
    ]
    place.compiled("home/.deep_gemm/x")
    assert place.why("--moe-runner-backend", "deep_gemm") == []


def test_packages_that_are_not_there_have_no_cache(place: Place) -> None:
    for folder in (place.root / "venv/lib/python3.11/site-packages").iterdir():
        folder.rmdir()

    assert place.why() == []
