"""`fab relaunch` whole, over the lab's real SSH server and real processes; only SGLang and the GPUs are stand-ins."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import without_gate
from orchestrator.agent.journal import order_status, read_journal
from orchestrator.agent.processes import Server, find_servers, read_environment
from orchestrator.agent.state_folder import StateFolder
from orchestrator.lab import control
from orchestrator.lab.layout import Layout

TIMED = "lab-b200"
"""Here the stand-in decodes at the speeds that the lab sets."""
QUICK = "lab-rtx6000"
"""Here it decodes as fast as it can: what is tested isn't the timing."""
SECRET = "canary-7Qx$%v/hunter2"
PATIENCE = 90.0


class Operator:
    """Somebody with the lab's inventory and the console program."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout = layout
        self.runs = folder / "runs"
        self.environment = {
            **os.environ,
            "ORCHESTRATOR_INVENTORY": str(layout.inventory),
            "ORCHESTRATOR_RUNS": str(self.runs),
            "LAB_API_KEY": SECRET,
            "NO_COLOR": "1",
        }

    def command(self, *words: str, host: str = QUICK) -> list[str]:
        return [sys.executable, "-m", "orchestrator", *words, "--host", host]

    def run(self, *words: str, host: str = QUICK) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, host=host), env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def ask(self, *words: str, host: str = QUICK) -> Any:
        done = self.run(*words, "--json", host=host)
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)


def state(layout: Layout, host: str = QUICK) -> StateFolder:
    return StateFolder(str(layout.state_root(host)), host.replace("lab", "glm5"))


def serving(layout: Layout, host: str = QUICK) -> list[Server]:
    """The servers of one lab host, told by their interpreter."""
    python = str(layout.python(host))
    return [server for server in find_servers() if server.main.arguments and server.main.arguments[0] == python]


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    folder = tmp_path_factory.mktemp("e2e") / "lab"
    try:
        control.up(folder)
        layout = Layout.of(folder)
        for path in (layout.inventory / "services").iterdir():
            service = yaml.safe_load(path.read_text())
            service["policy"].update(measure_repeats=2, measure_input_tokens=16, measure_output_tokens=16, generations=2)
            if service["host"] == TIMED:
                service["secrets"] = {"api-key": "env:LAB_API_KEY"}
            path.write_text(yaml.safe_dump(service))
        for host, speed in ((TIMED, 0), (QUICK, 2000)):
            settings = layout.python(host).parent.parent / "standin.json"
            settings.write_text(json.dumps({**json.loads(settings.read_text()), "time_scale": 0.02, "tokens_per_second": speed}))
        yield layout
    finally:
        control.down(folder)


@pytest.fixture
def operator(layout: Layout, tmp_path: Path) -> Operator:
    return Operator(layout, tmp_path)


def serve(operator: Operator, host: str) -> None:
    """See to it that a server of ours with the backend auto is on the host."""
    if operator.ask("status", host=host)["report"]["server"] is None:
        done = operator.run("launch", "--backend", "auto", "--yes", host=host)
        assert done.returncode == 0, done.stderr + done.stdout


@pytest.fixture
def served(operator: Operator) -> Operator:
    serve(operator, QUICK)
    return operator


def every_text(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes().decode("utf-8", "replace")


def test_relaunch_times_both_servers_and_shows_no_secret_anywhere(operator: Operator) -> None:
    serve(operator, TIMED)
    done = operator.run("relaunch", "--backend", "flashinfer_cutedsl", "--yes", "--json", host=TIMED)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["state"] == "DONE"
    assert result["measured"]["tokens_per_second"] > 1.5 * result["baseline"]["tokens_per_second"]
    assert {verdict["check"]: verdict["outcome"] for verdict in result["verdicts"]}["fixed texts"] == "pass"
    report = operator.ask("status", host=TIMED)["report"]
    assert (report["health"], report["server"]["manager"]["kind"], report["order"]["state"]) == ("serving", "own_session", "DONE")

    shown = [done.stdout, done.stderr, json.dumps(report), operator.run("logs", host=TIMED).stdout]
    assert not [text for text in shown if SECRET in text]
    assert not [path for path, text in every_text(operator.runs) if SECRET in text]
    (server,) = serving(operator.layout, TIMED)
    for member in server.members:
        assert SECRET not in "\0".join(member.arguments)
        assert SECRET not in "\n".join((read_environment(member.pid) or {}).values())
    # SGLang itself writes its arguments, the key included, into its log.
    holding = {path: stat.S_IMODE(path.stat().st_mode) for path, text in every_text(state(operator.layout, TIMED).path) if SECRET in text}
    assert {path.name for path in holding} == {"launch.json", "config.yaml", "order.json", "previous.json", "server.log"}
    assert set(holding.values()) == {0o600}


def test_a_diagnosis_of_a_serving_host_stops_nothing_and_tells_its_sources(served: Operator) -> None:
    document = served.ask("doctor")
    sections = document["report"]["sections"]
    assert [section["heading"].split()[0] for section in sections] == ["host", "service"]
    found = [verdict for section in sections for verdict in section["verdicts"]]
    assert document["exit_code"] == 0, [verdict for verdict in found if verdict["outcome"] == "refuse"]
    assert [verdict for verdict in found if not verdict["source"]] == []
    assert [verdict for verdict in found if verdict["outcome"] != "pass" and not verdict["next_step"]] == []
    checks = [verdict["check"] for verdict in found]
    assert sorted(checks) == sorted(set(checks)), "asked twice and told twice"
    assert served.ask("status")["boot"] == {"host": QUICK, "persistence": None, "problem": None}


def test_killing_the_operators_process_changes_nothing_on_the_box(served: Operator) -> None:
    folder = state(served.layout)
    before = folder.order_ids()
    process = subprocess.Popen(
        served.command("relaunch", "--backend", "triton", "--no-measure", "--yes", "--force"),
        env=served.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: len(folder.order_ids()) > len(before), Deadline(PATIENCE))
        order_id = folder.order_ids()[-1]
        journal = folder.order_folder(order_id) / "journal.jsonl"
        assert wait_until(lambda: any(entry.state == "DRAINING" for entry in read_journal(journal)), Deadline(PATIENCE))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def is_done() -> bool:
        status = order_status(folder, order_id)
        return status is not None and not status.live and status.state in {"DONE", "RESTORED"}

    assert wait_until(is_done, Deadline(PATIENCE)), read_journal(journal)
    assert len(serving(served.layout)) == 1


def test_drift_is_refused_until_it_is_accepted(served: Operator) -> None:
    (before,) = serving(served.layout)
    path = served.layout.inventory / "services" / "glm5-rtx6000.yml"
    original = path.read_text()
    service = yaml.safe_load(original)
    service["arguments"]["--schedule-policy"] = "lof"
    path.write_text(yaml.safe_dump(service))
    try:
        done = served.run("relaunch", "--backend", "marlin", "--yes", "--no-measure")
        planned = served.run("relaunch", "--backend", "marlin", "--plan", "--accept-drift")
    finally:
        path.write_text(original)
    assert done.returncode == 3
    assert "--schedule-policy" in done.stdout + done.stderr
    assert planned.returncode == 0, planned.stderr
    (after,) = serving(served.layout)
    assert after.main.id == before.main.id


def test_a_second_relaunch_at_the_same_time_is_refused(served: Operator) -> None:
    folder = state(served.layout)
    before = folder.order_ids()
    first = subprocess.Popen(
        served.command("relaunch", "--backend", "auto", "--no-measure", "--yes", "--accept-drift", "--force"),
        env=served.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_until(lambda: len(folder.order_ids()) > len(before), Deadline(PATIENCE))
    second = served.run("relaunch", "--backend", "triton", "--no-measure", "--yes", "--accept-drift", "--force")
    assert first.wait(PATIENCE) == 0
    assert second.returncode == 5, second.stderr
    assert folder.order_ids()[-1] in second.stderr


def test_a_backend_that_fails_after_the_load_is_rolled_back(served: Operator) -> None:
    (before,) = serving(served.layout)
    done = served.run("relaunch", "--backend", "flashinfer_cutedsl", "--sequential", "--no-measure", "--yes", "--json")
    assert done.returncode == 6, done.stderr
    document = json.loads(done.stdout)
    result = document["result"]
    assert (result["state"], result["failure"]["category"]) == ("RESTORED", "kernel_missing")
    assert document["see"] == ["fab docs kernel_missing"]
    assert any("expects arch to be one of" in line for line in result["failure"]["evidence"])
    (after,) = serving(served.layout)
    assert without_gate(after.main.arguments) == without_gate(before.main.arguments)
    assert after.main.id != before.main.id
    assert served.ask("status")["report"]["health"] == "serving"


def test_teardown_leaves_nothing_behind_and_a_second_one_says_so(served: Operator) -> None:
    (server,) = serving(served.layout)
    done = served.run("teardown", "--yes", "--grace", "3")
    assert done.returncode == 0, done.stderr
    assert not serving(served.layout)
    for member in server.members:
        assert not Path(f"/proc/{member.pid}/exe").exists()
    again = served.run("teardown", "--yes")
    assert again.returncode == 0
    assert "nothing" in again.stdout + again.stderr
