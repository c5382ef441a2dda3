"""SGLang's command line: every flag of 0.5.23 with its aliases, type, choices and default.

``flags.json`` was read out of the real parser (531 actions, 561 option strings), so that spelling mistakes, prefix
abbreviations, ambiguities and bad choices end exactly as they do there, exit code 2.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sglang.srt.config_file import merge_config_file
from sglang.standin.settings import load_settings

_MULTIPLIERS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def human_readable_int(value: str) -> int:
    """``25.6k`` or ``1Ki``; the name shows in argparse's messages, as in the real one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)", value.strip())
    if match and not ("." in match.group(1) and match.group(2).endswith("i")):
        return int(float(match.group(1)) * _MULTIPLIERS[match.group(2)])
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid integer value: '{value}'.") from None


def json_list_type(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Invalid JSON list: {value}. Please provide a valid JSON list.") from None


def nullable_str(value: str) -> str | None:
    return None if value in ("", "None") else value


def parse_cuda_graph_backend_arg(raw: str) -> str:
    if raw == "tc_piecewise":
        raise argparse.ArgumentTypeError("tc_piecewise was removed; select breakable, full, or disabled")
    return raw


def parse_cuda_graph_config_arg(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"--cuda-graph-config must be JSON: {error}") from None


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "loads": json.loads,
    "human_readable_int": human_readable_int,
    "json_list_type": json_list_type,
    "nullable_str": nullable_str,
    "parse_cuda_graph_backend_arg": parse_cuda_graph_backend_arg,
    "parse_cuda_graph_config_arg": parse_cuda_graph_config_arg,
}


class _StoreTrueValuedAction(argparse.Action):
    """A retired flag that takes its one accepted value and stores True (DeprecatedStoreConstAction)."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, True)


def _add_flag(parser: argparse.ArgumentParser, entry: dict[str, Any]) -> None:
    options: dict[str, Any] = {name: entry[name] for name in ("dest", "nargs", "choices", "default", "required") if name in entry}
    action = entry.get("action", "store")
    if action == "store_true":
        options["action"] = "store_true"
    elif action == "boolean_optional":
        options["action"] = argparse.BooleanOptionalAction
    elif action == "store_true_valued":
        options["action"] = _StoreTrueValuedAction
    else:
        options["type"] = _TYPES.get(entry.get("type", "str"), str)
    parser.add_argument(*entry["flags"], **options)


class ServerArgs:
    """The arguments as given, one attribute a destination."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        settings = load_settings()
        for entry in json.loads(Path(__file__).with_name("flags.json").read_text(encoding="utf-8")):
            if not settings.is_before(entry.get("since", "")):
                _add_flag(parser, entry)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> ServerArgs:
        return cls(**{name: value for name, value in vars(args).items() if name != "config"})


def prepare_server_args(argv: list[str]) -> ServerArgs:
    """Parse a command line the way launch_server does; exits with 2 where argparse refuses it."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    if "--config" in argv:
        argv = merge_config_file(parser, argv)
    server_args = ServerArgs.from_cli_args(parser.parse_args(argv))
    server_args.__dict__["_launch_command"] = " ".join(argv)
    return server_args
