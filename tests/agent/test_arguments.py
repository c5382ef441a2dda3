"""SGLang's own parser, asked in a subprocess: a small package shaped like 0.5.6, and the real one where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.archive import agent_archive
from orchestrator.agent.arguments import ParserAnswer, launch_arguments, parse_commands, serve_arguments
from orchestrator.agent.installation import UNKNOWN_VERSION, find_sglang
from orchestrator.agent.service_python import OUTPUT_LIMIT, ServicePython
from tests.rig.sglang import find_environment

SMALL = Path(__file__).parents[1] / "data/small_sglang"
MODEL = ["--model-path", "/m"]


def small(**environment: str) -> ServicePython:
    return ServicePython(sys.executable, {"PYTHONPATH": str(SMALL), "PYTHONDONTWRITEBYTECODE": "1", **environment})


def test_values_defaults_and_options_used() -> None:
    answer = parse_commands(small(), [["--model", "/m", "--tp-size=2"]], flags=["--moe-runner-backend", "--no-such-flag"])
    [command] = answer.commands
    assert answer.problem is None
    assert answer.sglang_version == "0.5.6"
    assert command.accepted
    assert (command.values["model_path"], command.values["tensor_parallel_size"], command.values["moe_runner_backend"]) == ("/m", 2, "auto")
    assert command.used == {"--model": "model_path", "--tp-size": "tensor_parallel_size"}
    assert answer.destinations == {"--moe-runner-backend": "moe_runner_backend"}


def test_any_number_of_command_lines_takes_one_import_that_sees_no_gpu(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    python = small(SMALL_SGLANG_IMPORTS=str(imports), CUDA_VISIBLE_DEVICES="0,1")
    answer = parse_commands(python, [[*MODEL, "--tp-size", str(size)] for size in range(1, 101)])
    assert [command.values["tensor_parallel_size"] for command in answer.commands] == list(range(1, 101))
    assert imports.read_text() == "''\n"


@pytest.mark.parametrize(
    ("arguments", "message", "status"),
    [
        ([*MODEL, "--no-such-flag"], "unrecognized arguments: --no-such-flag", 2),
        ([*MODEL, "--moe-runner-backend", "x"], "argument --moe-runner-backend: invalid choice: 'x'", 2),
        ([*MODEL, "--cuda-graph-max-bs", "8"], "ambiguous option: --cuda-graph-max-bs could match", 2),
        ([], "the following arguments are required: --model-path/--model", 2),
        ([*MODEL, "--config", "/no/such/file.yaml"], "FileNotFoundError", 1),
        ([*MODEL, "--help"], "it prints its help", 0),
    ],
)
def test_refusals_are_the_parsers_own_words(arguments: list[str], message: str, status: int) -> None:
    [refused] = parse_commands(small(), [arguments]).commands
    assert not refused.accepted
    assert refused.message.startswith(message)
    assert refused.exit_status == status
    assert refused.values == {}


def test_a_refusal_does_not_touch_the_next_command_line() -> None:
    commands = [[*MODEL, "--no-such-flag"], MODEL, [*MODEL, "--config", "/no/such/file.yaml"]]
    refused, good, without_file = parse_commands(small(), commands).commands
    assert (refused.accepted, good.accepted, without_file.accepted) == (False, True, False)
    assert without_file.used == {"--model-path": "model_path", "--config": "config"}


def test_a_config_file_is_merged_as_sglang_merges_it(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"api-key": "k", "port": 1}))
    merged, unmerged = parse_commands(small(), [[*MODEL, "--port", "2", "--config", str(config)], [*MODEL, f"--config={config}"]]).commands
    assert (merged.values["api_key"], merged.values["port"]) == ("k", 2)
    assert merged.used["--api-key"] == "api_key"
    assert (unmerged.values["api_key"], unmerged.values["port"]) == (None, 30000)


def test_the_program_is_found_in_the_agents_zip(tmp_path: Path) -> None:
    archive = tmp_path / "agent.zip"
    archive.write_bytes(agent_archive())
    ask = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); from orchestrator.agent import arguments, service_python; "
        f"python = service_python.ServicePython({sys.executable!r}, {{'PYTHONPATH': {str(SMALL)!r}}}); "
        "print(arguments.parse_commands(python, [['--model', '/m']]).commands[0].accepted)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_importable_modules_are_told() -> None:
    answer = parse_commands(small(), [], modules=["json", "json.decoder", "no_such_module", "no_such_module.part"])
    assert answer.modules == {"json": True, "json.decoder": True, "no_such_module": False, "no_such_module.part": False}


def test_an_import_that_fails_is_a_problem_with_evidence() -> None:
    answer = parse_commands(small(SMALL_SGLANG_BROKEN="1"), [MODEL], modules=["json"])
    assert answer.problem == "ModuleNotFoundError: No module named 'no_such_module_of_this_test'"
    assert answer.commands == []
    assert answer.modules == {"json": True}
    assert any("server_args.py" in line for line in answer.evidence)


@pytest.mark.slow
def test_an_import_that_hangs_is_ended() -> None:
    began = time.monotonic()
    answer = parse_commands(small(SMALL_SGLANG_HANGS="1"), [MODEL], seconds=1.0)
    assert answer.problem == "did not answer within 1 s and was killed"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("python", ["/no/such/python", "/etc/hostname"])
def test_a_python_that_can_not_be_started_is_a_problem(python: str) -> None:
    assert (parse_commands(ServicePython(python), [MODEL]).problem or "").startswith(f"can't start {python}")


def test_something_that_is_no_python_is_a_problem() -> None:
    assert parse_commands(ServicePython("/bin/false"), [MODEL]).problem == "/bin/false ended with status 1 and no answer"


def test_a_user_who_does_not_exist_is_a_problem() -> None:
    answer = parse_commands(ServicePython(sys.executable, user="no-such-user-here"), [MODEL])
    assert "no user no-such-user-here" in (answer.problem or "")


def test_a_flood_is_stopped() -> None:
    done = ServicePython(sys.executable).run(["-c", "while True: print('x' * 1000)"], 60)
    assert done.problem == f"wrote more than {OUTPUT_LIMIT >> 20} MiB and was killed"


@pytest.mark.slow
def test_a_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(child)!r}, 'w').write(str(child.pid)); "
        "time.sleep(600)"
    )
    ServicePython(sys.executable).run(["-c", program], 2)
    state = Path(f"/proc/{child.read_text()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_root_becomes_the_service_user() -> None:
    done = ServicePython("/usr/bin/python3", user="nobody").run(
        ["-c", "import os; print(os.getuid(), os.getgroups(), os.environ['HOME'])"], 10
    )
    assert done.problem is None
    assert done.output.split()[0] == "65534"
    assert "nonexistent" in done.output
    assert "[0" not in done.output


def test_what_sglang_serve_does_to_its_arguments() -> None:
    assert serve_arguments(["/m", "--port", "1", "--model-type", "llm"]) == ["--model-path", "/m", "--port", "1"]
    assert serve_arguments(["--model-type=llm", "--port", "1"]) == ["--port", "1"]


def test_secrets_of_a_launch_are_parsed_with_it() -> None:
    launch = wire.Launch(
        launch_id="1", service="s", backend="b", python="p", arguments=MODEL, host="h", port=1, secrets={"api-key": "-starts-with-a-dash"}
    )
    [command] = parse_commands(small(), [launch_arguments(launch)]).commands
    assert command.values["api_key"] == "-starts-with-a-dash"


def test_the_version_is_read_without_a_process(tmp_path: Path) -> None:
    assert find_sglang(small()).version == "0.5.6"
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").touch()
    (tmp_path / "lib/python3.11/site-packages/sglang-0.5.23.dist-info").mkdir(parents=True)
    not_a_python = tmp_path / "bin/python"
    not_a_python.symlink_to("/bin/false")
    assert find_sglang(ServicePython(str(not_a_python))).version == "0.5.23"


@pytest.mark.parametrize("text", ["", "__version__ = version_of_the_checkout()"])
def test_a_checkout_that_does_not_say_its_version_is_an_sglang_all_the_same(tmp_path: Path, text: str) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").touch()
    (tmp_path / "sglang/version.py").write_text(text)
    found = find_sglang(ServicePython("/usr/bin/python3", {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}))
    assert (found.version, found.problem) == (UNKNOWN_VERSION, None)


def test_a_python_without_sglang_says_so() -> None:
    absent = find_sglang(ServicePython("/usr/bin/python3", {"PYTHONNOUSERSITE": "1"}))
    assert absent.version is None
    assert "sglang" in (absent.problem or "")


@pytest.fixture(scope="module")
def real_answer(tmp_path_factory: pytest.TempPathFactory) -> ParserAnswer:
    """One start of the real parser, which takes its imports, for all the tests below."""
    environment = find_environment()
    if environment is None:
        pytest.skip("no SGLang environment: run `make sglang-cpu`")
    config = tmp_path_factory.mktemp("config") / "config.yaml"
    config.write_text(json.dumps({"api-key": "from-file", "tp-size": 4}))
    python = ServicePython(str(environment.python), {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"})
    commands = [
        [*MODEL, "--tp", "2"],
        ["--model", "/m", "--tensor-parallel-size", "2", "--moe-runner-backend", "auto"],
        [*MODEL, "--config", str(config)],
        [*MODEL, "--cuda-graph-max-bs", "8"],
        [*MODEL, "--moe-runner-backend", "nonsense"],
    ]
    return parse_commands(python, commands, flags=["--fp4-gemm-backend"], modules=["torch", "flashinfer.no_such_part"])


@pytest.mark.sglang
@pytest.mark.slow
def test_real_sglang_reads_aliases_abbreviations_and_defaults_alike(real_answer: ParserAnswer) -> None:
    assert real_answer.problem is None, real_answer.evidence
    short, long = real_answer.commands[:2]
    assert short.values == long.values
    assert short.used["--tp"] == "tp_size"
    assert len(short.values) > 300


@pytest.mark.sglang
@pytest.mark.slow
def test_real_sglang_parses_hundreds_of_command_lines_with_one_import() -> None:
    environment = find_environment()
    if environment is None:
        pytest.skip("no SGLang environment: run `make sglang-cpu`")
    python = ServicePython(str(environment.python), {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"})
    began = time.monotonic()
    one = parse_commands(python, [MODEL])
    once = time.monotonic() - began
    began = time.monotonic()
    many = parse_commands(python, [[*MODEL, "--tp-size", str(size)] for size in range(1, 101)])
    assert (one.problem, many.problem) == (None, None)
    assert many.commands[99].values["tp_size"] == 100
    # A second import for each would be hundreds of seconds; a busy machine may take three times as long for the same.
    assert time.monotonic() - began < 3 * once + 100 * 0.3


@pytest.mark.sglang
@pytest.mark.slow
def test_real_sglang_merges_a_config_file(real_answer: ParserAnswer) -> None:
    merged = real_answer.commands[2]
    assert (merged.values["api_key"], merged.values["tp_size"]) == ("from-file", 4)


@pytest.mark.sglang
@pytest.mark.slow
def test_real_sglang_refuses_in_its_own_words(real_answer: ParserAnswer) -> None:
    ambiguous, nonsense = real_answer.commands[3:]
    assert ambiguous.message.startswith("ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode")
    assert nonsense.message.startswith("argument --moe-runner-backend: invalid choice: 'nonsense' (choose from 'auto'")
    assert (ambiguous.exit_status, nonsense.exit_status) == (2, 2)


@pytest.mark.sglang
@pytest.mark.slow
def test_real_sglang_names_destinations_modules_and_version(real_answer: ParserAnswer) -> None:
    assert real_answer.destinations == {"--fp4-gemm-backend": "fp4_gemm_runner_backend"}
    assert real_answer.modules == {"torch": True, "flashinfer.no_such_part": False}
    environment = find_environment()
    assert environment is not None
    assert find_sglang(ServicePython(str(environment.python))).version == real_answer.sglang_version
