"""Data classes to JSON's own types and back, strictly, for Python 3.9 without a library.

Annotations are read at run time by Python 3.9, so they use typing's spelling, and name nothing that comes later in its module.
"""

import threading
import typing
from typing import TYPE_CHECKING, Any, Callable, Dict, Type, TypeVar

__all__ = ["WireError", "field", "from_json", "record", "to_json"]

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import field
else:

    def record(frozen: bool) -> Any:
        """``dataclass(frozen=True)`` without importing :mod:`dataclasses`.

        That, with what it imports to look into code, would take longer than a short answer, and each call of the agent makes all its
        types anew. Whoever asks a record for its dataclass fields finds a whole data class (:class:`_Fields`). That nothing is assigned
        to is the type checker's to see.
        """

        def make(kind: Type[T]) -> Type[T]:
            kind.__record__ = {name: vars(kind).get(name, _REQUIRED) for name in getattr(kind, "__annotations__", {})}
            for name, default in kind.__record__.items():
                if isinstance(default, _Factory):
                    delattr(kind, name)
            kind.__init__, kind.__eq__, kind.__hash__, kind.__repr__ = _init, _equal, _hash, _show
            kind.__dataclass_fields__ = _Fields(kind)
            return kind

        return make

    def field(*, default_factory: Callable[[], Any]) -> Any:
        """A default that is made for each record anew."""
        return _Factory(default_factory)


_REQUIRED = object()
"""Stands for the default of a field that has none."""


class _Factory:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Fields:
    """``__dataclass_fields__`` of a record that nobody has asked for it yet; the first who does makes it a data class."""

    _lock = threading.RLock()

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __get__(self, one: Any, kind: Any) -> Any:
        import dataclasses

        with self._lock:
            if vars(self._kind)["__dataclass_fields__"] is self:
                for name, default in self._kind.__record__.items():
                    if isinstance(default, _Factory):
                        setattr(self._kind, name, dataclasses.field(default_factory=default.make))
                dataclasses.dataclass(init=False, eq=False, repr=False)(self._kind)
        return self._kind.__dataclass_fields__


def _init(one: Any, *values: Any, **named: Any) -> None:
    kind = type(one)
    defaults: Dict[str, Any] = kind.__record__
    if not values and named.keys() == defaults.keys():  # the usual case by far, and a survey makes thousands
        vars(one).update(named)
        return
    given = dict(zip(defaults, values))  # noqa: B905 - Python 3.9
    wrong = [name for name in named if name in given or name not in defaults]
    if wrong or len(values) > len(defaults):
        raise TypeError(f"{kind.__name__}() does not take {wrong[0] if wrong else f'{len(values)} values'}")
    given.update(named)
    own = vars(one)
    for name, default in defaults.items():
        value = given.get(name, default)
        if value is _REQUIRED:
            raise TypeError(f"{kind.__name__}() needs {name}")
        own[name] = value.make() if isinstance(value, _Factory) else value


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
    names = None if isinstance(value, type) else _field_names(type(value))
    if names is not None:
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def _field_names(kind: Any) -> Any:
    """The fields of a record or of another data class; None for what is neither."""
    names = getattr(kind, "__record__", None)
    return getattr(kind, "__dataclass_fields__", None) if names is None else names


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
    if _field_names(kind) is not None:
        return _decode_dataclass(kind, data, path)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    _expect(isinstance(data, kind) and not (kind is int and isinstance(data, bool)), path, kind.__name__, data)
    return data


def _decode_dataclass(kind: Any, data: Any, path: str) -> Any:
    _expect(isinstance(data, dict), path, "an object", data)
    hints = _hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise WireError(f"{path}: unknown field {unknown[0]!r}")
    values = {name: _decode(hints[name], item, f"{path}.{name}") for name, item in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"{path}: {error}") from None


def _hints(kind: Any) -> Dict[str, Any]:
    """The type of each field. They are text in the agent that is sent compiled."""
    known = vars(kind).get("__hints__")
    if known is None:
        known = getattr(kind, "__annotations__", {})  # a class without any has none before Python 3.10
        if any(isinstance(hint, str) for hint in known.values()):
            known = typing.get_type_hints(kind)
        kind.__hints__ = known
    return typing.cast(Dict[str, Any], known)


def _expect(holds: bool, path: str, wanted: str, data: Any) -> None:
    if not holds:
        raise WireError(f"{path}: expected {wanted}, got {type(data).__name__}")
