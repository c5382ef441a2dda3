"""A larger roll: eight replicas behind SGLang's real router, under four requests a second.

Its servers are some thirty processes: that asks for more cores than CI's two, so it runs only with ``-m exhaustive``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.rolled_lab import GOOD, rolled_lab

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(1800)]


def test_eight_replicas_are_rolled_and_no_client_misses_one(tmp_path: Path) -> None:
    with rolled_lab(tmp_path, "sglang-router", (GOOD,) * 8) as lab:
        lab.asked_from(GOOD)
        with lab.load() as load:
            document = lab.ask("roll", "--backend", "flashinfer_cutlass", "--yes")
        assert load.failed == []
        assert [(item["state"], item["by"]) for item in document["replicas"]] == [("DONE", "supervisor")] * 8
        assert document["clean"] is True
        assert lab.router.serving() == set(lab.workers.values())
