"""Documents of ``--json`` held against their schema, and more strictly than its readers may: nothing may be there that it doesn't name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "docs" / "schema" / "documents-1.json"


def checked(text: str) -> dict[str, Any]:
    """The one document that was printed.

    Raises:
        AssertionError: it is not one, or does not fit the schema.
    """
    document = json.loads(text, parse_constant=_no_number)
    assert isinstance(document, dict), document
    _check(document)
    return document


def _check(document: dict[str, Any]) -> None:
    """A document, and those within it of the verbs that a runbook has called."""
    error = first_mistake(document)
    if error is not None:
        place = "/".join(map(str, error.absolute_path))
        raise AssertionError(f"a document of {document.get('verb')} does not fit {SCHEMA_FILE.name}: {place}: {error.message[:500]}")
    for step in document.get("steps", ()) if document["verb"] == "runbook.run" else ():
        if step["document"] is not None:
            _check(step["document"])


def first_mistake(document: dict[str, Any]) -> ValidationError | None:
    """Where a document does not fit: the schema as it is published, then the strict one of its verb's answer, or of a failure."""
    published, closed = _schemas()
    kinds = closed["$defs"].get(document.get("verb"), {"anyOf": []})["anyOf"] if document.get("error") is None else []
    answers = [kind for kind in kinds if "$ref" not in kind] or [{"$ref": "#/$defs/failure"}]
    mistakes = [_mistake({**kind, "$defs": closed["$defs"]}, document) for kind in answers]
    return _mistake(published, document) if None in mistakes else mistakes[0]


def _mistake(schema: dict[str, Any], document: dict[str, Any]) -> ValidationError | None:
    found: ValidationError | None = best_match(Draft202012Validator(schema).iter_errors(document))
    return found


def strict(part: Any) -> Any:
    """The schema with every object closed that names its fields."""
    if isinstance(part, list):
        return [strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    found = {name: strict(item) for name, item in part.items()}
    closes = part.get("type") == "object" and "properties" in part and "additionalProperties" not in part
    return {**found, "additionalProperties": False} if closes else found


@cache
def _schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    published = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return published, strict(published)


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")
