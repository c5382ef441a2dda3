"""``--config FILE`` as srt/utils/server_args_config_parser.py of 0.5.23 merges it: file first, so the command line wins.

The stand-in has no YAML parser: it reads JSON, which is YAML, and else flat ``key: value`` lines.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def merge_config_file(parser: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Return `arguments` with the file's values in front and ``--config FILE`` gone.

    Only the separate token ``--config`` is seen, as in the real one: ``--config=FILE`` parses and is never merged.

    Raises:
        ValueError: two files, no file, not .yaml or .yml, not there, not a mapping.
    """
    if arguments.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    index = arguments.index("--config")
    if index == len(arguments) - 1:
        raise ValueError("No config file specified after --config flag!")
    values = _read(arguments[index + 1])
    bare_flags = _store_true_keys(parser)
    from_file: list[str] = []
    for key, value in values.items():
        from_file.extend(_as_arguments(key, value, bare_flags))
    return from_file + arguments[:index] + arguments[index + 2 :]


def _read(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {name}")
    text = path.read_text(encoding="utf-8")
    try:
        values = json.loads(text) if text.strip() else {}
    except ValueError:
        values = _read_flat_lines(text)
    if not isinstance(values, dict):
        raise ValueError("Config file must contain a dictionary at root level")
    return values


def _read_flat_lines(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and not line.lstrip().startswith("#"):
            values[key.strip()] = _scalar(value.strip())
    return values


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip("'\"")


def _store_true_keys(parser: argparse.ArgumentParser) -> set[str]:
    keys: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._StoreTrueAction):
            keys.add(action.dest)
            keys.update(option[2:].replace("-", "_") for option in action.option_strings)
    return keys


def _as_arguments(key: str, value: Any, bare_flags: set[str]) -> list[str]:
    flag = f"--{key}"
    if isinstance(value, bool):
        if key.replace("-", "_") in bare_flags:
            return [flag] if value else []
        return [flag, str(value).lower()]
    if isinstance(value, list):
        return [flag, *(str(item) for item in value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]
