"""The file of a service that was found running: valid, the same command line again, and without secrets."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import base_launch
from orchestrator.config.service_file import FoundServer, default_name, exact_flag, read_flags, service_file

ARGUMENTS = [
    "--model",
    "/models/GLM 5",
    "--host",
    "0.0.0.0",
    "--port",
    "30000",
    "--tp",
    "8",
    "--mem-fraction-static=0.85",
    "--enable-metrics",
]
FOUND = FoundServer(
    name="glm",
    host="gpu1",
    place="container",
    python="/opt/venv/bin/python",
    entry=["-m", "sglang.launch_server"],
    arguments=[*ARGUMENTS, "--cuda-graph-bs", "1", "2", "4", "--json-model-override-args", '{"a": "b #c"}', "--dist-timeout", "007"],
    port=30000,
    user="sglang",
    directory="/srv",
    environment={"NCCL_DEBUG": "WARN", "SGLANG_X": "yes", "OMP_NUM_THREADS": "8", "HF_HOME": "a: b"},
    secrets=["api-key"],
    secret_variables=["HF_TOKEN"],
    kept=12,
    comment="Written by a test.",
)


def test_the_file_means_what_runs_and_starts_it_again() -> None:
    made = service_file(FOUND)
    assert made.service is not None, made.remarks
    launch = base_launch(made.service, "id", {})
    assert launch.arguments == [
        *["--model-path", "/models/GLM 5", "--host", "0.0.0.0", "--port", "30000", "--tp-size", "8", "--mem-fraction-static", "0.85"],
        *["--enable-metrics", "--cuda-graph-bs", "1", "2", "4", "--json-model-override-args", '{"a": "b #c"}', "--dist-timeout", "007"],
    ]
    assert launch.environment == FOUND.environment
    assert (launch.user, launch.directory, launch.python, launch.entry) == ("sglang", "/srv", FOUND.python, FOUND.entry)


def test_secrets_are_references_to_fill_in_and_that_is_told() -> None:
    made = service_file(FOUND)
    assert yaml.safe_load(made.text)["secrets"] == {"api-key": "env:GLM_API_KEY"}
    assert any("api-key" in remark for remark in made.remarks)
    assert any("HF_TOKEN" in remark for remark in made.remarks)
    assert "HF_TOKEN" not in (yaml.safe_load(made.text)["environment"])
    assert "12 more variables" in made.text


def test_what_the_format_can_not_say_is_told_and_the_file_is_still_written() -> None:
    arguments = [*ARGUMENTS, "--config", "x.yaml", "--tp", "4", "--x", "-1"]
    made = service_file(dataclasses.replace(FOUND, python="python3", arguments=arguments))
    assert made.service is None
    told = " | ".join(made.remarks)
    for words in ("--config x.yaml is left out", "--tp-size is given twice", "python", "by hand"):
        assert words in told
    assert yaml.safe_load(made.text)["arguments"]["--tp-size"] == 4


@pytest.mark.parametrize(
    ("written", "names", "exact"),
    [
        ("--tp", {"--tp": "tp_size"}, "--tp-size"),
        ("--mem-frac", {"--mem-frac": "mem_fraction_static"}, "--mem-fraction-static"),
        ("--mem_fraction_static", {}, "--mem-fraction-static"),
        ("--fp4-gemm-backend", {"--fp4-gemm-backend": "fp4_gemm_runner_backend"}, "--fp4-gemm-backend"),
        ("--unknown", {}, "--unknown"),
    ],
)
def test_flags_get_the_one_spelling(written: str, names: dict[str, str], exact: str) -> None:
    assert exact_flag(written, names) == exact


LETTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"])
WORDS = st.text(LETTERS, min_size=1, max_size=20)
VALUES = st.lists(WORDS.filter(lambda word: not word.startswith("-")), max_size=3)
FLAGS = st.from_regex(r"--[a-z]{3,8}", fullmatch=True).filter(lambda flag: flag not in ("--model", "--host", "--port", "--config"))


@settings(deadline=None)
@given(st.dictionaries(FLAGS, VALUES, max_size=6))
def test_any_arguments_come_back_word_for_word(flags: dict[str, list[str]]) -> None:
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    assert read_flags(words, {})[1] == []
    made = service_file(dataclasses.replace(FOUND, arguments=["--model-path", "/m", *words]))
    assert made.service is not None, made.remarks
    assert base_launch(made.service, "id", {}).arguments[6:] == words


@settings(deadline=None)
@given(WORDS)
def test_any_text_of_the_environment_comes_back(value: str) -> None:
    made = service_file(dataclasses.replace(FOUND, environment={"NAME": value}))
    assert made.service is not None
    assert made.service.environment == {"NAME": value}


def test_a_name_is_made_of_the_models_that_nobody_has() -> None:
    assert default_name("/models/GLM-5 NVFP4/", []) == "glm-5-nvfp4"
    assert default_name("glm", ["glm", "glm-2"]) == "glm-3"
    assert default_name("///", []) == "sglang"
