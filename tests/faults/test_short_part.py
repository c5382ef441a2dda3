"""Orders that something is done to: each ends in a server that serves and is verified, or in a journal that says truthfully what is."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.faults.cases import Row
from tests.faults.report import line_of
from tests.faults.short_part import short_cases

CASES = short_cases(Path("/nowhere"))
PATIENCE = 280.0


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_it_ends_as_its_journal_says(rows: Mapping[str, Future[Row]], name: str) -> None:
    row = rows[name].result(PATIENCE)
    assert row.good, line_of(row)
