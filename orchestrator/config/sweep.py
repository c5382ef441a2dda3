"""What a sweep tries, as a file may say it (``inventory/sweeps/NAME.yml``): a grid, or a list of points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from orchestrator.config import fields
from orchestrator.config.inventory import Inventory
from orchestrator.config.mistakes import KeyPath, did_you_mean
from orchestrator.config.models import Arguments, Count, NonEmpty, StrictModel
from orchestrator.config.validation import validated
from orchestrator.config.yaml_reader import Document, read_file
from orchestrator.errors import ConfigError, UsageError

FOLDER = "sweeps"

LEAST_OUTPUT = 8
"""Tokens: with fewer a time per token tells nothing."""


class GridModel(StrictModel):
    """Every backend with every combination of values. Without backends: the service's own."""

    backends: list[NonEmpty] = Field(default_factory=list)
    """Backend profiles, joined by ``+`` with overlays."""
    arguments: dict[fields.FlagName, Annotated[list[fields.ArgumentValue], Field(min_length=1)]] = Field(default_factory=dict)
    """Exact long flags, each with the values to try."""

    @model_validator(mode="after")
    def _tries_something(self) -> Self:
        if not self.backends and not self.arguments:
            raise ValueError("needs backends or arguments")
        return self


class PointModel(StrictModel):
    """One point; without a backend it has the service's own."""

    backend: NonEmpty | None = None
    """Backend profiles, joined by ``+``."""
    arguments: Arguments = Field(default_factory=dict)
    """Exact long flags, laid over the service and the profile."""


class TimingModel(StrictModel):
    """How each launch is timed, as `fab measure` is told by its flags."""

    batch: Annotated[list[Count], Field(min_length=1)] = Field(default_factory=lambda: [1, 4, 16])
    """Batch sizes."""
    input: Count = 256
    """Tokens of each prompt."""
    output: Annotated[int, Field(ge=LEAST_OUTPUT)] = 256
    """Tokens of each answer."""
    repeats: Count = 6
    """Repeats of each batch size."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Of the sampling; 0 is greedy."""
    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 900.0
    """Seconds for one timing."""


class SweepModel(StrictModel):
    """A sweep's file: `grid` or `points`."""

    name: fields.Name
    """For people; ``--file`` is given the file's name."""
    summary: NonEmpty
    """What it is for, in one line."""
    grid: GridModel | None = None
    """Every backend with every combination of values; this or `points`."""
    points: list[PointModel] = Field(default_factory=list)
    """Single points; this or `grid`."""
    rounds: Count = 1
    """How often all points are gone through, forth and back."""
    timing: TimingModel = TimingModel()
    """How each launch is timed."""
    best_at: Count | None = None
    """The batch size by which the best point is told; left out, the first one."""
    restore: bool = False
    """Whether it ends on what served at the beginning instead of on the best point."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.grid is None) == (not self.points):
            raise ValueError("needs either grid or points")
        if self.best_at is not None and self.best_at not in self.timing.batch:
            raise ValueError(f"best_at: {self.best_at} is not among timing.batch, {', '.join(map(str, self.timing.batch))}")
        return self


def load_sweep(name: str, inventory: Inventory) -> SweepModel:
    """Read a sweep's file: a path, or a name of the inventory's ``sweeps/``.

    Raises:
        ConfigError: with one line of evidence for each mistake in it.
    """
    path = Path(name).expanduser()
    named = inventory.directory / FOLDER / f"{name}.yml"
    document = read_file(named if not path.is_file() and named.is_file() else path, inventory.directory)
    model = None if document.data is None else validated(SweepModel, document.data, document)
    if isinstance(document.data, dict):
        _check_backends(document, document.data, inventory)
    if document.mistakes or model is None:
        count = "1 mistake" if len(document.mistakes) == 1 else f"{len(document.mistakes)} mistakes"
        lines = [str(mistake) for mistake in sorted(document.mistakes, key=lambda mistake: mistake.line)]
        raise ConfigError(f"{count} in the sweep {document.file}", evidence=lines, next_step=f"edit {document.file}", see=["sweep"])
    return model


def grid_of(backends: list[str], arguments: dict[str, list[Any]]) -> GridModel:
    """A grid that was given on the command line.

    Raises:
        UsageError: with one line of evidence for each mistake in it.
    """
    document = Document("--set")
    model = validated(GridModel, {"backends": backends, "arguments": arguments}, document)
    if model is None:
        lines = [mistake.message for mistake in document.mistakes]
        step = "--set FLAG=VALUE,VALUE, such as max-running-requests=32,64"
        raise UsageError("these are no values to try", evidence=lines, next_step=step, see=["sweep"])
    return model


def _check_backends(document: Document, data: dict[str, Any], inventory: Inventory) -> None:
    for path, names in _named(data):
        for name in names.split("+"):
            if name.strip() not in inventory.backends:
                document.report(path, f"there is no backend profile {name.strip()!r}; {did_you_mean(name, list(inventory.backends))}")


def _named(data: dict[str, Any]) -> list[tuple[KeyPath, str]]:
    """Where the file names backends, whatever else is wrong with it."""
    grid, points = data.get("grid"), data.get("points")
    backends = grid.get("backends") if isinstance(grid, dict) else None
    listed: list[tuple[KeyPath, Any]] = [
        (("grid", "backends", index), name) for index, name in enumerate(backends if isinstance(backends, list) else [])
    ]
    for index, point in enumerate(points if isinstance(points, list) else []):
        if isinstance(point, dict):
            listed.append((("points", index, "backend"), point.get("backend")))
    return [(path, name) for path, name in listed if isinstance(name, str)]
