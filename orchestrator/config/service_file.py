"""The file of a service, written from a server that somebody started by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import ValidationError

from orchestrator.config.fields import FLAG_SPELLINGS, ArgumentType
from orchestrator.config.models import PlaceKind, Service
from orchestrator.config.yaml_writer import commented_line, yaml_value

_OWN_KEYS = ("--model-path", "--host", "--port")


@dataclass(frozen=True)
class FoundServer:
    """What is written down of a server.

    `flags` maps its options as written to the parser's names; `secrets` are SGLang arguments, `secret_variables` names in its
    environment; `kept` how many more variables stay on the box. `backend_flags` are those of `arguments` that come
    from `backend`; they are not written.
    """

    name: str
    host: str
    place: PlaceKind
    python: str
    entry: Sequence[str]
    arguments: Sequence[str]
    port: int
    flags: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    secret_variables: Sequence[str] = ()
    kept: int = 0
    backend: str | None = None
    backend_flags: Sequence[str] = ()
    comment: str = ""


@dataclass(frozen=True)
class ServiceFile:
    """`service` is None where the text is no valid file yet; `remarks` say what a person has to do."""

    text: str
    service: Service | None
    remarks: list[str]


def service_file(found: FoundServer) -> ServiceFile:
    """The file's text, its meaning, and what it does not say."""
    flags, remarks = read_flags(found.arguments, found.flags)
    model = flags.pop("--model-path", None)
    bind = flags.pop("--host", "127.0.0.1")
    for name in ("--port", *found.backend_flags):
        flags.pop(name, None)
    if "--config" in flags:
        remarks.append(f"--config {flags.pop('--config')} is left out: write its arguments one by one")
    remarks += [f"{name} is a secret and is not in the file: where to find it is yours to fill in" for name in found.secrets]
    if found.secret_variables:
        names = ", ".join(found.secret_variables)
        remarks.append(f"secret variables are not in the file, so a relaunch starts without them unless you see to it: {names}")
    text = _text(found, str(model or ""), str(bind), flags)
    try:
        service = Service.model_validate(yaml.safe_load(text))
    except (ValidationError, yaml.YAMLError) as error:
        problems = [str(error)]
        if isinstance(error, ValidationError):
            problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        remarks += [f"to be corrected by hand: {problem}" for problem in problems]
        service = None
    return ServiceFile(text, service, remarks)


def read_flags(arguments: Sequence[str], names: Mapping[str, str]) -> tuple[dict[str, ArgumentType], list[str]]:
    """Arguments by exact long flag, and what could not be written so. Of a flag that comes twice the last one counts, as for argparse."""
    values: dict[str, list[str]] = {}
    remarks: list[str] = []
    flag: str | None = None
    for word in arguments:
        if word.startswith("--"):
            written, equals, value = word.partition("=")
            flag = exact_flag(written, names)
            if flag in values:
                remarks.append(f"{flag} is given twice; the last one is written")
            values[flag] = [value] if equals else []
        elif flag is None:
            remarks.append(f"{word!r} belongs to no flag and is left out")
        else:
            values[flag].append(word)
    return {flag: _value(items) for flag, items in values.items()}, remarks


def exact_flag(written: str, names: Mapping[str, str]) -> str:
    """The one spelling of a flag. `names` are the parser's, by which an abbreviation is known."""
    dashed = "--" + written[2:].replace("_", "-")
    known = FLAG_SPELLINGS.get(dashed)
    if known is not None:
        return known
    full = "--" + names[written].replace("_", "-") if written in names else dashed
    return full if full.startswith(dashed) else dashed


def _value(words: Sequence[str]) -> ArgumentType:
    if not words:
        return True
    values = [scalar(word) for word in words]
    return values[0] if len(values) == 1 else values


def scalar(word: str) -> int | float | str:
    """A number where writing it gives the same word again, else the text."""
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        if str(number) == word:
            return number
    return word


def _text(found: FoundServer, model: str, bind: str, flags: Mapping[str, ArgumentType]) -> str:
    lines = [f"# {found.comment}" if found.comment else "# A server that was found running.", ""]
    lines += [
        commented_line("name", found.name, "also the name of its state folder on the box"),
        commented_line("host", found.host, "an entry of hosts.yml"),
        commented_line("place", found.place, "container | host"),
        "",
        commented_line("python", found.python, "the Python that has SGLang installed"),
    ]
    if list(found.entry) != ["-m", "sglang.launch_server"]:
        lines.append(f"entry: {yaml_value(list(found.entry))}")
    lines += [
        commented_line("model", model, "--model-path"),
        commented_line("bind", bind, "--host"),
        commented_line("port", found.port, "--port"),
    ]
    if found.user is not None:
        lines.append(commented_line("user", found.user, "who runs the server"))
    if found.directory is not None:
        lines.append(commented_line("directory", found.directory, "its working directory, as found"))
    if found.backend is not None:
        lines.append(commented_line("backend", found.backend, "what it runs with; its flags are not among the arguments"))
    lines += _block("arguments", "Exact long flags. A backend profile replaces a flag of the same name.", flags)
    lines += _block("environment", "What steers SGLang, CUDA and NCCL, as found.", found.environment)
    lines += _secret_lines(found)
    lines += ["", "# boot: true   # comes back by itself after a crash and a reboot; false turns that off. Left out: where systemd runs"]
    return "\n".join(lines) + "\n"


def _block(key: str, comment: str, values: Mapping[str, Any]) -> list[str]:
    if not values:
        return []
    return ["", f"# {comment}", f"{key}:", *(f"  {name}: {yaml_value(value)}" for name, value in values.items())]


def _secret_lines(found: FoundServer) -> list[str]:
    lines: list[str] = []
    if found.kept or found.secret_variables:
        lines += ["", f"# {found.kept} more variables of its environment stay on the box, for a rollback only."]
    lines += [f"#   {name}: a secret, on the box only; a launch from this file has none" for name in found.secret_variables]
    if found.secrets:
        comment = "# Where secrets are found, never secrets: fill in. env:NAME, file:PATH, or a mapping with the command that prints it."
        lines += ["", comment, "secrets:"]
        lines += [f"  {name}: env:{_variable(found.name, name)}" for name in found.secrets]
    return lines


def _variable(service: str, argument: str) -> str:
    name = re.sub(r"[^A-Z0-9]+", "_", f"{service}_{argument}".upper())
    return name if not name[0].isdigit() else f"S_{name}"


def default_name(model: str, taken: Sequence[str]) -> str:
    """A name for the service of a model that is not among those that are taken."""
    base = re.sub(r"[^a-z0-9._-]+", "-", os.path.basename(model.rstrip("/")).lower()).strip("-._")[:50] or "sglang"
    names = [base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))]
    return next(name for name in names if name not in taken)
