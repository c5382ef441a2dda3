"""From what was read to a model: pydantic's errors become mistakes with the line they are on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.config.mistakes import KeyPath, did_you_mean, quoted
from orchestrator.config.yaml_reader import Document

Model = TypeVar("Model", bound=BaseModel)

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def validated(
    model: type[Model], data: Any, document: Document, path: KeyPath = (), given: Mapping[str, Any] | None = None
) -> Model | None:
    """A `model` of the `data` at `path` of the document, or None, with the mistakes noted in the document.

    `given` holds fields that the file does not spell out (a host's name is its key); the file may not set them.
    Relative paths on the operator's machine count from the document's `directory`.
    """
    given = given or {}
    if isinstance(data, dict):
        for name in sorted(given.keys() & data.keys()):
            document.report((*path, name), f"unknown key; {did_you_mean(name, _allowed(model, given))}")
        data = {**data, **given}
    try:
        return model.model_validate(data, context={"directory": document.directory})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _note(model, detail, document, path, given)
        return None


def _note(model: type[BaseModel], detail: ErrorDetails, document: Document, prefix: KeyPath, given: Mapping[str, Any]) -> None:
    path = _existing(prefix + tuple(detail["loc"]), document)
    kind = detail["type"]
    if kind in ("missing", "extra_forbidden"):
        path = prefix + tuple(detail["loc"])
    if _already_said(kind, path, document):
        return
    if kind == "missing":
        document.report(path, "missing: this key is required")
    elif kind == "extra_forbidden":
        inner = _model_at(model, tuple(detail["loc"][:-1]))
        document.report(path, f"unknown key; {did_you_mean(str(path[-1]), _allowed(inner, given if inner is model else {}))}")
    else:
        document.report(path, _message(detail, hidden="secrets" in path or path[-2:] == ("webhook", "url")))


def _existing(path: KeyPath, document: Document) -> KeyPath:
    """`path` without the parts that pydantic adds below the file's own keys."""
    while path and path not in document.lines:
        path = path[:-1]
    return path


def _already_said(kind: str, path: KeyPath, document: Document) -> bool:
    """Whether the reader has told about this path, or about something in it that makes the error a consequence."""
    if kind == "missing":
        return (*path[:-1], "?") in document.unread
    if kind == "extra_forbidden":
        return False
    return any(path[: len(unread)] == unread or unread[: len(path)] == path for unread in document.unread)


def _message(detail: ErrorDetails, hidden: bool) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _WANTED:
        return f"expected {_WANTED[kind]}, got {_described(detail['input'], hidden)}{_quoting_hint(kind, detail['input'])}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {context[key]:g}, got {_described(detail['input'], hidden)}"
    if kind == "literal_error":
        return f"got {_described(detail['input'], hidden)}; allowed: {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("string_too_short", "too_short"):
        return "is empty"
    return detail["msg"]


def _quoting_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return ": put it in quotes"
    if not isinstance(value, str) or kind not in ("int_type", "float_type", "bool_type"):
        return ""
    if re.fullmatch(r"true|false" if kind == "bool_type" else r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", value):
        return ": without quotes"
    leading_zeros = kind != "bool_type" and re.fullmatch(r"0+[0-9]+", value)
    return ": without quotes and leading zeros" if leading_zeros else ""


def _described(value: Any, hidden: bool) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if hidden:
        return "something else"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    return f"the number {value}" if isinstance(value, int | float) else "nothing"


def _allowed(model: type[BaseModel] | None, given: Mapping[str, Any]) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items() if name not in given]


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that describes the mapping at `path` below `model`."""
    kind: Any = model
    for part in path:
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        kind = _bare(kind.model_fields[str(part)].annotation if is_model else get_args(kind)[-1])
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _bare(kind: Any) -> Any:
    """`kind` without Annotated and Optional around it."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType):
            kind = next(item for item in get_args(kind) if item is not type(None))
        else:
            return kind
