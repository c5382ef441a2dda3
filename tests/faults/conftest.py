"""The short part of the campaign: its cases run on two boxes beside each other, and each test waits for its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.faults.cases import Campaign, Case, Row
from tests.faults.lane import Lane
from tests.faults.short_part import short_cases
from tests.rig.network import Bridge
from tests.rig.workspace import Workspace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the boxes too."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def rows(workspace: Workspace, bridge: Bridge) -> Iterator[Mapping[str, Future[Row]]]:
    """What each case of the short part comes to, by its name."""
    lanes = [Lane.start(workspace, bridge, f"short{number}") for number in range(2)]
    cases: list[Case] = short_cases(workspace.folder("operators"))
    campaign = Campaign(lanes)
    futures = dict(zip((case.name for case in cases), campaign.submit(cases), strict=True))
    campaign.start()
    yield futures
    campaign.join()
    for lane in lanes:
        lane.stop()
