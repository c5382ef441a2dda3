#!/usr/bin/env python3
"""Install a real SGLang server that runs without a GPU into a virtual environment: ``install.py VENV``.

Needs Python 3.11 on x86_64; 1.6 GB on disk. Not a line of SGLang is changed; what a CPU server imports but never calls is stood in for
by the packages in ``standins``. A stamp holds the hash of this recipe, so a second call does nothing until the recipe changes.
Standard library only: this runs before there is any environment.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = "recipe.sha256"
TORCH = "2.13.0"
WITHOUT_DEPENDENCIES = ("sglang==0.5.23", "xgrammar==0.2.7")
"""Their own lists would pull CUDA builds and triton."""

CHECK = """
import torch
assert torch.version.cuda is None, "pip found a CUDA build of torch; name an index with the CPU build in PIP_EXTRA_INDEX_URL"
from sglang.srt.server_args import prepare_server_args
prepare_server_args(["--model-path", "x", "--device", "cpu", "--port", "31001"])
"""


def recipe_hash() -> str:
    """The hash of everything that decides what gets installed."""
    digest = hashlib.sha256()
    for path in sorted(path for path in HERE.rglob("*") if path.suffix in {".py", ".txt"}):
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(venv: Path) -> bool:
    """Whether `venv` was made by this very recipe."""
    try:
        return (venv / STAMP).read_text(encoding="utf-8").strip() == recipe_hash()
    except OSError:
        return False


def install(venv: Path) -> None:
    """Make `venv`, or bring an existing one up to date, check that the server's argument parser runs, and stamp it."""
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _install_torch(pip)
    subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    subprocess.run([*pip, f"torch=={TORCH}", "--requirement", str(HERE / "requirements.txt")], check=True)
    _copy_standins(python)
    subprocess.run([str(python), "-c", CHECK], check=True, stdout=subprocess.DEVNULL, env={"SGLANG_USE_CPU_ENGINE": "1"})
    (venv / STAMP).write_text(recipe_hash() + "\n", encoding="utf-8")


def _install_torch(pip: list[str]) -> None:
    """Ask for the CPU build by its local version first: the plain version may be a CUDA build of gigabytes."""
    if subprocess.run([*pip, f"torch=={TORCH}+cpu"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        subprocess.run([*pip, f"torch=={TORCH}"], check=True)


def _copy_standins(python: Path) -> None:
    found = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
    )
    shutil.copytree(HERE / "standins", found.stdout.strip(), dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def main() -> int:
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} VENV", file=sys.stderr)
        return 2
    venv = Path(sys.argv[1]).absolute()
    if is_current(venv):
        print(f"{venv}: up to date")
        return 0
    if sys.version_info[:2] != (3, 11):
        print(f"the SGLang environment needs Python 3.11, this is {sys.version.split()[0]}; set SGLANG_PYTHON", file=sys.stderr)
        return 1
    print(f"installing SGLang for CPU into {venv} (1.6 GB, one to three minutes)", flush=True)
    install(venv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
