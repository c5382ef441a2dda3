"""Accounts of a decode step as a run folder keeps them: ``budget.json`` and ``profile.json``, written and read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.agent.codec import WireError, from_json
from orchestrator.agent.wire_budget import PROFILE_SCHEMA, SCHEMA, BudgetReport, ProfileReport
from orchestrator.results.account import BUDGET_FILE, PROFILE_FILE
from orchestrator.results.budget import Budgeted, budget_remarks, step_budget
from orchestrator.results.profile import Profiled

if TYPE_CHECKING:
    from orchestrator.results.floor import Floor
    from orchestrator.results.profile import RankProfile


def account_document(found: Budgeted | Profiled) -> dict[str, Any]:
    """Either of the two as data."""
    return budget_document(found) if isinstance(found, Budgeted) else profile_document(found)


def budget_document(found: Budgeted) -> dict[str, Any]:
    """The sums with what they are made of, as data: seconds."""
    steps = [
        {
            "batch_size": step.batch_size,
            "step": step.step,
            "floor": None if step.floor is None else step.floor.seconds,
            "floor_problem": step.floor_problem or None,
            "floor_inputs": None if step.floor is None else dataclasses.asdict(step.floor),
            "gemm": step.gemm,
            "all_reduce": None if step.all_reduce is None else step.reduced,
            "residual": step.residual,
            "remarks": budget_remarks(step),
        }
        for step in found.steps
    ]
    return {"steps": steps, "not_believed": list(found.doubts), "timed": dataclasses.asdict(found.timed)}


def profile_document(found: Profiled) -> dict[str, Any]:
    """Each rank's middle step as data: seconds."""
    ranks = [dataclasses.asdict(rank) for rank in found.ranks]
    return {"ranks": ranks, "not_believed": list(found.doubts), "report": dataclasses.asdict(found.report)}


def read_account(folder: Path) -> Budgeted | Profiled | None:
    """What a run folder has of a decode step's time; None where it has neither file.

    Raises:
        ValueError: it can't be understood; the message says why.
    """
    for name, schema, read in ((BUDGET_FILE, SCHEMA, _budgeted), (PROFILE_FILE, PROFILE_SCHEMA, _profiled)):
        try:
            data = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ValueError(f"{name}: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{name} is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != schema:
            raise ValueError(f"{name} has the schema {data.get('schema') if isinstance(data, dict) else None}, not {schema}")
        try:
            return read(data)
        except (KeyError, TypeError, ValueError, WireError) as error:
            raise ValueError(f"{name} can't be understood: {_first_line(error)}") from error
    return None


def _first_line(error: Exception) -> str:
    """pydantic's messages have several lines."""
    return (str(error) if not isinstance(error, KeyError) else f"{error} is missing").splitlines()[0]


def _budgeted(data: dict[str, Any]) -> Budgeted:
    timed = from_json(BudgetReport, data["timed"])
    steps = []
    for kept in data["steps"]:
        found = _floor(kept["floor_inputs"])
        step = step_budget(int(kept["batch_size"]), float(kept["step"]), timed, found, str(kept["floor_problem"] or ""))
        steps += [] if step is None else [step]
    return Budgeted(doubts=_texts(data["not_believed"]), timed=timed, steps=steps)


def _floor(data: Any) -> Floor | None:
    from pydantic import TypeAdapter

    from orchestrator.results.floor import Floor

    return None if data is None else TypeAdapter(Floor).validate_python(data)


def _profiled(data: dict[str, Any]) -> Profiled:
    from pydantic import TypeAdapter

    from orchestrator.results.profile import RankProfile

    ranks: list[RankProfile] = TypeAdapter(list[RankProfile]).validate_python(data["ranks"])
    return Profiled(doubts=_texts(data["not_believed"]), report=from_json(ProfileReport, data["report"]), ranks=ranks)


def _texts(data: Any) -> list[str]:
    return [str(item) for item in data]
