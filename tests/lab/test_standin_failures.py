"""Launches that fail, each with the exit code and the words of the real one."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.conftest import Standin, free_port

Start = Callable[..., Standin]

REFUSED = [
    (["--no-such-flag", "3"], 2, "sglang serve: error: unrecognized arguments: --no-such-flag 3"),
    (["--moe-runner-backend", "nonsense"], 2, "sglang serve: error: argument --moe-runner-backend: invalid choice: 'nonsense'"),
    (["--tp", "two"], 2, "invalid int value: 'two'"),
    (["--cuda-graph-max-bs", "8"], 2, "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode"),
    (["--model-path", "/models/does-not-exist"], 1, "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    (["--model-path", "nobody/nothing"], 1, "OSError: We couldn't connect to 'https://huggingface.co'"),
    (["--context-length", "1000000"], 1, "ValueError: Warning: User-specified context_length (1000000) is greater"),
    (["--moe-runner-backend", "flashinfer_cutedsl"], 1, "AssertionError: Invalid quantization 'None'."),
]


@pytest.mark.parametrize(("arguments", "code", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _, _ in REFUSED])
def test_refused_arguments(start: Start, arguments: list[str], code: int, words: str) -> None:
    server = start(*arguments, time_scale=0)
    assert server.exit_code() == code
    assert words in server.log


NVFP4 = ["--quantization", "modelopt_fp4", "--moe-runner-backend"]
LATE = [
    (
        "flashinfer_cutedsl",
        "12.0",
        "expects arch to be one of [Arch.sm_100a, Arch.sm_100f, Arch.sm_103a, Arch.sm_103f], but got Arch.sm_120a",
    ),
    ("triton", "12.0", "NotImplementedError: Unsupported moe_runner_backend for NVFP4 MoE: triton."),
    ("flashinfer_trtllm", "12.0", "Unsupported architecture"),
]


@pytest.mark.parametrize(("runner", "capability", "words"), LATE, ids=[f"{runner} on {capability}" for runner, capability, _ in LATE])
def test_a_backend_that_fails_after_the_load(start: Start, runner: str, capability: str, words: str) -> None:
    server = start(*NVFP4, runner, compute_capability=capability, gpu_memory_mib=97887)
    assert server.exit_code() == -9
    assert words in server.log
    assert (
        server.log.index("Load weight end.")
        < server.log.index("Scheduler hit an exception: Traceback")
        < server.log.index("Received sigquit")
    )
    server.wait_for(lambda: not server.members(), "children")


@pytest.mark.parametrize(("capability", "runner"), [("10.0", "flashinfer_trtllm"), ("12.0", "flashinfer_cutlass")])
def test_auto_becomes_what_the_gpu_can_do(start: Start, capability: str, runner: str) -> None:
    server = start(*NVFP4, "auto", compute_capability=capability, gpu_memory_mib=97887).wait_ready()
    assert server.ask("/server_info").json()["moe_runner_backend"] == runner
    assert f"Use {runner} as MoE runner backend on" in server.log


def test_out_of_memory_in_a_scheduler(start: Start) -> None:
    server = start(fail_at="kv_cache")
    assert server.exit_code() == -9
    assert "torch.OutOfMemoryError: CUDA out of memory." in server.log


def test_a_port_held_by_another_server_gives_a_false_ready_line_and_exit_3(start: Start) -> None:
    old = start().wait_ready()
    new = start(port=old.port)
    assert new.exit_code() == 3
    assert f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {old.port}): address already in use" in new.log
    assert new.log.index("[Errno 98]") < new.log.index("The server is fired up and ready to roll!")
    assert old.ask("/health").status == 200


def test_a_silent_listener_on_the_port_keeps_the_new_server_waiting(start: Start) -> None:
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(8)
        server = start(port=port)
        server.wait_for_log("Waiting for application shutdown.")
        time.sleep(0.5)
        assert server.process.poll() is None
        assert "sglang::scheduler" in server.titles()
        assert "fired up" not in server.log


def test_a_config_file_is_merged_and_the_command_line_wins(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('{"api-key": "from-file", "tp-size": 2, "max-total-tokens": 3000, "enable-metrics": true}', encoding="utf-8")
    server = start("--config", str(config), "--tp-size", "1").wait_ready()
    info = server.ask("/server_info", headers={"Authorization": "Bearer from-file"}).json()
    assert (info["tp_size"], info["max_total_num_tokens"], info["enable_metrics"]) == (1, 3000, True)
    assert "sglang::scheduler" in server.titles()


def test_a_leftover_on_the_gpu_shrinks_the_cache_and_nothing_says_so(start: Start) -> None:
    gpu = {"compute_capability": "10.0", "gpu_memory_mib": 183359}
    alone = start(*NVFP4, "marlin", **gpu).wait_ready().ask("/server_info").json()["max_total_num_tokens"]
    crowded = start(*NVFP4, "marlin", **gpu).wait_ready().ask("/server_info").json()["max_total_num_tokens"]
    assert crowded < alone / 10
