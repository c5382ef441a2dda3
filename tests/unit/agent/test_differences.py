"""What counts as a difference, and whose it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.arguments import ParsedCommand, read_textually
from orchestrator.agent.differences import (
    OTHER_SECRET,
    SECRET,
    ProfileNames,
    Side,
    counts,
    differences,
    interpreter_identity,
    profile_names,
)

Row = tuple[str, str, str | None, str | None, str]


def parsed(values: dict[str, Any], **used: str) -> ParsedCommand:
    return ParsedCommand(True, values, {"--" + option.replace("_", "-"): name for option, name in used.items()})


def rows(old: Side, new: Side, profile: ProfileNames = ProfileNames(), folder: str = "") -> list[Row]:  # noqa: B008 - frozen
    found = differences(old, new, profile, folder)
    return [(item.kind, item.name, item.old, item.new, item.origin) for item in found]


def arguments(old: dict[str, Any], new: dict[str, Any], profile: ProfileNames = ProfileNames(), folder: str = "") -> list[Row]:  # noqa: B008
    return rows(Side(parsed(old), {}), Side(parsed(new), {}), profile, folder)


def environment(old: dict[str, str], new: dict[str, str], profile: ProfileNames = ProfileNames()) -> list[Row]:  # noqa: B008
    return rows(Side(parsed({}), old), Side(parsed({}), new), profile)


def test_equal_values_are_no_difference_however_they_were_given() -> None:
    old = Side(parsed({"tp_size": 2, "moe_runner_backend": "auto"}, tp="tp_size"), {})
    new = Side(parsed({"tp_size": 2, "moe_runner_backend": "auto"}, tensor_parallel_size="tp_size"), {})
    assert rows(old, new) == []


def test_the_profile_comes_first_and_everything_else_is_drift() -> None:
    profile = ProfileNames(frozenset({"moe_runner_backend"}))
    found = arguments(
        {"chunked_prefill_size": 8, "moe_runner_backend": "auto"}, {"chunked_prefill_size": None, "moe_runner_backend": "x"}, profile
    )
    assert found == [
        ("argument", "--moe-runner-backend", "auto", "x", "backend"),
        ("argument", "--chunked-prefill-size", "8", None, "drift"),
    ]


def test_a_difference_is_named_by_the_option_that_was_written() -> None:
    new = Side(parsed({"fp4_gemm_runner_backend": "cutlass"}, fp4_gemm_backend="fp4_gemm_runner_backend"), {})
    found = rows(Side(parsed({"fp4_gemm_runner_backend": "auto"}), {}), new)
    assert found == [("argument", "--fp4-gemm-backend", "auto", "cutlass", "drift")]


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [("a-key", "b-key", (SECRET, OTHER_SECRET)), (None, "b-key", (None, SECRET)), ("a-key", None, (SECRET, None))],
)
def test_a_secret_that_differs_is_reported_and_never_shown(old: str | None, new: str | None, shown: tuple[str | None, str | None]) -> None:
    assert arguments({"api_key": old}, {"api_key": new}) == [("argument", "--api-key", *shown, "drift")]
    before, after = ({} if value is None else {"HF_TOKEN": value} for value in (old, new))
    assert environment(before, after) == [("environment", "HF_TOKEN", *shown, "drift")]


def test_only_a_config_file_in_the_state_folder_is_ours() -> None:
    folder = "/var/lib/orchestrator/glm"
    assert arguments({"config": folder + "/launches/1/config.yaml"}, {"config": None}, folder=folder)[0][4] == "ours"
    assert arguments({"config": "/etc/glm.yaml"}, {"config": None}, folder=folder)[0][4] == "drift"


def test_what_this_program_adds_is_ours() -> None:
    old = {"ORCHESTRATOR_LAUNCH": "1", "no_proxy": "internal"}
    new = {
        "ORCHESTRATOR_LAUNCH": "2",
        "SPT_NOENV": "1",
        "no_proxy": "internal,127.0.0.1,localhost,0.0.0.0,10.0.0.5",
        "NO_PROXY": "127.0.0.1",
    }
    found = rows(Side(parsed({}), old), Side(parsed({"host": "10.0.0.5"}), new), ProfileNames())
    by_name = {name: origin for kind, name, _, _, origin in found if kind == "environment"}
    assert by_name == {"ORCHESTRATOR_LAUNCH": "ours", "SPT_NOENV": "ours", "no_proxy": "ours", "NO_PROXY": "ours"}


def test_a_lost_proxy_exception_is_drift() -> None:
    assert environment({"no_proxy": "internal,127.0.0.1"}, {"no_proxy": "127.0.0.1"})[0][4] == "drift"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("PATH", False),
        ("SSH_CONNECTION", False),
        ("LC_ALL", False),
        ("INVOCATION_ID", False),
        ("TMUX", False),
        ("_", False),
        ("VIRTUAL_ENV", False),
        ("SGLANG_USE_CPU_ENGINE", True),
        ("NCCL_P2P_LEVEL", True),
        ("LD_LIBRARY_PATH", True),
        ("LD_PRELOAD", True),
        ("HF_HOME", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("PYTHONPATH", True),
        ("SOMETHING_OF_THEIRS", True),
        ("http_proxy", True),
    ],
)
def test_which_variables_count(variable: str, expected: bool) -> None:
    assert counts(variable) is expected


def test_the_running_launch_keeps_its_own_profile() -> None:
    new, old = (
        wire.Launch(
            launch_id=backend,
            service="glm",
            backend=backend,
            python="python3",
            arguments=[],
            host="127.0.0.1",
            port=1,
            backend_flags=flags,
            backend_environment=variables,
        )
        for backend, flags, variables in (("a", ["--fp4-gemm-backend"], ["A"]), ("b", ["--moe-runner-backend"], ["B"]))
    )
    names = profile_names(new, old, {"--fp4-gemm-backend": "fp4_gemm_runner_backend"})
    assert names == ProfileNames(frozenset({"fp4_gemm_runner_backend", "moe_runner_backend"}), frozenset({"A", "B"}))


def test_without_a_parser_aliases_still_mean_the_same() -> None:
    old = read_textually(["--model", "/m", "--tp=2", "--cuda-graph-bs", "1", "2", "--enable-metrics"])
    new = read_textually(["--model-path=/m", "--tensor-parallel-size", "2", "--cuda-graph-bs", "1", "4"])
    assert rows(Side(old, {}), Side(new, {})) == [
        ("argument", "--cuda-graph-bs", "1 2", "1 4", "drift"),
        ("argument", "--enable-metrics", "true", None, "drift"),
    ]


def test_another_interpreter_or_user_is_drift() -> None:
    old, new = Side(parsed({}), {}, python="/opt/a", user="root"), Side(parsed({}), {}, python="/opt/b", user="glm")
    assert rows(old, new) == [("python", "python", "/opt/a", "/opt/b", "drift"), ("user", "user", "root", "glm", "drift")]


def test_an_interpreter_is_its_virtual_environment_not_its_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").touch()
        for python in ("python", "python3"):
            (tmp_path / name / "bin" / python).symlink_to("/bin/sh")
    first, same, other = (interpreter_identity(str(tmp_path / path)) for path in ("a/bin/python", "a/bin/python3", "b/bin/python"))
    assert first == same == str(tmp_path / "a")
    assert other == str(tmp_path / "b")
    assert interpreter_identity("python3", f"/nowhere:{tmp_path}/b/bin") == other
    assert interpreter_identity("python3", "/nowhere") is None


@pytest.mark.parametrize(
    ("variable", "origin"),
    [
        ("PIP_CERT", "inherited"),
        ("SOMETHING_OF_THEIRS", "inherited"),
        ("https_proxy", "drift"),
        ("HTTP_PROXY", "drift"),
        ("LD_PRELOAD", "drift"),
        ("PYTHONPATH", "drift"),
        ("LIBRARY_PATH", "drift"),
        ("NCCL_P2P_LEVEL", "drift"),
        ("SGLANG_X", "drift"),
    ],
)
def test_of_a_login_only_what_steers_a_server_is_drift(variable: str, origin: str) -> None:
    old, new = Side(parsed({}), {variable: "x"}, from_login=True), Side(parsed({}), {})
    assert rows(old, new)[0][4] == origin
    assert rows(dataclasses.replace(old, from_login=False), new)[0][4] == "drift"
    assert rows(old, Side(parsed({}), {variable: "y"}))[0][4] == "drift"


def test_what_a_sweep_tries_is_the_sweeps_and_nobodys_drift() -> None:
    old = parsed({"max_running_requests": 32, "chunked_prefill_size": 4096, "fp4_gemm_backend": "a"})
    new = parsed({"max_running_requests": None, "chunked_prefill_size": 8192, "fp4_gemm_backend": "b"})
    names = ProfileNames(frozenset({"fp4_gemm_backend"}), swept=frozenset({"max_running_requests", "fp4_gemm_backend"}))
    found = differences(Side(old, {}), Side(new, {}), names)
    assert [(item.name, item.origin) for item in found] == [
        ("--fp4-gemm-backend", "backend"),
        ("--max-running-requests", "sweep"),
        ("--chunked-prefill-size", "drift"),
    ]


def test_what_an_earlier_sweep_has_left_running_is_drift_to_a_relaunch() -> None:
    def launch(*swept: str) -> wire.Launch:
        return wire.Launch("L", "glm", "a", "python3", [], "127.0.0.1", 1, swept_flags=list(swept))

    assert profile_names(launch(), launch("--max-running-requests"), {}).swept == frozenset()
    assert profile_names(launch("--max-running-requests"), launch(), {}).swept == frozenset({"max_running_requests"})
