"""Every shipped runbook to its end, by the real program on the lab's hosts; only SGLang and the GPUs are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.journal import read_journal
from orchestrator.agent.state_folder import StateFolder
from orchestrator.lab import control
from orchestrator.lab.layout import Layout, read_ports
from orchestrator.results.runbook_record import FILE
from orchestrator.results.sweep_journal import read_records
from orchestrator.results.sweep_records import Ordered
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, TIMED, Operator, serving, state
from tests.rig.documents import checked
from tests.rig.keyboard import Reply, answer_steps

SPEED = {"drain": 5.0, "measure_repeats": 2, "measure_input_tokens": 16, "measure_output_tokens": 16, "generations": 2, "measure": False}
SHORT = ("--set", "batch=1")


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A lab with a server on each host that somebody started by hand."""
    folder = tmp_path_factory.mktemp("runbooks") / "lab"
    try:
        control.up(folder, start_servers=True)
        layout = Layout.of(folder)
        for path in (layout.inventory / "services").iterdir():
            service = yaml.safe_load(path.read_text())
            service["policy"].update(SPEED)
            service["arguments"]["--tp-size"] = 2  # fewer processes; the servers that were started by hand have 8
            path.write_text(yaml.safe_dump(service))
        for host in (TIMED, QUICK):
            settings = layout.python(host).parent.parent / "standin.json"
            settings.write_text(json.dumps({**json.loads(settings.read_text()), "time_scale": 0.02, "tokens_per_second": 2000}))
        yield layout
    finally:
        control.down(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def operator(layout: Layout, runs: Path) -> Operator:
    """One operator for all tests: a timing that one runbook keeps is what another compares with."""
    return Operator(layout, runs)


def run(operator: Operator, name: str, *words: str, host: str, code: int = 0) -> dict[str, Any]:
    """Run a runbook without asking; its document."""
    command = operator.command("runbook.run", name, "--yes", "--json", *words, host=host)
    done = subprocess.run(command, env=operator.environment, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    document = checked(done.stdout)
    assert isinstance(document, dict)
    assert done.returncode == code, (document.get("ended"), document.get("because"), document.get("steps", [])[-1:], done.stderr)
    return document


def verdicts(document: Mapping[str, Any]) -> dict[str, str]:
    return {step["step"]: step["verdict"] for step in document["steps"]}


def serve(operator: Operator, host: str, backend: str = "auto") -> None:
    """See to it that a verified launch of that backend serves."""
    server = operator.ask("status", host=host)["report"]["server"]
    if server is None or server["backend"] != backend or server["launch_id"] is None:
        words = ("launch",) if server is None else ("relaunch", "--no-measure", "--accept-drift")
        done = operator.run(*words, "--backend", backend, "--force", "--yes", host=host)
        assert done.returncode == 0, done.stderr + done.stdout


def describe_gpus(layout: Layout, host: str, **changes: int) -> None:
    path = layout.host(host) / "gpus.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def on_terminal(operator: Operator, words: list[str], answers: Mapping[str, Reply]) -> tuple[int, str]:
    """Run on a terminal of its own and answer each step's question; the exit code and all that was shown."""
    return answer_steps(words, operator.environment, answers, PATIENCE)


def recorded(operator: Operator, name: str) -> list[dict[str, Any]]:
    """The lines of the newest run of a runbook."""
    folder = sorted(path for path in operator.runs.iterdir() if f"-runbook.run-{name}-" in path.name)[-1]
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_adopt_a_server_on_a_terminal_leaves_the_server_as_it_is(operator: Operator, layout: Layout) -> None:
    (before,) = serving(layout, TIMED)
    ports = read_ports(layout)
    assert ports is not None
    inputs = ("--set", "name=glm5-b200", "--set", f"port={ports[TIMED].sglang}")
    code, shown = on_terminal(operator, operator.command("runbook.run", "adopt-a-server", *inputs, host=TIMED), {})
    assert code == 0, shown
    assert "adopt-a-server: done" in shown
    (after,) = serving(layout, TIMED)
    assert after.main.id == before.main.id
    answered = {line["step"]: line["answer"] for line in recorded(operator, "adopt-a-server") if line["event"] == "answered"}
    assert answered["whose"] == answered["secrets"] == "yes"
    assert "adopt" in answered, "the verb's own question is the step's one question"


def test_switch_backend_and_roll_back(operator: Operator) -> None:
    serve(operator, TIMED)
    switched = run(operator, "switch-backend", "--set", "backend=flashinfer_cutedsl", *SHORT, host=TIMED)
    assert verdicts(switched) == {"look": "done", "check": "done", "switch": "done", "serves": "holds", "timing": "done"}
    assert operator.ask("status", host=TIMED)["report"]["server"]["backend"] == "flashinfer_cutedsl"
    nothing = run(operator, "switch-backend", "--set", "backend=flashinfer_cutedsl", *SHORT, host=TIMED)
    assert (nothing["ended"], nothing["exit_code"], list(verdicts(nothing))) == ("done", 0, ["look"])

    back = run(operator, "roll-back", *SHORT, host=TIMED)
    assert verdicts(back)["back"] == "done"
    assert operator.ask("status", host=TIMED)["report"]["server"]["backend"] == "auto"


def test_backend_bakeoff_and_slow_decode(operator: Operator) -> None:
    serve(operator, TIMED)
    sides = ("--set", "backends=auto,flashinfer_cutedsl", "--set", "rounds=1")
    bakeoff = run(operator, "backend-bakeoff", *sides, *SHORT, host=TIMED)
    assert verdicts(bakeoff)["serves"] == "holds"
    swept = next(step["document"] for step in bakeoff["steps"] if step["step"] == "timed")
    assert swept["verb"] == "sweep"
    assert operator.ask("status", host=TIMED)["report"]["server"]["backend"] == "auto"

    measured = operator.run("measure", "--batch", "1", "--json", host=TIMED)
    good = json.loads(measured.stdout)["run"]
    slow = run(operator, "slow-decode", "--set", f"good={good}", *SHORT, "--done", "under-load,decide", host=TIMED)
    ended = verdicts(slow)
    assert (ended["before"], ended["under-load"], ended["tune"], ended["decide"]) == ("done", "done", "skipped", "done")
    assert ended["against-good-days"] in ("done", "not_believed")
    # Neither a model whose parts can be counted nor a profiler is here: these two are left, and it goes on.
    assert (ended["parts"], ended["trace"]) == ("refused", "refused")


def test_after_reboot_starts_what_the_services_file_says_where_nothing_is_remembered(operator: Operator, layout: Layout) -> None:
    if serving(layout, QUICK):
        assert operator.run("teardown", "--yes").returncode == 0
    ended = verdicts(run(operator, "after-reboot", host=QUICK))
    assert {ended["bring-back"], ended["start"]} == {"skipped", "done"}
    assert (ended["look"], ended["serves"]) == ("done", "holds")


def test_emergency_restart_of_a_server_that_hangs(operator: Operator, layout: Layout) -> None:
    serve(operator, QUICK)
    (hung,) = serving(layout, QUICK)
    for member in hung.members:
        os.kill(member.pid, signal.SIGSTOP)
    ended = verdicts(run(operator, "emergency-restart", "--set", "grace=1", host=QUICK))
    assert (ended["gpus-fit"], ended["stop"], ended["bring-back"], ended["serves"]) == ("holds", "done", "done", "holds")
    (new,) = serving(layout, QUICK)
    assert new.main.id != hung.main.id


def test_gpu_missing_on_a_terminal(operator: Operator, layout: Layout) -> None:
    serve(operator, QUICK)
    describe_gpus(layout, QUICK, count=7)

    def repair() -> str:
        describe_gpus(layout, QUICK, count=8)
        return "y"

    try:
        code, shown = on_terminal(operator, operator.command("runbook.run", "gpu-missing"), {"repair": repair})
    finally:
        describe_gpus(layout, QUICK, count=8)
    assert code == 0, shown
    ended = {line["step"]: line["verdict"] for line in recorded(operator, "gpu-missing") if line["event"] == "outcome"}
    assert (ended["diagnose"], ended["stop"], ended["there"], ended["bring-back"]) == ("refused", "done", "holds", "done")
    assert len(serving(layout, QUICK)) == 1


def test_cuda_init_fails_stops_at_a_cure_that_did_not_help_and_goes_on_after_one_that_did(operator: Operator, layout: Layout) -> None:
    assert operator.run("teardown", "--yes").returncode == 0
    describe_gpus(layout, QUICK, cu_init=999)
    manual = ("--done", "nodes,container,versions")
    try:
        failed = run(operator, "cuda-init-fails", *manual, host=QUICK, code=3)
        assert verdicts(failed)["works"] == "does_not_hold"
    finally:
        describe_gpus(layout, QUICK, cu_init=0)
    resumed = run(operator, "cuda-init-fails", "--resume", host=QUICK)
    assert list(verdicts(resumed)) == ["works", "nothing-else", "bring-back", "start", "serves"]
    assert verdicts(resumed)["serves"] == "holds"


def test_drain_for_maintenance_keeps_everybody_away_meanwhile(operator: Operator) -> None:
    serve(operator, QUICK)
    left = run(operator, "drain-for-maintenance", "--done", "router", host=QUICK, code=130)
    assert list(verdicts(left))[-1] == "empty"
    assert operator.run("launch", "--yes").returncode == 5, "it is locked"
    resumed = run(operator, "drain-for-maintenance", "--resume", "--done", "work,router-again", host=QUICK)
    ended = verdicts(resumed)
    assert (ended["work"], ended["release"], ended["bring-back"], ended["router-again"]) == ("done", "done", "done", "done")


def test_a_step_that_fails_shows_what_to_do_and_the_state_of_the_service(operator: Operator) -> None:
    serve(operator, QUICK)
    done = operator.run("runbook.run", "switch-backend", "--yes", "--set", "backend=flashinfer_cutedsl")
    assert done.returncode == 6, done.stderr + done.stdout
    text = " ".join(done.stdout.split())
    failing = text.partition("when it fails:")[2]
    assert "the previous server serves again" in failing
    assert "health serving" in failing
    assert "next: fab runbook.run switch-backend --resume" in failing


def wait_draining(folder: StateFolder, known: int) -> None:
    """Wait until the box is at work on an order beyond those that were `known`."""
    assert wait_until(lambda: len(folder.order_ids()) > known, Deadline(PATIENCE))
    journal = folder.order_folder(folder.order_ids()[-1]) / "journal.jsonl"
    assert wait_until(lambda: any(entry.state == "DRAINING" for entry in read_journal(journal)), Deadline(PATIENCE))


def test_a_runbook_that_was_killed_takes_its_change_up_again(operator: Operator, layout: Layout) -> None:
    serve(operator, TIMED)
    folder = state(layout, TIMED)
    before = folder.order_ids()
    words = operator.command("runbook.run", "switch-backend", "--yes", "--set", "backend=flashinfer_cutedsl", *SHORT, host=TIMED)
    process = subprocess.Popen(
        words, env=operator.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_draining(folder, len(before))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    resumed = run(operator, "switch-backend", "--resume", host=TIMED)
    assert list(verdicts(resumed)) == ["switch", "serves", "timing"]
    assert verdicts(resumed)["switch"] == "done"
    assert len(folder.order_ids()) == len(before) + 1, "the change was watched to its end, not made twice"


def test_a_bake_off_that_was_killed_takes_its_sweep_up_again(operator: Operator, layout: Layout) -> None:
    serve(operator, TIMED)
    folder = state(layout, TIMED)
    known, before = len(folder.order_ids()), set(operator.runs.glob("*-sweep-*"))
    inputs = ("--set", "backends=auto,flashinfer_cutedsl", "--set", "rounds=1", *SHORT)
    words = operator.command("runbook.run", "backend-bakeoff", "--yes", *inputs, host=TIMED)
    process = subprocess.Popen(
        words, env=operator.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_draining(folder, known)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    resumed = run(operator, "backend-bakeoff", "--resume", host=TIMED)
    assert verdicts(resumed) == {"timed": "done", "serves": "holds"}
    (swept,) = set(operator.runs.glob("*-sweep-*")) - before
    assert resumed["steps"][0]["run"] == str(swept), "the same sweep, not another"
    assert [order.step for order in orders(swept)] == sorted({order.step for order in orders(swept)}), "nothing was launched twice"


def orders(sweep: Path) -> list[Ordered]:
    """The orders of a sweep so far."""
    path = sweep / "sweep.jsonl"
    return [record for record in read_records(path) if isinstance(record, Ordered)] if path.exists() else []
