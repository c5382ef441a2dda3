"""The types of single values in the inventory, and what is allowed in each.

A message raised here follows ``file:line: path:`` on the screen. Secrets are only ever named, never repeated.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator, ValidationInfo

from orchestrator.config import versions

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FLAG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(r"[a-z][a-z0-9-]*")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_COMPUTE_CAPABILITY = re.compile(r"[0-9]{1,2}\.[0-9]")

ArgumentType = bool | int | float | str | list[int | float | str]

FLAG_SPELLINGS = {
    "--model": "--model-path",
    "--tensor-parallel-size": "--tp-size",
    "--tp": "--tp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--pp": "--pp-size",
    "--data-parallel-size": "--dp-size",
    "--dp": "--dp-size",
    "--expert-parallel-size": "--ep-size",
    "--ep": "--ep-size",
    "--nccl-init-addr": "--dist-init-addr",
}
"""Second spellings of a flag, and abbreviations that argparse lets through, to the one spelling used here.

SGLang 0.5.6 to 0.5.23, srt/server_args.py and srt/arg_groups/fields/: with one spelling each, a profile's value can't
end up beside the service's own.
"""

_SET_ELSEWHERE = {
    "--model-path": "write the service's model:",
    "--host": "write the service's bind:",
    "--port": "write the service's port:",
    "--api-key": "write a reference in the service's secrets:",
    "--admin-api-key": "write a reference in the service's secrets:",
    "--config": "write its arguments one by one",
}
_SET_BY_US = ("ORCHESTRATOR_LAUNCH", "SPT_NOENV")


def _check_name(value: str) -> str:
    """A name. 1 to 63 letters, digits, '.', '_' or '-': safe as a folder's, a unit's and a login's name."""
    if _NAME.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a name: 1 to 63 letters, digits, '.', '_' or '-', a letter or digit first")
    return value


def _check_absolute(value: str) -> str:
    """An absolute path on the box."""
    if not value.startswith("/") or _has_control_characters(value):
        raise ValueError(f"{value!r} is not an absolute path (/...)")
    return value


def _check_program(value: str) -> str:
    """An absolute path, or the name of a program that is looked up in PATH."""
    if re.fullmatch(r"/\S+|[A-Za-z0-9][A-Za-z0-9._+-]*", value) is None:
        raise ValueError(f"{value!r} is neither an absolute path nor a program's name")
    return value


def local_path(value: str, info: ValidationInfo) -> str:
    """A path on the operator's machine: ``~`` is the operator's home, a relative path counts from the inventory's folder."""
    if not value or _has_control_characters(value):
        raise ValueError("is not a path")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"{value!r}: no home folder is known for it") from None
    folder = (info.context or {}).get("directory")
    return str(path if folder is None else Path(folder).absolute() / path)


def _check_address(value: str) -> str:
    """A host name or an IP address."""
    if "@" in value:
        raise ValueError(f"{value!r} holds a user: write it in user:")
    if re.fullmatch(r"[^:]+:[0-9]+", value):
        raise ValueError(f"{value!r} holds a port: write it in port:")
    if re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*", value) is None:
        raise ValueError(f"{value!r} is not a host name or an IP address")
    return value


def _check_host_port(value: str) -> str:
    """A host name or an IP address, and a port: HOST:PORT."""
    address, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or not 2 <= int(port) <= 65535:
        raise ValueError(f"{value!r} is not HOST:PORT, with a port from 2 to 65535")
    _check_address(address.strip("[]"))
    return value


def _check_compute_capability(value: str) -> str:
    """A compute capability, such as "10.0"."""
    if _COMPUTE_CAPABILITY.fullmatch(value) is None:
        raise ValueError(f'{value!r} is not a compute capability such as "10.0" or "12.0"')
    return value


def _check_module(value: str) -> str:
    """The name of a Python module."""
    if _MODULE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not the name of a Python module")
    return value


def _check_reference(value: str) -> str:
    """A Python module, or module:name."""
    module, colon, name = value.partition(":")
    if _MODULE.fullmatch(module) is None or (colon and _MODULE.fullmatch(name) is None):
        raise ValueError(f"{value!r} is neither a Python module nor module:name")
    return value


def _check_qualified_name(value: str) -> str:
    """The name of a class or function."""
    if value and _MODULE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not the name of a class or function")
    return value


def _check_version_range(value: Any) -> versions.VersionRange:
    """Version specifiers, such as ">=0.5.11,<0.5.20"."""
    if not isinstance(value, str):
        raise ValueError('expected version specifiers in quotes, such as ">=0.5.11,<0.5.20"')
    return versions.VersionRange.parse(value)


def _check_argument(value: Any) -> ArgumentType:
    """Text, a number, true (a bare flag), false (left out), or a list of texts and numbers."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        return _check_argument_scalar(value)
    if not value:
        raise ValueError("an empty list: give its values or remove the flag")
    return [_check_argument_scalar(item) for item in value]


def _check_argument_scalar(value: Any) -> int | float | str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected text, a number, true (a bare flag), false (left out), or a list of texts and numbers")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    if isinstance(value, str):
        _check_one_line(value)
        if not value:
            raise ValueError("empty: write true for a bare flag")
        if value.startswith("-"):
            raise ValueError(f"{value!r} begins with '-', which SGLang would take for a flag")
    return value


def _check_line(value: str) -> str:
    """One line of text."""
    _check_one_line(value)
    return value


def _check_environment_value(value: Any) -> str:
    """Text or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("expected text or a whole number: put it in quotes, as the program should see it")
    _check_one_line(value)
    return value


def _check_variable(value: str) -> str:
    """The name of an environment variable."""
    if _VARIABLE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not the name of an environment variable")
    if value in _SET_BY_US:
        raise ValueError(f"{value} is set by this program")
    return value


def _check_flag(value: str) -> str:
    """An exact long flag."""
    exact = FLAG_SPELLINGS.get(value, value)
    if exact in _SET_ELSEWHERE:
        raise ValueError(f"{value} is not set here: {_SET_ELSEWHERE[exact]}")
    if exact != value:
        raise ValueError(f"write {exact}, not {value}: one spelling each, so that a profile can replace it")
    if "_" in value and _FLAG.fullmatch(value) is not None:
        raise ValueError(f"write {value.replace('_', '-')}, not {value}: SGLang's flags have dashes")
    if _FLAG.fullmatch(value) is None:
        hint = f"; write --{value}" if re.fullmatch(r"[a-z][a-z0-9-]*", value) else ""
        raise ValueError(f"{value!r} is not a long flag such as --tp-size, its value apart{hint}")
    return value


def _check_secret_name(value: str) -> str:
    """The name of an SGLang argument without its dashes."""
    if _SECRET_NAME.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not the name of an SGLang argument without its dashes, such as api-key")
    return value


@dataclass(frozen=True)
class SecretSource:
    """Where a secret's value is found on the operator's machine.

    `kind` ``env``: the variable `target[0]`; ``file``: the content of `target[0]`, an absolute path; ``command``: what
    the program `target` prints.
    """

    kind: Literal["env", "file", "command"]
    target: tuple[str, ...]


_REFERENCE_FORMS = "expected env:NAME, file:PATH or command: [PROGRAM, ARGUMENT, ...]; a secret itself is never written here"


def _check_secret(value: Any, info: ValidationInfo) -> SecretSource:
    """Where a secret is: ``env:NAME``, ``file:PATH`` or ``command: [PROGRAM, ARGUMENT, ...]``."""
    if isinstance(value, str):
        kind, _, target = value.partition(":")
        if kind == "env" and _VARIABLE.fullmatch(target):
            return SecretSource("env", (target,))
        if kind == "file" and target and not _has_control_characters(target):
            return SecretSource("file", (local_path(target, info),))
    if isinstance(value, dict) and list(value) == ["command"]:
        command = value["command"]
        if isinstance(command, list) and command and all(isinstance(item, str) and item for item in command):
            return SecretSource("command", tuple(command))
    raise ValueError(_REFERENCE_FORMS)


def _check_one_line(value: str) -> None:
    if _has_control_characters(value):
        raise ValueError("holds a line break or another control character")


def _has_control_characters(value: str) -> bool:
    return any(ord(character) < 32 or ord(character) == 127 for character in value)


Name = Annotated[str, AfterValidator(_check_name)]
OneLine = Annotated[str, AfterValidator(_check_line)]
AbsolutePath = Annotated[str, AfterValidator(_check_absolute)]
Program = Annotated[str, AfterValidator(_check_program)]
LocalPath = Annotated[str, AfterValidator(local_path)]
Address = Annotated[str, AfterValidator(_check_address)]
HostPort = Annotated[str, AfterValidator(_check_host_port)]
ComputeCapability = Annotated[str, AfterValidator(_check_compute_capability)]
ModuleName = Annotated[str, AfterValidator(_check_module)]
QualifiedName = Annotated[str, AfterValidator(_check_qualified_name)]
Reference = Annotated[str, AfterValidator(_check_reference)]
VersionRange = Annotated[versions.VersionRange, PlainValidator(_check_version_range)]
FlagName = Annotated[str, AfterValidator(_check_flag)]
ArgumentValue = Annotated[ArgumentType, PlainValidator(_check_argument)]
VariableName = Annotated[str, AfterValidator(_check_variable)]
EnvironmentValue = Annotated[str, PlainValidator(_check_environment_value)]
SecretName = Annotated[str, AfterValidator(_check_secret_name)]
SecretReference = Annotated[SecretSource, PlainValidator(_check_secret)]
