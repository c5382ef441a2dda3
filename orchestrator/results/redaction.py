"""Keeping secret values out of everything that is shown or kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "********"


class Redactor:
    """Replaces known secret values in text and in JSON data, also where ``repr`` or JSON has escaped them."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, values: Iterable[str]) -> None:
        """Hide these from now on. Empty values are ignored: they would match everywhere."""
        for value in values:
            self._values |= {form for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1]) if form}

    def text(self, text: str) -> str:
        """Return `text` without secret values; the longest go first, since one may contain another."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, MASK)
        return text

    def data(self, data: Any) -> Any:
        """Return JSON data (keys too) without secret values."""
        if not self._values:
            return data
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self.text(str(key)): self.data(item) for key, item in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.data(item) for item in data]
        return data
