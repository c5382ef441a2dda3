"""Data classes to JSON's own types and back, strictly, for Python 3.9 without a library.

Annotations are read at run time by Python 3.9, so they use typing's spelling.
"""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, Type, TypeVar

__all__ = ["WireError", "from_json", "record", "to_json"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(frozen: bool) -> Any:
        """``dataclass(frozen=True)`` in a third of the time, which counts: each call of the agent makes all its types anew.

        Only ``__init__`` is compiled for each class; the rest is shared. That nothing is assigned to is the type checker's to see.
        """

        def make(kind: Type[T]) -> Type[T]:
            made = dataclasses.dataclass(eq=False, repr=False)(kind)
            made.__eq__, made.__hash__, made.__repr__ = _equal, _hash, _show
            return made

        return make


def _equal(one: Any, other: Any) -> Any:
    return vars(one) == vars(other) if type(one) is type(other) else NotImplemented


def _hash(one: Any) -> int:
    return hash((type(one), *vars(one).values()))


def _show(one: Any) -> str:
    return f"{type(one).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(one).items())})"


class WireError(ValueError):
    """What arrived does not fit the type it should be; the message gives the path to the field."""


def to_json(value: Any) -> Any:
    """Return `value` as JSON's own types (data classes become objects, by field name)."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_json(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(kind: Type[T], data: Any, path: str = "") -> T:
    """Build a `kind` from JSON's own types.

    Raises:
        WireError: a field is missing, unknown or of another type.
    """
    return typing.cast(T, _decode(kind, data, path or kind.__name__))


def _decode(kind: Any, data: Any, path: str) -> Any:
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if origin is typing.Union:
        inner = [item for item in typing.get_args(kind) if item is not type(None)]
        return None if data is None else _decode(inner[0], data, path)
    if origin is list:
        _expect(isinstance(data, list), path, "a list", data)
        return [_decode(typing.get_args(kind)[0], item, f"{path}[{index}]") for index, item in enumerate(data)]
    if origin is dict:
        _expect(isinstance(data, dict), path, "an object", data)
        return {key: _decode(typing.get_args(kind)[1], item, f"{path}.{key}") for key, item in data.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(isinstance(data, kind) and not (kind is int and isinstance(data, bool)), path, kind.__name__, data)
    return data


def _decode_dataclass(kind: Any, data: Any, path: str) -> Any:
    _expect(isinstance(data, dict), path, "an object", data)
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise WireError(f"{path}: unknown field {unknown[0]!r}")
    values = {name: _decode(hints[name], item, f"{path}.{name}") for name, item in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"{path}: {error}") from None


def _expect(holds: bool, path: str, wanted: str, data: Any) -> None:
    if not holds:
        raise WireError(f"{path}: expected {wanted}, got {type(data).__name__}")
