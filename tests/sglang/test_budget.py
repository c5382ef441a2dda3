"""The parts of a decode step, timed with the PyTorch of the real SGLang on CPU, beside its server."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from orchestrator.agent import sglang
from orchestrator.agent.budget import budget
from orchestrator.agent.http import Client
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.service_python import ServicePython, program_source
from orchestrator.agent.wire_budget import BudgetReport, BudgetRequest, Format
from orchestrator.agent.wire_measure import FloorInputs
from orchestrator.results.gemm_shapes import all_reduce, gemms
from tests.rig.commands import wait_for
from tests.rig.local_sglang import LocalServer, local_sglang
from tests.rig.sglang import find_environment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    environment = find_environment()
    assert environment is not None, "the tier is skipped without one"
    with local_sglang(environment, tmp_path_factory.mktemp("sglang")) as started:
        yield started


def request(server: LocalServer, root: Path, ranks: int) -> BudgetRequest:
    environment = find_environment()
    assert environment is not None
    config = json.loads((server.model / "config.json").read_text(encoding="utf-8"))
    inputs = FloorInputs(config=config, tensor_parallel=ranks)
    sums = [item for item in [all_reduce(inputs, 1)] if item is not None]
    return BudgetRequest(
        "tiny", str(root), server.port, str(environment.python), {"PATH": os.environ["PATH"]}, None, gemms(inputs, 1), sums,
        list(range(ranks)), device="cpu",
    )  # fmt: skip


def ask(server: LocalServer, root: Path, ranks: int) -> BudgetReport:
    return budget(request(server, root, ranks), lambda kind, data: None)


def test_two_ranks_time_every_multiplication_and_the_sum(server: LocalServer, tmp_path: Path) -> None:
    found = ask(server, tmp_path, ranks=2)

    assert found.disturbed == []
    assert found.device_name == "CPU"
    plain = {item.gemm.name: item for item in found.gemms if item.format == Format.BF16}
    assert {"qkv_proj", "o_proj", "lm_head"} <= set(plain)
    assert all(item.seconds is not None and item.samples == 15 for item in plain.values())
    assert {item.problem for item in found.gemms if item.format == Format.NVFP4} == {"there is no FP4 on a CPU"}
    (summed,) = found.all_reduces
    assert summed.seconds is not None
    assert summed.seconds > 0


def test_one_rank_has_nothing_to_sum(server: LocalServer, tmp_path: Path) -> None:
    assert ask(server, tmp_path, ranks=1).all_reduces == []


def test_a_server_with_requests_is_left_alone(server: LocalServer, tmp_path: Path) -> None:
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}}
    stream = threading.Thread(target=lambda: httpx.post(f"{server.url}/generate", json=body, timeout=120.0, trust_env=False))
    stream.start()
    try:
        wait_for("a request that runs", lambda: bool(sglang.running_and_queued(Client(server.port))), 20.0, 0.05)
        with pytest.raises(AgentRefusal, match="requests run or wait"):
            ask(server, tmp_path, ranks=1)
    finally:
        httpx.post(f"{server.url}/abort_request", json={"rid": "", "abort_all": True}, timeout=20.0, trust_env=False)
        stream.join()


def test_a_rank_that_fails_ends_the_others_and_is_named(server: LocalServer, tmp_path: Path) -> None:
    environment = find_environment()
    assert environment is not None
    gemm = {"name": "x", "batch_size": 1, "rows": 1, "inputs": 64, "outputs": 64, "groups": 1, "count": 1, "format": "BF16", "bytes": 0}
    asked = {"gemms": [gemm], "all_reduces": [{"batch_size": 1, "bytes": 64, "count": 1}], "devices": [0, 1], "device": "cpu"}
    # The second rank never comes to the sum: what it is to multiply can't be read.
    program = program_source("orchestrator.agent.budget_program").replace(
        "    rank.wake()\n", "    rank.wake()\n    if number == 1:\n        raise RuntimeError('this GPU has fallen off its bus')\n"
    )
    begun = time.monotonic()

    done = ServicePython(str(environment.python), {"PATH": os.environ["PATH"]}).run(
        ["-c", program], 120.0, json.dumps({**asked, "memory": 1 << 28, "seconds": 120})
    )

    failed = [json.loads(line) for line in done.output.splitlines() if "failed" in line]
    assert [(line["rank"], line["failed"]) for line in failed] == [(1, "RuntimeError: this GPU has fallen off its bus")]
    assert time.monotonic() - begun < 60.0
