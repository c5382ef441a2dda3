"""The JSON Schema of all documents, made of the types of the answers.

``python -m orchestrator.cli.documents.schema`` prints it (``make schema``). What a type says of itself becomes the schema's descriptions:
docstrings of classes with their ``Attributes:``, texts below fields, and the classes that list a field's values.
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from orchestrator.cli.documents import docstrings
from orchestrator.cli.documents.changes import Heard
from orchestrator.cli.documents.envelope import SCHEMA, Envelope, written
from orchestrator.cli.documents.table import ANSWERS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = f"urn:lxc-gpu-orchestrator:documents:{SCHEMA}"
FAILURE = "failure"
_ABOUT = (
    "What every verb prints on standard output with --json. Each verb's documents are $defs/VERB. An object may have more fields than are "
    "written here: later versions of the program add some without changing `schema`."
)
_MAPS_OF_SCHEMAS = ("properties", "$defs", "patternProperties")
_DATA = ("const", "enum", "examples", "required")


class _Generator(GenerateJsonSchema):
    """As the documents are written: every field is there, and has what the source says of it."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _described(super().dataclass_schema(schema), schema["cls"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _described(super().model_schema(schema), schema["cls"])


def _described(schema: JsonSchemaValue, kind: type[Any]) -> JsonSchemaValue:
    about, fields = docstrings.of(kind)
    found = {**schema, "description": about} if about else {name: item for name, item in schema.items() if name != "description"}
    found.pop("additionalProperties", None)  # how strictly the inventory is read is not what is promised here
    properties = found.get("properties", {})
    found["properties"] = {name: _field(item, fields.get(name, ""), docstrings.values_of(kind, name)) for name, item in properties.items()}
    return found


def _field(schema: JsonSchemaValue, about: str, values: list[str]) -> JsonSchemaValue:
    """`values` are those of this version; a later one may have more, so they are no enumeration."""
    told = {"description": about} if about else {}
    return {**schema, **told, **({"examples": values} if values else {})}


def schema() -> dict[str, Any]:
    """All of it, as JSON's own types."""
    kinds = dict.fromkeys([Envelope, Heard, *(kind for answers in ANSWERS.values() for kind in answers)])
    made, shared = TypeAdapter.json_schemas([(kind, "serialization", TypeAdapter(kind)) for kind in kinds], schema_generator=_Generator)
    types: dict[str, JsonSchemaValue] = shared["$defs"]
    whole = {kind: types[_name(made[kind, "serialization"])] for kind in kinds}
    envelope = whole[Envelope]
    verbs = {verb: {"anyOf": [*(_answer(envelope, whole[kind], verb) for kind in found), _ref(FAILURE)]} for verb, found in ANSWERS.items()}
    failure = _failure(envelope, whole[Heard])
    own = {FAILURE: failure, **verbs}
    used = _reached(own, types)
    definitions = {**own, **{name: item for name, item in types.items() if name in used}}
    return {
        "$schema": DIALECT,
        "$id": IDENTIFIER,
        "title": "Documents of --json",
        "description": _ABOUT,
        "type": "object",
        "required": ["schema", "verb"],
        "properties": {"schema": {"const": SCHEMA}, "verb": {"enum": [None, *ANSWERS]}},
        "allOf": [
            {"if": {"properties": {"verb": {"const": verb}}}, "then": _ref(FAILURE if verb is None else verb)} for verb in (None, *ANSWERS)
        ],
        "$defs": {_short(name): _clean(item) for name, item in definitions.items()},
    }


def _answer(envelope: JsonSchemaValue, answer: JsonSchemaValue, verb: str) -> JsonSchemaValue:
    """What a verb prints that did what was asked: the envelope's fields, then the answer's."""
    own = {"schema": {"const": SCHEMA}, "verb": {"const": verb}, "error": {"type": "null"}}
    properties = {**envelope["properties"], **own, **answer["properties"]}
    about = {"description": answer["description"]} if "description" in answer else {}
    return {"type": "object", **about, "properties": properties, "required": list(properties)}


def _failure(envelope: JsonSchemaValue, heard: JsonSchemaValue) -> JsonSchemaValue:
    """What any verb prints that did not."""
    problem = next(item for item in envelope["properties"]["error"]["anyOf"] if "$ref" in item)
    own = {"schema": {"const": SCHEMA}, "error": {**problem, "description": envelope["properties"]["error"]["description"]}}
    properties = {**envelope["properties"], **own}
    about = "A verb that did not do what was asked, or a command line that never came to one."
    return {"type": "object", "description": about, "properties": {**properties, **heard["properties"]}, "required": list(properties)}


def _reached(part: Any, types: dict[str, JsonSchemaValue], found: frozenset[str] = frozenset()) -> frozenset[str]:
    """The names of all types that are referred to, at first or second hand."""
    if isinstance(part, dict):
        name = _name(part) if isinstance(part.get("$ref"), str) else None
        if name is not None and name in types and name not in found:
            found = _reached(types[name], types, found | {name})
    for item in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        found = _reached(item, types, found)
    return found


def _name(reference: JsonSchemaValue) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _short(name: str) -> str:
    """``CourseStep`` of ``orchestrator__results__course__Step``, as pydantic calls types whose names are the same."""
    *_, module, kind = ["", *name.split("__")]
    return f"{module.title().replace('_', '')}{kind}"


def _ref(name: str) -> JsonSchemaValue:
    return {"$ref": f"#/$defs/{name}"}


def _clean(part: Any) -> Any:
    """Without titles made of names, without defaults (whatever is printed is there), with short names, and null beside a type in a word."""
    if isinstance(part, list):
        return [_clean(item) for item in part]
    if not isinstance(part, dict):
        return part
    found: dict[str, Any] = {}
    for name, item in part.items():
        if name in _MAPS_OF_SCHEMAS:
            found[name] = {key: _clean(value) for key, value in item.items()}
        elif name == "$ref":
            found[name] = _ref(_short(_name(part)))["$ref"]
        elif name not in ("title", "default"):
            found[name] = item if name in _DATA else _clean(item)
    return _nullable(found)


def _nullable(part: dict[str, Any]) -> dict[str, Any]:
    either = part.get("anyOf", [])
    if len(either) != 2 or either[1] != {"type": "null"} or not isinstance(either[0].get("type"), str) or "enum" in either[0]:
        return part
    return {**{name: item for name, item in part.items() if name != "anyOf"}, **either[0], "type": [either[0]["type"], "null"]}


if __name__ == "__main__":
    sys.stdout.write(written(schema()) + "\n")
