from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import sglang
from orchestrator.agent.http import BrokenError, Client, RefusedError, Response
from orchestrator.agent.sglang import Exit, ServerFacts

CAPTURES = Path(__file__).parents[2] / "data/captures"


class CannedClient(Client):
    """Answers from a table instead of a socket; a path that is missing is 404."""

    def __init__(self, answers: dict[str, Response | Exception]) -> None:
        super().__init__(1)
        self.answers = answers
        self.asked: list[str] = []

    def get(self, path: str, timeout: float = 5.0) -> Response:
        self.asked.append(path)
        answer = self.answers.get(path, Response(404, b'{"detail":"Not Found"}'))
        if isinstance(answer, Exception):
            raise answer
        return answer


def capture(name: str) -> Response:
    return Response(200, (CAPTURES / name).read_bytes())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.5.10.post1", (0, 5, 10, 1)),
        ("0.5.23", (0, 5, 23, 0)),
        ("0.5.23+cu130", (0, 5, 23, 0)),
        ("0.5.20rc1", (0, 5, 20, -1)),
        ("0.5.24.dev12+g1a2b3c", (0, 5, 24, -1)),
        ("v0.6", (0, 6, 0, 0)),
        ("main", None),
        (None, None),
    ],
)
def test_versions(text: str | None, version: tuple[int, ...] | None) -> None:
    assert sglang.parse_version(text) == version


def test_versions_compare_as_releases_do() -> None:
    texts = ["0.5.9", "0.5.10rc1", "0.5.10", "0.5.10.post1", "0.5.11", "0.6"]

    versions = [sglang.parse_version(text) for text in texts]

    assert versions == sorted(versions, key=lambda version: version or (0, 0, 0, 0))
    assert len(set(versions)) == len(texts)


@pytest.mark.parametrize(
    ("status", "number"),
    [
        ("0", 0),
        ("-9", -9),
        ("137", -9),
        ("exited 1", 1),
        ("exited 137", -9),
        ("success exited 0", 0),
        ("signal killed KILL", -9),
        ("killed 15", -15),
        ("core-dump dumped ABRT", -6),
        ("SIGTERM", -15),
        ("", None),
        (None, None),
        ("exited ?", None),
    ],
)
def test_exit_numbers(status: str | None, number: int | None) -> None:
    assert sglang.exit_number(status) == number


@pytest.mark.parametrize(
    ("version", "status", "asked", "meaning"),
    [
        ("0.5.23", "0", True, Exit.CLEAN),
        ("0.5.23", "-9", True, Exit.KILLED),
        ("0.5.18", "137", True, Exit.CLEAN),
        ("0.5.18", "-9", False, Exit.KILLED),
        ("0.5.18", "0", True, Exit.CLEAN),
        ("0.5.20", "killed KILL", True, Exit.KILLED),
        (None, "-9", True, Exit.KILLED),
        ("0.5.23", "3", False, Exit.BIND_FAILED),
        ("0.5.23", "exited 2", False, Exit.REFUSED_ARGUMENTS),
        ("0.5.23", "1", False, Exit.ERROR),
        ("0.5.23", "-15", True, Exit.INTERRUPTED),
        ("0.5.23", "-11", False, Exit.CRASH),
        ("0.5.23", None, False, Exit.UNKNOWN),
    ],
)
def test_exit_meanings(version: str | None, status: str | None, asked: bool, meaning: str) -> None:
    assert sglang.exit_meaning(version, status, asked) == meaning


def test_load_of_0_5_23_comes_from_v1_loads() -> None:
    answer = json.loads(capture("cpu-0.5.23/v1_loads.json").body)
    answer["loads"][0].update(num_running_reqs=3, num_waiting_reqs=2)

    assert sglang.running_and_queued(CannedClient({"/v1/loads": Response(200, json.dumps(answer).encode())})) == 5


def test_load_of_0_5_9_comes_from_get_load_because_v1_loads_is_500() -> None:
    client = CannedClient({"/v1/loads": Response(500, b"Internal Server Error"), "/get_load": capture("h200-0.5.17/get_load.json")})

    assert sglang.running_and_queued(client) == 0
    assert client.asked == ["/v1/loads", "/get_load"]


def test_load_counts_waiting_requests_of_get_load_once() -> None:
    body = (
        b'[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":0},{"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0,"num_tokens":0}]'
    )

    assert sglang.running_and_queued(CannedClient({"/get_load": Response(200, body)})) == 6


@pytest.mark.parametrize("version", ["cpu-0.5.23", "cpu-0.5.9"])
def test_load_comes_from_metrics_last(version: str) -> None:
    assert sglang.running_and_queued(CannedClient({"/metrics": capture(f"{version}/metrics.txt")})) == 0


def metrics(*lines: str) -> Response:
    return Response(200, "".join(f"sglang:num_{line}\n" for line in lines).encode())


def test_ranks_that_tell_the_same_count_once_and_data_parallel_ranks_add_up() -> None:
    body = metrics(
        'running_reqs{dp_rank="0",tp_rank="0"} 3.0',
        'running_reqs{dp_rank="0",tp_rank="1"} 3.0',
        'running_reqs{dp_rank="0",priority="7",tp_rank="0"} 1.0',
        'running_reqs{dp_rank="1",tp_rank="0"} 2.0',
        'queue_reqs{dp_rank="0",tp_rank="0"} 1.0',
        'queue_reqs{dp_rank="1",tp_rank="0"} 0.0',
    )
    load = sglang.running_and_queued(CannedClient({"/metrics": body}))

    assert load == 6
    assert isinstance(load, sglang.Lagging)


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({"queues": {"waiting": 2, "grammar": 1, "paused": 1, "retracted": 5}, "num_waiting_reqs": 2}, 4),
        ({"num_waiting_uncached_tokens": 9000}, 1),
        ({"num_waiting_uncached_tokens": 9000, "num_running_reqs": 2}, 2),
        ({}, 0),
    ],
)
def test_load_counts_what_stands_in_no_ordinary_queue(changes: dict[str, object], load: int) -> None:
    answer = json.loads(capture("cpu-0.5.23/v1_loads.json").body)
    second = {**answer["loads"][0], "dp_rank": 1}
    answer["loads"][0].update(changes)
    answer["loads"].append(second)

    assert sglang.running_and_queued(CannedClient({"/v1/loads": Response(200, json.dumps(answer).encode())})) == load


def test_a_key_that_is_not_known_leaves_the_metrics() -> None:
    refused = Response(401, b'{"error":"Unauthorized"}')
    client = CannedClient({"/v1/loads": refused, "/get_load": refused, "/metrics": metrics('running_reqs{tp_rank="0"} 2.0')})

    assert sglang.running_and_queued(client) == 2


def test_load_is_unknown_where_nothing_tells_it() -> None:
    assert sglang.running_and_queued(CannedClient({})) is None
    assert sglang.running_and_queued(CannedClient({"/metrics": Response(200, b"# nothing\n")})) is None


def test_load_of_a_server_that_is_gone_is_not_unknown() -> None:
    with pytest.raises(RefusedError):
        sglang.running_and_queued(CannedClient({"/v1/loads": RefusedError("gone")}))


@pytest.mark.parametrize("folder", ["cpu-0.5.23", "cpu-0.5.9", "h200-0.5.17"])
def test_facts_of_captured_servers(folder: str) -> None:
    facts = sglang.server_facts(CannedClient({"/server_info": capture(f"{folder}/server_info.json")}))

    assert facts.version == folder.partition("-")[2]
    assert facts.max_total_num_tokens in (8192, 65536)
    assert facts.text("moe_runner_backend") == "auto"


def test_facts_never_hold_keys() -> None:
    answer = json.dumps({"version": "0.5.23", "api_key": "hush", "admin_api_key": "hush", "internal_states": [{"api_key": "hush"}]})

    facts = sglang.server_facts(CannedClient({"/server_info": Response(200, answer.encode())}))

    assert "hush" not in repr(facts)


def test_echo_of_a_captured_server_agrees_with_its_command_line() -> None:
    facts = sglang.server_facts(CannedClient({"/server_info": capture("cpu-0.5.23/server_info.json")}))
    arguments = ["--model-path", "m/tiny-llama", "--port", "31001", "--device", "cpu", "--attention-backend", "torch_native"]

    assert sglang.compare_echo(facts, arguments) == sglang.Echo([], [])


@pytest.mark.parametrize(
    ("arguments", "wrong", "changed"),
    [
        (["--moe-runner-backend", "flashinfer_cutedsl"], 1, 0),
        (["--moe-runner-backend=flashinfer_cutedsl"], 1, 0),
        (["--moe-runner-backend", "auto"], 0, 0),
        (["--moe-runner-backend", "marlin", "--moe-runner-backend", "cutlass"], 0, 0),
        (["--model", "/models/other"], 1, 0),
        (["--model-path", "/models/m/"], 0, 0),
        (["--model-path", "org/name"], 0, 0),
        (["--port", "30001"], 1, 0),
        (["--attention-backend", "nsa"], 0, 1),
        (["--fp4-gemm-backend", "flashinfer_cutlass"], 0, 0),
    ],
)
def test_echo(arguments: list[str], wrong: int, changed: int) -> None:
    shown: dict[str, Any] = {
        "model_path": "/models/m",
        "served_model_name": "org/name",
        "port": 30000,
        "moe_runner_backend": "cutlass",
        "attention_backend": "dsa",
    }

    echo = sglang.compare_echo(ServerFacts("0.5.23", 1, shown), arguments)

    assert (len(echo.wrong), len(echo.changed)) == (wrong, changed)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 1),
        (["--tp-size", "8"], 8),
        (["--tp", "4", "--pp-size=2"], 8),
        (["--tp-size", "8", "--dp-size", "8", "--enable-dp-attention"], 8),
        (["--tp-size", "16", "--nnodes", "2", "--node-rank", "1"], 8),
    ],
)
def test_scheduler_count(arguments: list[str], count: int) -> None:
    assert sglang.scheduler_count(arguments) == count


def test_which_of_how_many_nodes_a_command_line_is_for() -> None:
    assert (sglang.node_rank(["--tp-size", "8"]), sglang.node_count(["--tp-size", "8"])) == (0, 1)
    assert (sglang.node_rank(["--node-rank=3"]), sglang.node_count(["--nnodes", "4"])) == (3, 4)


def test_health_without_an_answer() -> None:
    assert sglang.health(CannedClient({"/health": RefusedError("")})) == "down"
    assert sglang.health(CannedClient({"/health": BrokenError(""), "/model_info": BrokenError("")})) == "down"
