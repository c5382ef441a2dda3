"""What the files declare, valid or not: checks across files need the names even where an entry has mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.config.mistakes import KeyPath, Mistake
from orchestrator.config.models import Backend, Host, Service
from orchestrator.config.routers import Router
from orchestrator.config.tuning import TuningProfile
from orchestrator.config.yaml_reader import Document

Model = TypeVar("Model", Host, Service, Backend, TuningProfile, Router)


@dataclass(frozen=True)
class Entry(Generic[Model]):
    """One declaration: `data` as read from `document` at `path`; `model` is None where it has mistakes."""

    document: Document
    path: KeyPath
    data: dict[str, Any]
    model: Model | None

    def text(self, *path: str | int) -> str | None:
        """The text at `path` below the entry, None where there is none."""
        value: Any = self.data
        for part in path:
            if isinstance(value, list) and isinstance(part, int):
                value = value[part] if part < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
        return value if isinstance(value, str) else None

    def report(self, path: KeyPath, message: str) -> None:
        self.document.report((*self.path, *path), message)


@dataclass
class Declared(Generic[Model]):
    """All declarations of one kind.

    `complete` is False when a file could not be read or an entry's name could not: then an unknown name may exist after all.
    """

    entries: dict[str, Entry[Model]] = field(default_factory=dict)
    documents: list[Document] = field(default_factory=list)
    complete: bool = True

    @property
    def models(self) -> dict[str, Model]:
        return {name: entry.model for name, entry in self.entries.items() if entry.model is not None}

    @property
    def mistakes(self) -> list[Mistake]:
        return [mistake for document in self.documents for mistake in document.mistakes]

    def lacks(self, name: str) -> bool:
        """Whether `name` is known not to be declared."""
        return self.complete and name not in self.entries
