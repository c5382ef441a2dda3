"""What the source says of a type's fields, for the schema."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from functools import cache
from typing import Any

from orchestrator import agent, flows, results

_VALUES = re.compile(r"[Tt]he values of :attr:`(?:[\w.]*\.)?(\w+)\.(\w+)`")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_ENTRY = re.compile(r"(?P<names>\w+(?:, \w+)*): (?P<about>.*)")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_WORD = re.compile(r"\b(None(?! of)|True|False)\b")
_PACKAGES = (agent, flows, results)
_ATTRIBUTES = "Attributes:"


def of(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """What is said of a type, and of each of its fields and of those that it inherits."""
    fields: dict[str, str] = {}
    for base in reversed([item for item in kind.__mro__ if item.__module__.startswith("orchestrator.")]):
        fields |= _listed(base) | _below(base)
    return _plain(_paragraphs(kind)[0]), {name: _plain(text) for name, text in fields.items()}


def values_of(kind: type[Any], field: str) -> list[str]:
    """The values of a field, where a class lists them: those that this version has."""
    return _vocabularies().get((kind.__name__, field), [])


@cache
def _vocabularies() -> dict[tuple[str, str], list[str]]:
    """(Name of the type, field) -> its values, of every class of these packages that says what it lists, whatever was imported before."""
    found = {}
    modules = [
        importlib.import_module(item.name) for folder in _PACKAGES for item in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}.")
    ]
    for kind in dict.fromkeys(item for module in modules for item in vars(module).values() if isinstance(item, type)):
        for names in _VALUES.findall(kind.__doc__ or ""):
            found[names] = [value for name, value in vars(kind).items() if isinstance(value, str) and name.isupper()]
    return found


def _paragraphs(kind: type[Any]) -> tuple[str, str]:
    """A docstring without its attributes, and these."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    if text.startswith(f"{kind.__name__}("):  # made by dataclass()
        return "", ""
    about, _, attributes = text.partition(f"{_ATTRIBUTES}\n")
    return about.strip(), textwrap.dedent(attributes)


def _listed(kind: type[Any]) -> dict[str, str]:
    """The entries of ``Attributes:``; one entry may be about several."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in _paragraphs(kind)[1].splitlines():
        if not line.strip():
            break
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            names = entry["names"].split(", ")
            found |= dict.fromkeys(names, entry["about"])
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _below(kind: type[Any]) -> dict[str, str]:
    """The texts below fields."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, ValueError):
        return {}
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        told = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if named and told:
            found[field.target.id] = text.value.value  # type: ignore[attr-defined]
    return found


def _plain(text: str) -> str:
    """Without the markup of Python's docstrings, in JSON's words, in one line."""
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`")
    return " ".join(_WORD.sub(lambda word: _WORDS[word[1]], plain).split())
