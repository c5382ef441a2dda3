"""What differs between SGLang versions, and how one is asked: the only module that compares versions.

Probes come first (what answers, is there), the version second. Facts are from SGLang's wheels 0.5.6 to 0.5.23
(``srt/entrypoints/http_server.py``, ``srt/managers/tokenizer_manager.py``) and from real servers.
"""

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from orchestrator.agent.codec import record
from orchestrator.agent.http import Client, HttpError, RefusedError, StatusError, TimedOutError
from orchestrator.agent.wire_status import Health

Version = Tuple[int, int, int, int]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(post|rc|a|b|dev)(\d*))?")


def parse_version(text: Optional[str]) -> Optional[Version]:
    """``0.5.10.post1`` as a tuple that compares rightly; a release candidate or development version comes before its release."""
    match = _VERSION.match((text or "").strip())
    if match is None:
        return None
    major, minor, patch, label, number = match.groups()
    step = 0
    if label == "post":
        step = max(1, int(number or 1))
    elif label:
        step = -1
    return int(major), int(minor), int(patch or 0), step


def has_gate(version: Optional[str]) -> Optional[bool]:
    """Whether a version has ``--gated-launch-port`` (from 0.5.20); None where the version is not known."""
    parsed = parse_version(version)
    return None if parsed is None else parsed >= (0, 5, 20)


class Exit:
    """What an exit status of SGLang's main process says: the values of :func:`exit_meaning`."""

    CLEAN = "clean"
    REFUSED_ARGUMENTS = "refused_arguments"
    ERROR = "error"
    BIND_FAILED = "bind_failed"
    INTERRUPTED = "interrupted"
    """SIGTERM or SIGHUP before SGLang had a handler, which is while it loads."""
    KILLED = "killed"
    """By SIGKILL: its own hand after a scheduler died, ours, or the OOM killer; only log and cgroup tell."""
    CRASH = "crash"
    UNKNOWN = "unknown"


_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "SEGV": 11, "TERM": 15}


def exit_number(status: Optional[str]) -> Optional[int]:
    """An exit status as Python's subprocess gives it (signals negative), from any of its spellings.

    Understood: ``-9``, ``137``, ``0``, systemd's ``$EXIT_CODE $EXIT_STATUS`` with or without ``$SERVICE_RESULT`` before it
    (``exited 1``, ``signal killed KILL``, ``core-dump dumped ABRT``).
    """
    words = (status or "").split()
    if not words:
        return None
    last = words[-1].upper()
    if last.startswith("SIG"):
        last = last[3:]
    if last in _SIGNALS:
        return -_SIGNALS[last]
    if not re.fullmatch(r"-?\d+", last):
        return None
    number = int(last)
    if len(words) > 1 and words[-2] in ("killed", "dumped"):
        return -abs(number)
    return 128 - number if number > 128 else number


def exit_meaning(version: Optional[str], status: Optional[str], asked_to_stop: bool) -> str:
    """What an exit status says, with the version in hand; a value of :class:`Exit`.

    Up to 0.5.18 a drained server ends itself by SIGKILL: -9 is the clean exit of a server that was asked to stop (and also
    its exit after a crash). From 0.5.20 the clean exit is 0 and -9 never is. 0.5.19 was not seen; both pass for clean there.
    """
    number = exit_number(status)
    if number is None:
        return Exit.UNKNOWN
    if number == -9:
        parsed = parse_version(version)
        dies_by_own_hand = parsed is not None and parsed < (0, 5, 20, -1)
        return Exit.CLEAN if asked_to_stop and dies_by_own_hand else Exit.KILLED
    meanings = {0: Exit.CLEAN, 1: Exit.ERROR, 2: Exit.REFUSED_ARGUMENTS, 3: Exit.BIND_FAILED}
    if number in (-15, -1, -2):
        return Exit.INTERRUPTED
    return meanings.get(number, Exit.CRASH if number < 0 else Exit.ERROR)


_DONE = re.compile(r"Gracefully exiting\.\.\. Remaining number of requests 0\b")


def says_it_is_done(log: str) -> bool:
    """Whether a server that was asked to stop has logged that no request is left: all are answered then, and no other will be
    (``tokenizer_manager.py``, `sigterm_watchdog`, 0.5.6 to 0.5.23)."""
    return _DONE.search(log) is not None


def health(client: Client, timeout: float = 22.0) -> str:
    """Ask /health, which runs a one-token generation and takes 1 s when all is well; a value of :class:`Health`.

    The default waits for SGLang's own verdict, which comes after 20 s; a shorter one may call a long prefill unhealthy.
    """
    try:
        status = client.get("/health", timeout).status
    except RefusedError:
        return Health.DOWN
    except TimedOutError:
        return Health.UNHEALTHY if _answers(client, "/model_info") else Health.SILENT
    except HttpError:
        return Health.UNHEALTHY if _answers(client, "/model_info") else Health.DOWN
    if status == 200:
        return Health.SERVING
    return Health.STARTING if _starts_or_drains(client) else Health.UNHEALTHY


def _starts_or_drains(client: Client) -> bool:
    """After a 503: while starting or draining the next 503 comes at once, from an unhealthy server after 20 s."""
    try:
        return client.get("/health", 0.5).status == 503
    except HttpError:
        return False


def _answers(client: Client, path: str) -> bool:
    try:
        client.get(path, 2.0)
    except HttpError:
        return False
    return True


def admits_requests(client: Client) -> Optional[bool]:
    """Whether the server has left its warm-up and is not draining; None when this version can't say without a generation.

    /ready (>= 0.5.20) answers at once. Before, /health is 503 at once until then and takes 1 s afterwards: see :func:`warms_up`.
    """
    status = client.get("/ready", 2.0).status
    if status == 200:
        return True
    return False if status == 503 else None


def warms_up(client: Client, patience: float = 0.1) -> bool:
    """For versions without /ready: whether /health says 503 at once. Its good answer takes 1 s and is not waited for."""
    try:
        return client.get("/health", patience).status != 200
    except TimedOutError:
        return False


class Lagging(int):
    """A number of requests that may be seconds old: gauges are set each 40 decode steps (``--decode-log-interval``). Seen on 0.5.23: 1,
    with 4 running.
    """


def running_and_queued(client: Client, timeout: float = 5.0) -> Optional[int]:
    """Requests running and queued on all ranks; None when no endpoint says.

    /v1/loads (0.5.9 has it and answers 500), /get_load (0.5.6 to 0.5.20), /metrics (only with ``--enable-metrics``, needs no key; what
    it says is :class:`Lagging`).

    Raises:
        RefusedError: nobody listens.
    """
    for read in (_from_loads, _from_get_load, _from_metrics):
        try:
            return read(client, timeout)
        except RefusedError:
            raise
        except (HttpError, KeyError, TypeError, ValueError):
            continue
    return None


def _from_loads(client: Client, timeout: float) -> int:
    return _total([_of_rank(load) for load in client.get_json("/v1/loads", timeout)["loads"]])


def _of_rank(load: Mapping[str, Any]) -> int:
    """One data parallel rank's. Requests whose grammar is being compiled or that are paused stand in no waiting queue, and one whose
    long prompt is being computed in pieces in no batch: only its tokens show (0.5.23, managers/scheduler_components/load_inquirer.py).
    """
    queues = load.get("queues") or {}
    aside = sum(queues.get(name) or 0 for name in ("grammar", "paused"))
    seen: int = load["num_running_reqs"] + load["num_waiting_reqs"] + aside
    return seen or int(bool(load.get("num_waiting_uncached_tokens")))


def _from_get_load(client: Client, timeout: float) -> int:
    # num_reqs holds the waiting ones too.
    return _total([load["num_reqs"] for load in client.get_json("/get_load", timeout)])


_GAUGE = re.compile(r"^sglang:num_(running|queue)_reqs\{([^}]*)\} ([0-9.e+]+)$", re.MULTILINE)


def _from_metrics(client: Client, timeout: float) -> int:
    response = client.get("/metrics", timeout)
    if response.status != 200:
        raise StatusError("/metrics", response.status, "")
    # Tensor and expert ranks of a data parallel rank tell the same (--enable-metrics-for-all-schedulers), priorities parts of it.
    ranks: Dict[Tuple[str, str], float] = {}
    for kind, labels, value in _GAUGE.findall(response.text()):
        rank = re.search(r'\bdp_rank="([^"]*)"', labels)
        key = (kind, rank.group(1) if rank else "")
        ranks[key] = max(ranks.get(key, 0.0), float(value))
    return Lagging(_total([int(value) for value in ranks.values()]))


def _total(values: Sequence[int]) -> int:
    if not values:
        raise ValueError("no rank reported")
    return sum(values)


def abort_all(client: Client, timeout: float = 5.0) -> bool:
    """Abort every request; needs the admin key where one is set. Whether the server accepted."""
    try:
        return client.post("/abort_request", {"rid": "", "abort_all": True}, timeout).status == 200
    except HttpError:
        return False


@record(frozen=True)
class ServerFacts:
    """/server_info, as far as this program reads it. `arguments` are SGLang's own names; from 0.5.20 on the resolved values."""

    version: Optional[str]
    max_total_num_tokens: Optional[int]
    arguments: Dict[str, Any]

    def text(self, name: str) -> Optional[str]:
        """One argument as text, None where this version does not report it or it is unset."""
        value = self.arguments.get(name)
        return None if value is None else str(value)


_SECRET_ARGUMENTS = ("api_key", "admin_api_key")


def server_facts(client: Client, timeout: float = 10.0) -> ServerFacts:
    """Ask /server_info (it asks the scheduler too); keys are dropped.

    Raises:
        HttpError: no good answer.
    """
    return read_facts(client.get_json("/server_info", timeout))


def read_facts(info: Mapping[str, Any]) -> ServerFacts:
    """What is read of an answer of /server_info."""
    arguments = {
        name: value
        for name, value in info.items()
        if name not in _SECRET_ARGUMENTS and name != "internal_states" and (value is None or isinstance(value, (str, int, float, bool)))
    }
    capacity = info.get("max_total_num_tokens")
    return ServerFacts(info.get("version"), capacity if isinstance(capacity, int) else None, arguments)


def argument_values(arguments: Sequence[str], flags: Sequence[str]) -> List[str]:
    """The values given for a flag in any of its spellings, ``--flag value`` and ``--flag=value``, in order (the last one counts)."""
    values = []
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name not in flags:
            continue
        if equals:
            values.append(value)
        elif index + 1 < len(arguments):
            values.append(arguments[index + 1])
    return values


_FLAGS: Mapping[str, Tuple[str, ...]] = {
    "model_path": ("--model-path", "--model"),
    "served_model_name": ("--served-model-name",),
    "port": ("--port",),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "pp_size": ("--pp-size", "--pipeline-parallel-size"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "moe_runner_backend": ("--moe-runner-backend",),
    "moe_a2a_backend": ("--moe-a2a-backend",),
    "fp4_gemm_runner_backend": ("--fp4-gemm-backend",),
    "fp8_gemm_runner_backend": ("--fp8-gemm-backend",),
    "attention_backend": ("--attention-backend",),
    "quantization": ("--quantization",),
    "kv_cache_dtype": ("--kv-cache-dtype",),
}
"""SGLang's argument name -> its exact flags (srt/server_args.py, srt/arg_groups/fields)."""

_DECISIVE = ("model_path", "port", "tp_size", "moe_runner_backend", "moe_a2a_backend")
"""An answer that differs here comes from another server, or from one that silently runs something else."""


def requested(arguments: Sequence[str]) -> Dict[str, str]:
    """What a command line asks for, of the arguments that :func:`compare_echo` looks at."""
    given = {name: argument_values(arguments, flags) for name, flags in _FLAGS.items()}
    return {name: values[-1] for name, values in given.items() if values}


@record(frozen=True)
class Echo:
    """How /server_info compares with the command line. `wrong` stops a launch; `changed` is told."""

    wrong: List[str]
    changed: List[str]


def compare_echo(facts: ServerFacts, arguments: Sequence[str]) -> Echo:
    """Compare what the server says of itself with what it was asked; arguments that this version does not report are passed over."""
    wrong: List[str] = []
    changed: List[str] = []
    for name, asked in requested(arguments).items():
        shown = facts.text(name)
        if shown is None or _same(name, asked, shown, facts):
            continue
        (wrong if name in _DECISIVE else changed).append(f"{name}: asked for {asked}, the server shows {shown}")
    return Echo(wrong, changed)


def _same(name: str, asked: str, shown: str, facts: ServerFacts) -> bool:
    if asked == shown or asked in ("auto", "None"):
        return True
    if name == "model_path":
        # A model fetched by name shows its local path, and keeps the name it was asked by.
        return asked.rstrip("/") == shown.rstrip("/") or asked == facts.text("served_model_name")
    # 0.5.20+: flashinfer_trtllm becomes flashinfer_trtllm_routed with an all-to-all backend (srt/arg_groups/moe_hook.py).
    return name == "moe_runner_backend" and shown == f"{asked}_routed"


def scheduler_count(arguments: Sequence[str]) -> int:
    """The fewest scheduler processes that a server with these arguments has on one node: tensor times pipeline ranks.

    Data parallel ranks share them (attention DP) or multiply them, by version and flags, so they are not counted.
    """
    asked = requested(arguments)
    return max(1, _positive(asked.get("tp_size")) * _positive(asked.get("pp_size")) // node_count(arguments))


def node_count(arguments: Sequence[str]) -> int:
    """Over how many nodes a server with these arguments goes: --nnodes."""
    return _positive(next(reversed(argument_values(arguments, ("--nnodes",))), None))


def node_rank(arguments: Sequence[str]) -> int:
    """Which of its nodes this one is: --node-rank. Rank 0 alone takes requests."""
    text = next(reversed(argument_values(arguments, ("--node-rank",))), "0")
    return int(text) if text.isdigit() else 0


def rank_is_up(client: Client) -> bool:
    """Whether a node other than rank 0 has loaded its part.

    It takes no requests. Once all its schedulers are ready it opens a server of two paths, whose /ping is 200 for as long as its main
    process lives (``launch_dummy_health_check_server`` in srt/utils/common.py, seen with 0.5.23): so it proves the load, not the
    schedulers' lives.
    """
    return client.get("/ping", 2.0).status == 200


def _positive(text: Optional[str]) -> int:
    return int(text) if text and text.isdigit() and int(text) > 0 else 1
