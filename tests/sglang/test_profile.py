"""Tracing decode steps of the real SGLang on CPU: its own files come, the table is made of them, and nothing of them stays."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.profile import profile
from orchestrator.agent.wire_budget import FilePiece, ProfileReport, ProfileRequest
from orchestrator.flows.profile import analysed
from orchestrator.results import kernel_classes
from tests.rig.local_sglang import LocalServer, local_sglang
from tests.rig.sglang import find_environment

KEY = "canary-7Qx"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    environment = find_environment()
    assert environment is not None, "the tier is skipped without one"
    with local_sglang(environment, tmp_path_factory.mktemp("sglang"), "--api-key", KEY) as started:
        yield started


def ask(server: LocalServer, folder: Path, **more: Any) -> ProfileReport:
    def emit(kind: str, data: Any) -> None:
        if isinstance(data, FilePiece):
            with (folder / data.name).open("ab") as stream:
                stream.write(base64.b64decode(data.data))

    return profile(ProfileRequest("tiny", str(folder), server.port, input_tokens=32, **more), emit)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_few_decode_steps_are_traced_and_told_by_class(server: LocalServer, tmp_path: Path, batch_size: int) -> None:
    before = set(Path("/tmp").glob("orchestrator-profile-*"))

    found = analysed(ask(server, tmp_path, batch_size=batch_size, steps=6), tmp_path)

    assert found.doubts == []
    (rank,) = found.ranks
    assert (len(rank.steps), rank.on_gpu) == (5, False)
    assert {kernel_classes.GEMM, kernel_classes.ATTENTION, kernel_classes.SAMPLING} <= set(rank.classes)
    assert set(Path("/tmp").glob("orchestrator-profile-*")) == before
    assert KEY not in "".join(path.name for path in tmp_path.iterdir())


def test_it_can_be_traced_again_at_once(server: LocalServer, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert len(ask(server, folder, steps=4).files) == 1
