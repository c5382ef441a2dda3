"""The fields of the configuration's models in a person's words: type, bounds, default, and the meaning beside it in the source."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, PlainValidator
from pydantic.fields import FieldInfo

from orchestrator.agent import wire, wire_policy
from orchestrator.config import models

MEANT_BY: Mapping[type[BaseModel], type[object]] = {
    models.Container: models.Host,
    models.PolicyModel: wire_policy.Policy,
    models.PhaseLimitsModel: wire_policy.PhaseLimits,
    models.ExpectationModel: wire_policy.Expectation,
    models.RequirementsModel: wire.Requirements,
    models.ProbeModel: wire.Probe,
}
"""Models of whose fields another type has some, or all: what they mean stands there."""

GIVEN: Mapping[type[BaseModel], frozenset[str]] = {models.Host: frozenset({"name"})}
"""Fields that no file spells out: a host's name is its key."""

_KINDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
_BOUNDS: tuple[tuple[type[Any], str, str], ...] = (
    (Ge, "ge", "at least"),
    (Gt, "gt", "more than"),
    (Le, "le", "at most"),
    (Lt, "lt", "less than"),
)
_NOT_EMPTY = "not empty"


@dataclass(frozen=True)
class Described:
    """One field. `key` is as a file spells it; `default` is None where it is required; `kind` says type and bounds."""

    key: str
    kind: str
    default: str | None
    meaning: str


def fields_of(model: type[BaseModel]) -> list[Described]:
    """The fields that a file may set, in the model's order.

    Raises:
        LookupError: one has no meaning beside it in the source.
    """
    given = GIVEN.get(model, frozenset())
    known = {**meanings(MEANT_BY.get(model, model)), **meanings(model)}
    lacking = [name for name in model.model_fields if name not in known and name not in given]
    if lacking:
        raise LookupError(f"{model.__name__} says nothing of {', '.join(lacking)}: write a docstring below each")
    return [_described(name, info, known[name]) for name, info in model.model_fields.items() if name not in given]


def models_below(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The model and all that its fields hold, each once, in the order in which they are met."""
    found = [model]
    for info in model.model_fields.values():
        for inner in _models_in(info.annotation):
            found += [item for item in models_below(inner) if item not in found]
    return found


def _models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for part in get_args(kind) for model in _models_in(part)]


def _described(name: str, info: FieldInfo, meaning: str) -> Described:
    return Described(info.alias or name, kind_of(info.annotation, info.metadata), _default(info), meaning)


def _default(info: FieldInfo) -> str | None:
    if info.is_required():
        return None
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ([], {}, "") or isinstance(value, BaseModel):
        return ""
    return json.dumps(value)


def kind_of(kind: Any, metadata: Iterable[Any] = ()) -> str:
    """A type with its bounds, in words."""
    metadata = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return kind_of(inner, [*more, *metadata])
    checks = [item.func for item in metadata if isinstance(item, AfterValidator | PlainValidator)]
    if checks:
        return _words_of(checks[-1])
    return _plain(kind) + _bounds(metadata)


def _plain(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _KINDS:
        return _KINDS[kind]
    if origin in (Union, UnionType):
        return " or ".join(kind_of(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is list:
        return f"list: {_each(kind_of(parts[0]))}"
    if origin is dict:
        return f"mapping: {kind_of(parts[0])} to {kind_of(parts[1])}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"[{title_of(kind)}](#{title_of(kind).lower()})"
    raise TypeError(f"no words for the type {kind!r}")


def _each(kind: str) -> str:
    """What each item of a list is, in brackets where the list's own bounds could be taken for those of the items."""
    return f"({kind})" if _NOT_EMPTY in kind else kind


def title_of(model: type[BaseModel]) -> str:
    """What a model is called for a person."""
    return model.__name__.removesuffix("Model")


def _bounds(metadata: Iterable[Any]) -> str:
    words = [f"{words} {getattr(item, name):.15g}" for item in metadata for kind, name, words in _BOUNDS if isinstance(item, kind)]
    return "".join(f", {word}" for word in words) + (f", {_NOT_EMPTY}" if any(isinstance(item, MinLen) for item in metadata) else "")


def _words_of(check: Callable[..., Any]) -> str:
    """What a validator lets through: the first sentence of its docstring.

    Raises:
        LookupError: it has none.
    """
    text = inspect.getdoc(check)
    if not text:
        raise LookupError(f"{check.__module__}.{check.__qualname__} has no docstring: say there what it lets through")
    sentence = re.split(r"\.(?:\s|$)", text)[0]
    return as_markdown(sentence[0].lower() + sentence[1:] if sentence[1:2].islower() or sentence[1:2] == " " else sentence)


def meanings(described: type[object]) -> Mapping[str, str]:
    """Field -> its docstring, or what the class's ``Attributes:`` say of it; those of base classes too."""
    found: dict[str, str] = {}
    for base in reversed(described.__mro__):
        if base.__module__.startswith("orchestrator."):
            found |= _own_meanings(base)
    return found


def _own_meanings(described: type[object]) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(described))).body
    assert isinstance(definition, ast.ClassDef)
    found = _attributes(ast.get_docstring(definition) or "")
    for statement, follower in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            found[statement.target.id] = as_markdown(str(follower.value.value))
    return found


def _attributes(docstring: str) -> dict[str, str]:
    _, _, listed = docstring.partition("\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", listed, flags=re.MULTILINE)
    return {name: as_markdown(text[0].upper() + text[1:]) for name, text in entries}


def as_markdown(text: str) -> str:
    """A docstring's paragraph on one line, with its marks as Markdown has them."""
    plain = re.sub(r" \(:\w+:`[^`]+`\)", "", " ".join(text.split()))
    plain = re.sub(r":\w+:`~?\.?(?:[\w.]*\.)?(\w+)`", r"`\1`", plain).replace("``", "`")
    return re.sub(r"(?<!`)None:", "left out:", plain)
