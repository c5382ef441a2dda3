"""`fab sweep` over the lab's real SSH and processes: a backend that fails, an operator's process that is killed, both ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import read_journal
from orchestrator.lab import control
from orchestrator.lab.layout import Layout
from orchestrator.results.sweep_journal import read_records
from orchestrator.results.sweep_records import Ordered
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, Operator, serve, serving, state
from tests.rig.documents import checked

TIMING = ("--batch", "1", "--input", "16", "--output", "24", "--repeats", "2")
SWEEP = ("sweep", "--sequential", "--yes", "--json", *TIMING)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A lab whose stand-in loads fast and decodes at each backend's own speed."""
    folder = tmp_path_factory.mktemp("sweep") / "lab"
    try:
        control.up(folder)
        layout = Layout.of(folder)
        path = layout.inventory / "services" / "glm5-rtx6000.yml"
        service = yaml.safe_load(path.read_text())
        service["policy"].update(generations=1)
        service["arguments"]["--tp-size"] = 1  # fewer processes to start
        path.write_text(yaml.safe_dump(service))
        settings = layout.python(QUICK).parent.parent / "standin.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "time_scale": 0.02}))
        yield layout
    finally:
        control.down(folder)


@pytest.fixture(scope="module")
def operator(layout: Layout, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    operator = Operator(layout, tmp_path_factory.mktemp("operator"))
    serve(operator, QUICK)
    return operator


def folders(operator: Operator, verb: str) -> list[Path]:
    return sorted(operator.runs.glob(f"*-{verb}-{QUICK}-*"))


def begun(operator: Operator, step: int) -> Ordered | None:
    """The order of a step, once it is in the journal of the newest sweep."""
    journals = [path for folder in folders(operator, "sweep") for path in folder.glob("sweep.jsonl")]
    records = read_records(journals[-1]) if journals else []
    return next((record for record in records if isinstance(record, Ordered) and record.step == step), None)


def argument(layout: Layout, flag: str) -> str | None:
    (server,) = serving(layout)
    words = server.main.arguments
    return words[words.index(flag) + 1] if flag in words else None


@pytest.fixture(scope="module")
def cut_off(operator: Operator) -> str:
    """A sweep whose process was killed while the box was at work on the second of its three points; the order's id."""
    process = subprocess.Popen(
        operator.command(*SWEEP, "--backends", "flashinfer_cutlass,flashinfer_cutedsl,marlin"),
        env=operator.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = state(operator.layout)
    try:
        assert wait_until(lambda: begun(operator, 1) is not None, Deadline(PATIENCE), 0.02)
        order = begun(operator, 1)
        assert order is not None
        journal = folder.order_folder(order.order_id) / "journal.jsonl"
        assert wait_until(lambda: any(entry.state == "DRAINING" for entry in read_journal(journal)), Deadline(PATIENCE), 0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return order.order_id


def test_a_sweep_that_was_killed_goes_on_and_ends_on_the_best(operator: Operator, cut_off: str) -> None:
    before = time.time()
    done = operator.run("sweep", "--resume", "--yes", "--json")
    assert done.returncode == 6, done.stderr + done.stdout
    document = checked(done.stdout)

    first, failed, best = document["points"]
    assert [point["launches"] for point in (first, failed, best)] == [1, 1, 1]
    assert [point["timed"] for point in (first, failed, best)] == [1, 0, 1]
    assert "[kernel_missing]" in failed["troubles"][0]
    assert best["batches"][0]["to_first"]["finding"] == "faster"
    assert (document["choice"]["best"], document["serves"]["point"], document["end"]) == (2, 2, None)

    assert argument(operator.layout, "--moe-runner-backend") == "marlin"
    orders = [entry["launch"] or entry["end"] for entry in document["steps"]]
    assert [order["state"] for order in orders] == ["DONE", "RESTORED", "DONE"]
    assert begun(operator, 1) is not None
    assert state(operator.layout).order_ids().count(cut_off) == 1, "the order was watched to its end, not made again"
    (sweep,) = folders(operator, "sweep")
    assert {"sweep.json", "sweep.jsonl", "run.json"} <= {path.name for path in sweep.iterdir()}
    assert len(folders(operator, "relaunch")) == 3
    assert len(folders(operator, "measure")) == 2
    watched = operator.runs / orders[1]["run"]
    assert {"journal.jsonl", "result.json", "server.log"} <= {path.name for path in watched.iterdir()}
    first_run = operator.runs / orders[0]["run"] / "result.json"
    assert first_run.stat().st_mtime < before, "what was finished was not done again"

    again = operator.run("sweep", "--resume", sweep.name)
    assert again.returncode == 2
    assert "has finished" in again.stderr


def test_an_argument_is_swept_and_what_served_before_is_put_back(operator: Operator, cut_off: str) -> None:
    assert argument(operator.layout, "--max-running-requests") is None
    runner = argument(operator.layout, "--moe-runner-backend")
    done = operator.run(*SWEEP, "--backends", "flashinfer_cutlass", "--set", "max-running-requests=8", "--restore")
    assert done.returncode == 0, done.stderr + done.stdout
    document = checked(done.stdout)
    assert document["points"][0]["point"]["arguments"] == {"--max-running-requests": 8}
    assert (document["serves"]["at_start"], document["end"]["state"]) == (True, "DONE")
    plan = plan_of(operator.runs / document["steps"][0]["launch"]["run"])
    assert {item["name"]: item["origin"] for item in plan["differences"] if item["origin"] != "ours"} == {
        "--max-running-requests": "sweep",
        "--moe-runner-backend": "backend",
    }
    assert argument(operator.layout, "--max-running-requests") is None
    assert argument(operator.layout, "--moe-runner-backend") == runner


def plan_of(run: Path) -> Any:
    return json.loads((run / "plan.json").read_text(encoding="utf-8"))
