"""SGLang command lines, as SGLang's own parser of the installed version reads them.

A server that somebody started by hand and a candidate from the inventory are compared by what the parser makes of them:
aliases, abbreviations, defaults and ``--config`` files then cause no false difference. Parsing needs the service's Python and
costs its imports (5 to 10 s) once for any number of command lines, in a subprocess.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from orchestrator.agent import wire
from orchestrator.agent.service_python import ServicePython, program_source

PARSER_SECONDS = 90.0
"""For the imports of SGLang on a cold disk and one parse each; 5 to 10 s are usual."""

_PROGRAM = "orchestrator.agent.parser_program"

_SAME_FLAG = {
    "model": "model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "nccl_init_addr": "dist_init_addr",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
}
"""SGLang's aliases that matter when its parser can't be asked, and the names its parser gives them (0.5.23; up to 0.5.6
the long ones are the parser's own names)."""


@dataclass(frozen=True)
class ParsedCommand:
    """What the parser makes of one command line.

    `values` has every name that the parser knows, defaults included. `used` maps each option as written to its name. A
    command line that is not `accepted` has the parser's `message` and the `exit_status` with which SGLang would end.
    """

    accepted: bool
    values: Dict[str, Any] = field(default_factory=dict)
    used: Dict[str, str] = field(default_factory=dict)
    message: str = ""
    exit_status: int = 0


@dataclass(frozen=True)
class ParserAnswer:
    """The parser's answers, one a command line, in their order.

    When SGLang's parser could not be had, `problem` says why, `commands` is empty and `evidence` has the last lines.
    `destinations` maps the asked flags to the parser's names, `modules` the asked modules to whether they can be imported.
    """

    sglang_version: Optional[str] = None
    commands: List[ParsedCommand] = field(default_factory=list)
    destinations: Dict[str, str] = field(default_factory=dict)
    modules: Dict[str, bool] = field(default_factory=dict)
    problem: Optional[str] = None
    evidence: List[str] = field(default_factory=list)


def serve_arguments(arguments: Sequence[str]) -> List[str]:
    """What ``sglang serve`` hands to the parser: a leading model becomes --model-path, --model-type goes (0.5.23, cli/serve.py)."""
    left: List[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--model-type":
            next(rest, None)
        elif not argument.startswith("--model-type="):
            left.append(argument)
    return ["--model-path", *left] if left and not left[0].startswith("-") else left


def launch_arguments(launch: wire.Launch) -> List[str]:
    """What the parser is to read for a launch, secrets included: in front, where SGLang puts a config file's values."""
    arguments = serve_arguments(launch.arguments) if "serve" in launch.entry else launch.arguments
    return [f"--{name}={value}" for name, value in launch.secrets.items()] + list(arguments)


def parse_commands(
    python: ServicePython,
    commands: List[List[str]],
    *,
    flags: Sequence[str] = (),
    modules: Sequence[str] = (),
    seconds: float = PARSER_SECONDS,
) -> ParserAnswer:
    """Ask the parser of the SGLang that `python` imports, which sees no GPU. Never raises: what went wrong is in `problem`."""
    question = json.dumps({"commands": commands, "flags": list(flags), "modules": list(modules), "seconds": seconds})
    done = python.without_gpu().run(["-c", program_source(_PROGRAM)], seconds, question)
    if done.problem is not None:
        return ParserAnswer(problem=done.problem, evidence=done.last_errors())
    try:
        return _answer(json.loads(done.output))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ParserAnswer(problem=f"{python.path} ended with status {done.status} and no answer", evidence=done.last_errors())


def _answer(data: Dict[str, Any]) -> ParserAnswer:
    return ParserAnswer(
        sglang_version=data["version"],
        commands=[ParsedCommand(**command) for command in data["commands"]],
        destinations=data["destinations"],
        modules=data["modules"],
        problem=data["error"],
        evidence=data["evidence"],
    )


def read_textually(arguments: Sequence[str]) -> ParsedCommand:
    """A command line without SGLang's parser: each flag with the text that follows it. Defaults stay unknown."""
    values: Dict[str, Any] = {}
    used: Dict[str, str] = {}
    name: Optional[str] = None
    for argument in arguments:
        flag, value = _split_flag(argument)
        if flag is None:
            if name is not None:
                values[name] = argument if values[name] is True else f"{values[name]} {argument}"
            continue
        name = textual_name(flag)
        used[flag] = name
        values[name] = True if value is None else value
    return ParsedCommand(accepted=True, values=values, used=used)


def textual_name(flag: str) -> str:
    """The name that SGLang's parser most likely gives a flag."""
    name = flag.lstrip("-").replace("-", "_")
    return _SAME_FLAG.get(name, name)


def _split_flag(argument: str) -> Tuple[Optional[str], Optional[str]]:
    if not argument.startswith("--"):
        return None, None
    flag, equals, value = argument.partition("=")
    return flag, value if equals else None
