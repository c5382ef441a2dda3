"""Survey and preflight against ordinary processes: a small SGLang, a stranger on its port, nobody."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import http, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import Journal, ServiceLock
from orchestrator.agent.preflight import preflight
from orchestrator.agent.private_files import write_private
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.survey import survey
from tests.agent.serving import BY_HAND, SMALL, Service, free_port

pytestmark = pytest.mark.slow  # a program or a parser is started for most of these


@pytest.fixture
def service(tmp_path: Path) -> Service:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return Service(tmp_path / "state", free_port(), model)


def check(service: Service, launch: wire.Launch, *requirements: wire.Requirements) -> wire.PreflightReport:
    return preflight(wire.PreflightRequest(launch, str(service.root), list(requirements)), lambda kind, data: None)


def look(service: Service) -> wire.SurveyReport:
    request = wire.SurveyRequest("small", str(service.root), sys.executable, service.port, {"PYTHONPATH": str(SMALL)})
    return survey(request, lambda kind, data: None)


def outcome(report: Any, check_name: str) -> str | None:
    """The outcome of one check; None when there is no such verdict."""
    return next((verdict.outcome for verdict in report.verdicts if verdict.check == check_name), None)


def detail(report: Any, check_name: str) -> str:
    """Everything that one verdict says."""
    return next(" ".join([v.detail, *v.evidence, v.next_step or ""]) for v in report.verdicts if v.check == check_name)


def test_a_candidate_with_only_another_backend_passes(service: Service) -> None:
    candidate = service.launch("--moe-runner-backend", "triton", backend_flags=("--moe-runner-backend",))
    events: list[tuple[str, Any]] = []
    with service.serving() as pid:
        report = preflight(wire.PreflightRequest(candidate, str(service.root)), lambda kind, data: events.append((kind, data)))
    assert [verdict for verdict in report.verdicts if verdict.outcome == "refuse"] == []
    assert report.server is not None
    assert report.server.main.pid == pid
    assert report.sglang_version == "0.5.6"
    assert report.load == 3
    origins = {(item.name, item.origin) for item in report.differences}
    assert ("--moe-runner-backend", "backend") in origins
    assert [item for item in report.differences if item.origin == "drift"] == []
    assert {origin for _, origin in origins} == {"backend", "ours"}
    assert {kind for kind, _ in events} == {"progress"}


def switch(service: Service, launch: wire.Launch, **policy: Any) -> wire.StagingPlan | None:
    return preflight(wire.PreflightRequest(launch, str(service.root), policy=wire.Policy(**policy)), lambda kind, data: None).staging


def with_a_gate(service: Service, folder: Path) -> wire.Launch:
    """A candidate whose SGLang has a gate, which the small one has not."""
    shutil.copytree(SMALL, folder)
    (folder / "sglang/srt/distributed").mkdir(parents=True, exist_ok=True)
    for package in ("sglang", "sglang/srt", "sglang/srt/distributed"):
        (folder / package / "__init__.py").touch()
    (folder / "sglang/srt/distributed/gated_launch.py").write_text(
        "def maybe_wait_for_gated_launch(*, host, port): ...\n", encoding="utf-8"
    )
    return service.launch("--device", "cpu", environment={"PYTHONPATH": str(folder)})


def test_the_switch_is_planned_beside_a_server_that_serves(service: Service, tmp_path: Path) -> None:
    gated = with_a_gate(service, tmp_path / "gated")
    assert switch(service, gated) is None
    with service.serving():
        assert preflight(wire.PreflightRequest(gated, str(service.root)), lambda kind, data: None).staging is None
        staged, without, never = switch(service, gated), switch(service, service.launch()), switch(service, gated, staging="never")
    assert staged is not None
    assert without is not None
    assert never is not None
    assert (without.staged, "has no gate" in without.reason) == (False, True)
    assert (never.staged, never.reason) == (False, "the service says `staging: never`")
    assert outcome(staged, "kernel_caches") == "warn"
    assert "whether the weights are in the page cache can't be told: no weights are known in" in detail(staged, "checkpoint_files")
    # Whether there is room is this machine's to say.
    assert staged.staged == all(verdict.outcome == "pass" for verdict in staged.verdicts if verdict.check in {"gate", "staging"})
    assert "memory are" in detail(staged, "staging")
    assert all(verdict.source for verdict in staged.verdicts)


def test_what_somebody_changed_is_drift(service: Service) -> None:
    with service.serving("--tp-size", "2", environment={"NCCL_DEBUG": "INFO"}):
        report = check(service, service.launch(environment={"SGLANG_X": "1"}))
    drift = {(item.kind, item.name, item.old, item.new) for item in report.differences if item.origin == "drift"}
    assert drift == {
        ("argument", "--tp-size", "2", "1"),
        ("environment", "NCCL_DEBUG", "INFO", None),
        ("environment", "SGLANG_X", None, "1"),
    }


def test_a_key_on_the_command_line_never_leaves(service: Service) -> None:
    candidate = dataclasses.replace(service.launch(), secrets={"api-key": "new-key-value"})
    with service.serving("--api-key", "old-key-value", environment={"HF_TOKEN": "hub-token-value"}):
        report = check(service, candidate)
        found = look(service)
    text = json.dumps([wire.to_json(report), wire.to_json(found)])
    assert not [value for value in ("old-key-value", "new-key-value", "hub-token-value") if value in text]
    assert ("--api-key", "<secret>", "<another secret>") in {(item.name, item.old, item.new) for item in report.differences}


def test_the_same_key_by_flag_and_by_file_is_no_difference(service: Service) -> None:
    candidate = dataclasses.replace(service.launch(), secrets={"api-key": "the-key"})
    with service.serving("--api-key", "the-key"):
        report = check(service, candidate)
    assert [item.name for item in report.differences if "api" in item.name] == []


def test_every_obstacle_is_told_at_once(service: Service, tmp_path: Path) -> None:
    launch = service.launch("--no-such-flag")
    launch = dataclasses.replace(launch, user="no-such-user-here", arguments=["--model-path", str(tmp_path / "absent"), "--no-such-flag"])
    report = check(service, launch)
    refused = {verdict.check for verdict in report.verdicts if verdict.outcome == "refuse"}
    assert {"user", "model"} <= refused
    assert all(verdict.next_step for verdict in report.verdicts if verdict.outcome == "refuse")


def test_the_parsers_refusal_is_shown_and_arguments_are_compared_as_text(service: Service) -> None:
    with service.serving("--enable-metrics"):
        report = check(service, service.launch("--moe-runner-backend", "nonsense"))
    assert outcome(report, "arguments") == "refuse"
    assert "argument --moe-runner-backend: invalid choice: 'nonsense'" in detail(report, "arguments")
    assert ("--enable-metrics", "true", None) in {(item.name, item.old, item.new) for item in report.differences}


def test_a_parser_that_can_not_be_had_is_unknown_not_refused(service: Service) -> None:
    report = check(service, service.launch(environment={"SMALL_SGLANG_BROKEN": "1"}))
    assert outcome(report, "arguments") == "unknown"
    assert "no_such_module_of_this_test" in detail(report, "arguments")
    assert outcome(report, "model") == "pass"


def test_arguments_that_the_installed_version_refuses_leave_no_way_back(service: Service) -> None:
    with service.serving("--flag-of-an-older-version"):
        report = check(service, service.launch())
    assert outcome(report, "arguments") == "pass"
    assert outcome(report, "rollback") == "refuse"


def test_another_version_running_is_told(service: Service) -> None:
    with service.serving(environment={"SMALL_SGLANG_VERSION": "0.5.5"}):
        report = check(service, service.launch())
    assert outcome(report, "rollback") == "warn"
    assert "0.5.5" in detail(report, "rollback")


def test_a_script_that_may_start_the_server_again_is_warned_of(service: Service, tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "sglang.launch_server", "--model", str(service.model), "--port", str(service.port)])
    script = tmp_path / "loop.sh"
    script.write_text(f"while true; do {command}; done\n")
    loop = subprocess.Popen(["sh", str(script)], env=BY_HAND, cwd="/", start_new_session=True)
    try:
        assert wait_until(lambda: http.listens("127.0.0.1", service.port), Deadline(20))
        report = check(service, service.launch())
    finally:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait()
    assert outcome(report, "respawn") == "warn"
    assert str(loop.pid) in detail(report, "respawn")


def test_a_stranger_on_the_port_is_named(service: Service) -> None:
    with socket.create_server(("127.0.0.1", service.port)):
        report = check(service, service.launch())
        found = look(service)
    assert outcome(report, "manager") == "refuse"
    assert outcome(report, "port") == "refuse"
    assert str(os.getpid()) in detail(report, "port")
    assert report.differences == []
    assert found.health == "silent"
    assert found.server is not None
    assert [found.server.python, *found.server.entry, *found.server.arguments] == Path("/proc/self/cmdline").read_text().rstrip("\0").split(
        "\0"
    )


def test_requirements_are_checked_against_the_parsed_arguments(service: Service) -> None:
    needed = wire.Requirements(quantization=["modelopt_fp4"], python_modules=["json", "no_such_module"])
    report = check(service, service.launch(), needed)
    assert (outcome(report, "quantization"), outcome(report, "python_modules")) == ("refuse", "refuse")
    report = check(service, service.launch("--quantization", "modelopt_fp4"), wire.Requirements(quantization=["modelopt_fp4"]))
    assert outcome(report, "quantization") == "pass"


FAST = wire.Probe("fastkernels", "FastMoE", ["mma_tiler_mn"], load=True)


def kernels(folder: Path, text: str) -> dict[str, str]:
    """The environment of a service whose Python finds a kernel library of this text."""
    (folder / "fastkernels.py").write_text(text)
    return {"PYTHONPATH": f"{SMALL}:{folder}"}


def test_the_source_of_the_kernels_is_read(service: Service, tmp_path: Path) -> None:
    environment = kernels(tmp_path, "class FastMoE:\n    def run(self, mma_tiler_mn=(256, 128)): ...\n")
    report = check(service, service.launch(environment=environment), wire.Requirements(probes=[FAST]))
    assert outcome(report, "kernel") == "pass"
    assert "mma_tiler_mn is (256, 128) by default" in detail(report, "kernel")


def test_kernels_that_are_not_installed_are_refused(service: Service, tmp_path: Path) -> None:
    environment = kernels(tmp_path, "from absent_dependency_of_this_test import FastMoE\n")
    report = check(service, service.launch(environment=environment), wire.Requirements(probes=[FAST]))
    assert outcome(report, "kernel") == "refuse"
    assert "no fastkernels:FastMoE in" in detail(report, "kernel")


def test_a_profile_that_would_silently_be_another_kernel_is_refused(service: Service) -> None:
    arguments = ("--moe-runner-backend", "flashinfer_cutedsl", "--quantization", "modelopt_fp4")
    report = check(service, service.launch(*arguments))
    assert outcome(report, "kernel_choice") == "refuse"
    assert "silently run CUTLASS kernels under the name flashinfer_cutedsl" in detail(report, "kernel_choice")


def test_an_nvfp4_checkpoint_is_read_although_no_argument_says_so(service: Service) -> None:
    (service.model / "config.json").write_text(json.dumps({"quantization_config": {"quant_algo": "NVFP4"}}))
    report = check(service, service.launch("--moe-runner-backend", "triton"))
    assert outcome(report, "kernel_choice") == "refuse"
    assert "the checkpoint is NVFP4" in detail(report, "kernel_choice")


def gpu_tool(folder: Path, gpus: str, apps: str = "") -> Path:
    """An nvidia-smi that lists these GPUs and these holders of their memory."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\ncase \"$1\" in --query-gpu*) printf '{gpus}' ;; *) printf '{apps}' ;; esac\n")
    tool.chmod(0o755)
    return tool.parent


def test_weights_that_can_not_fit_and_a_foreign_holder_are_told(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (service.model / "model.safetensors").open("wb") as stream:
        stream.truncate(200 << 30)
    row = "0, GPU-a, RTX PRO 6000, 12.0, 20000, 97887\\n"
    folder = gpu_tool(tmp_path, row, "GPU-a, 4194303, 19000\\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    report = check(service, service.launch())
    assert outcome(report, "gpu_memory") == "refuse"
    assert "the weights can't fit: at least 200.0 GiB for each of 1 GPU(s)" in detail(report, "gpu_memory")
    assert "process 4194303 of another PID namespace" in detail(report, "gpu_memory")


def test_several_nodes_are_refused(service: Service) -> None:
    assert outcome(check(service, service.launch("--nnodes", "2")), "multi_node") == "refuse"


def test_the_part_of_a_service_over_several_nodes_is_no_reason_to_refuse(service: Service) -> None:
    report = check(service, service.launch("--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:20000"))
    assert "multi_node" not in [verdict.check for verdict in report.verdicts]


def test_a_missing_interpreter_is_refused(service: Service) -> None:
    report = check(service, dataclasses.replace(service.launch(), python="/no/such/python"))
    assert outcome(report, "python") == "refuse"
    assert outcome(report, "arguments") == "unknown"


def test_a_python_without_sglang_is_refused(service: Service) -> None:
    report = check(service, service.launch(environment={"PYTHONPATH": ""}))
    assert outcome(report, "sglang") == "refuse"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/model", "pass"),
        ("s3://bucket/model", "pass"),
        ("/no/such/model", "refuse"),
        ("./no-such-model", "refuse"),
        ("{empty}", "warn"),
    ],
)
def test_where_the_model_is(service: Service, tmp_path: Path, model: str, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    launch = dataclasses.replace(service.launch(), arguments=["--model-path", model.format(empty=tmp_path / "empty")])
    assert outcome(check(service, launch), "model") == expected


def test_a_held_lock_ends_the_preflight(service: Service) -> None:
    folder = StateFolder(str(service.root), "small")
    folder.create()
    lock = ServiceLock(folder)
    assert lock.take("20260101-1")
    with pytest.raises(AgentRefusal, match="20260101-1") as refused:
        check(service, service.launch())
    assert refused.value.failure.category == "locked"
    lock.release()


def test_an_interrupted_order_is_told(service: Service) -> None:
    folder = StateFolder(str(service.root), "small")
    folder.create()
    path = folder.order_folder("20260101-1")
    path.mkdir()
    order = wire.Order("20260101-1", "relaunch", "small", str(service.root), service.port, wire.Policy(), "ada")
    write_private(path / "order.json", json.dumps(wire.to_json(order)))
    with Journal(path) as journal:
        journal.state("STOPPING", "x")
    assert outcome(check(service, service.launch()), "order") == "warn"
    status = look(service).order
    assert status is not None
    assert (status.state, status.live) == ("INTERRUPTED(STOPPING)", False)


def test_preflight_leaves_nothing_behind(service: Service) -> None:
    check(service, service.launch())
    look(service)
    assert not service.root.exists()


def test_survey_of_a_serving_server_and_of_another_one(service: Service) -> None:
    other_port = free_port()
    with service.serving() as pid, service.serving(port=other_port) as other:
        report = look(service)
    assert report.server is not None
    assert (report.server.main.pid, report.server.listening, report.server.launch_id) == (pid, True, None)
    assert report.health == "serving"
    assert report.sglang_version == "0.5.6"
    assert other in {item.main.pid for item in report.others}
    assert pid not in {item.main.pid for item in report.others}
    assert abs(report.server.started - Path("/proc/self").stat().st_mtime) < 3600
    assert {"hostname", "kernel", "container", "systemd", "user", "python", "sglang"} <= {fact.name for fact in report.facts}


def test_survey_of_nothing(service: Service) -> None:
    report = look(service)
    assert (report.server, report.health, report.order) == (None, "down", None)


def test_survey_reads_the_launch_id_from_the_marker(service: Service) -> None:
    folder = StateFolder(str(service.root), "small")
    folder.create()
    folder.write_launch(dataclasses.replace(service.launch(), launch_id="L1", backend="cutlass"))
    with service.serving(environment={"ORCHESTRATOR_LAUNCH": "L1"}):
        report = look(service)
    assert report.server is not None
    assert (report.server.launch_id, report.server.backend) == ("L1", "cutlass")


def test_a_host_without_the_gpus_that_it_should_have_is_refused_with_what_nvidia_smi_says(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver"\nexit 9\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    report = preflight(wire.PreflightRequest(service.launch(), str(service.root), expected_gpus=8), lambda kind, data: None)
    request = wire.SurveyRequest("small", str(service.root), sys.executable, service.port, {"PYTHONPATH": str(SMALL)}, expected_gpus=8)
    for told in (report, survey(request, lambda kind, data: None)):
        assert outcome(told, "expected_gpus") == "refuse"
        assert "status 9 NVIDIA-SMI has failed because it couldn't communicate" in detail(told, "expected_gpus")
    assert "status 9" in detail(report, "cuda")


def test_what_a_login_left_in_the_servers_environment_is_no_drift(service: Service) -> None:
    with service.serving(environment={"EDITOR_THEME": "dark", "PIP_CERT": "/x.pem", "https_proxy": "http://127.0.0.1:1"}):
        report = check(service, service.launch())
    origins = {item.name: item.origin for item in report.differences}
    assert (origins["EDITOR_THEME"], origins["PIP_CERT"], origins["https_proxy"]) == ("inherited", "inherited", "drift")
