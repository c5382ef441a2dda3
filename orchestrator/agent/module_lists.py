"""Long lists of a model's modules, such as those that a quantization leaves alone, told in fewer words. Pure."""

import re
from typing import Dict, FrozenSet, List, Sequence, Tuple, Union

_NUMBER = re.compile(r"(\d+)")
_GLOB = re.compile(r"[*?\[]")

Part = Union[str, FrozenSet[str]]


def condensed(names: Sequence[str]) -> List[str]:
    """The same modules by fewer entries: names that differ in their numbers become one ``re:`` expression, as compressed-tensors has them.

    A name means itself, what lies within it and what ends with it (``.NAME.`` found in ``.MODULE.``), which the expression says too.
    Entries that are patterns already stay as they are.
    """
    plain = [name for name in dict.fromkeys(names) if not name.startswith("re:") and not _GLOB.search(name)]
    others = [name for name in dict.fromkeys(names) if name not in set(plain)]
    by_shape: Dict[Tuple[str, ...], List[Tuple[Part, ...]]] = {}
    for name in plain:
        pieces = _NUMBER.split(name)  # text, number, text, ...
        parts = tuple(frozenset([piece]) if index % 2 else piece for index, piece in enumerate(pieces))
        by_shape.setdefault(tuple(pieces[::2]), []).append(parts)
    merged = [parts for found in by_shape.values() for parts in _merged(found)]
    return [*others, *(_entry(parts) for parts in merged)]


def _merged(names: List[Tuple[Part, ...]]) -> List[Tuple[Part, ...]]:
    """Names of one shape, those put together that differ in one number only; from the last number to the first."""
    found = names
    for slot in range(len(names[0]) - 2, 0, -2):
        by_rest: Dict[Tuple[Part, ...], FrozenSet[str]] = {}
        for parts in found:
            rest = (*parts[:slot], "", *parts[slot + 1 :])
            numbers = parts[slot]
            assert isinstance(numbers, frozenset)
            by_rest[rest] = by_rest.get(rest, frozenset()) | numbers
        found = [(*rest[:slot], numbers, *rest[slot + 1 :]) for rest, numbers in by_rest.items()]
    return found


def _entry(parts: Tuple[Part, ...]) -> str:
    if all(isinstance(part, str) or len(part) == 1 for part in parts):
        return "".join(part if isinstance(part, str) else next(iter(part)) for part in parts)
    text = "".join(re.escape(part) if isinstance(part, str) else _choice(part) for part in parts)
    return f"re:(?:.*\\.)?{text}(?:\\..*)?$"


def _choice(numbers: FrozenSet[str]) -> str:
    ordered = sorted(numbers, key=lambda number: (int(number), number))
    return ordered[0] if len(ordered) == 1 else f"(?:{'|'.join(ordered)})"
