"""Both hosts of the lab at once, by every verb that takes several: real SSH, real agents, a stand-in of SGLang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lab import control
from orchestrator.lab.layout import Layout
from tests.lab.test_relaunch_end_to_end import Operator, state
from tests.rig.documents import checked

BOTH = {"lab-b200", "lab-rtx6000"}


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("fleet") / "lab"
    try:
        control.up(folder, start_servers=True)
        yield Operator(Layout.of(folder), folder.parent)
    finally:
        control.down(folder)


def documents(operator: Operator, *words: str, code: int = 0, host: str = "all") -> dict[str, dict[str, Any]]:
    """One for each host."""
    done = operator.run(*words, "--json", host=host)
    assert done.returncode == code, done.stderr + done.stdout
    return {document["host"]: document for document in map(checked, done.stdout.splitlines())}


def test_status(operator: Operator) -> None:
    found = documents(operator, "status")
    assert {name: item["report"]["health"] for name, item in found.items()} == dict.fromkeys(BOTH, "serving")
    assert all(item["boot"]["problem"] is None for item in found.values())
    shown = operator.run("status", host=",".join(sorted(BOTH))).stdout
    assert "2 hosts: 2 serving" in shown


def test_preflight_tells_each_ones_plan_or_refusal(operator: Operator) -> None:
    found = documents(operator, "preflight", "--backend", "flashinfer_cutedsl", code=0, host="lab-b200,lab-b200")
    assert found["lab-b200"]["plan"]["verb"] == "relaunch"
    done = operator.run("preflight", "--backend", "flashinfer_cutedsl", host="all")
    assert done.returncode in (0, 3)
    assert "2 hosts: " in done.stdout.splitlines()[-1]


def test_doctor_looks_at_both(operator: Operator) -> None:
    done = operator.run("doctor", "--json", host="all")
    found = {document["host"]: document for document in map(checked, done.stdout.splitlines())}
    assert set(found) == BOTH
    assert all(item["report"]["sections"] for item in found.values())
    assert done.returncode == max(item["exit_code"] for item in found.values())


def test_a_lock_on_one_is_seen_among_both(operator: Operator) -> None:
    operator.ask("lock.acquire", "-m", "to be seen", host="lab-b200")
    try:
        found = documents(operator, "lock.status")
        assert found["lab-b200"]["lock"]["person"]["reason"] == "to be seen"
        assert found["lab-rtx6000"]["lock"]["person"] is None
        assert "1 locked" in operator.run("lock.status", host="all").stdout.splitlines()[-1]
    finally:
        operator.ask("lock.release", host="lab-b200")


def test_what_changes_one_service_takes_no_list_and_touches_nothing(operator: Operator) -> None:
    before = [len(list(Path(state(operator.layout, host).path).rglob("*"))) for host in BOTH]
    for words in (["relaunch", "--backend", "auto", "--yes"], ["teardown", "--yes"], ["rollback", "--yes"]):
        done = operator.run(*words, host="all")
        assert done.returncode == 2
        assert "one host at a time" in done.stderr
        assert "fab services" in done.stderr
    assert before == [len(list(Path(state(operator.layout, host).path).rglob("*"))) for host in BOTH]
