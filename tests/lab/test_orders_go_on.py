"""Orders without their operator, or their supervisor: killed, interrupted, two at once, cut off; over the lab's real SSH and processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.agent import procfs
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import without_gate
from orchestrator.agent.journal import order_status, read_journal
from orchestrator.agent.state_folder import StateFolder
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, Operator, layout, operator, served, serving, state
from tests.rig import terminal
from tests.rig.documents import checked
from tests.rig.terminal import Terminal

__all__ = ["layout", "operator", "served"]

RELAUNCH = ("relaunch", "--sequential", "--no-measure", "--yes", "--force", "--backend")
"""Its states are the same whatever room this machine has. Staged ones: test_relaunch_staged.py."""


@contextmanager
def on_a_terminal(who: Operator, *words: str) -> Iterator[Terminal]:
    with terminal.on_a_terminal(who.command(*words), who.environment) as shown:
        yield shown


@contextmanager
def begun(who: Operator, backend: str, until: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A relaunch that has come to a state, and its order's id; the operator's process is ended with the block."""
    folder = state(who.layout)
    before = folder.order_ids()
    process = subprocess.Popen(
        who.command(*RELAUNCH, backend),
        env=who.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: len(folder.order_ids()) > len(before), Deadline(PATIENCE))
        order_id = folder.order_ids()[-1]
        wait_for_state(folder, order_id, until)
        yield process, order_id
    finally:
        process.kill()
        process.communicate()


def wait_for_state(folder: StateFolder, order_id: str, wanted: str) -> None:
    journal = folder.order_folder(order_id) / "journal.jsonl"
    assert wait_until(lambda: any(entry.state == wanted for entry in read_journal(journal)), Deadline(PATIENCE), 0.01), read_journal(
        journal
    )


def kill_supervisor(folder: StateFolder, order_id: str) -> None:
    path = os.fsencode(str(folder.order_folder(order_id)))
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and is_supervisor(int(name), path)]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)

    def cut_off() -> bool:
        status = order_status(folder, order_id)
        return status is not None and status.half_done

    assert wait_until(cut_off, Deadline(10))


def is_supervisor(pid: int, order_folder: bytes) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    process = procfs.read_process(pid)
    return words[-2:-1] == [order_folder] and process is not None and process.state not in "ZX"


@pytest.mark.slow
def test_after_the_operators_process_was_killed_attach_shows_the_end(served: Operator, tmp_path: Path) -> None:
    with begun(served, "flashinfer_cutlass", "DRAINING") as (process, order_id):
        process.send_signal(signal.SIGKILL)
        elsewhere = Operator(served.layout, tmp_path / "elsewhere")
        done = elsewhere.run("attach", "--json")
    document = checked(done.stdout)
    assert (done.returncode, document["result"]["order_id"], document["result"]["state"]) == (0, order_id, "DONE"), done.stderr
    for words in ("CHECKED", "DRAINING", "VERIFIED", "DONE"):
        assert words in done.stderr
    (run,) = elsewhere.runs.iterdir()
    assert {"order.json", "journal.jsonl", "events.jsonl", "result.json", "server.log"} <= {path.name for path in run.iterdir()}
    again = elsewhere.run("attach", "--order", order_id)
    assert (again.returncode, "has ended" in " ".join(again.stdout.split())) == (0, True)
    assert elsewhere.run("attach", "--order", "20200101T000000Z-0000").returncode == 3


@pytest.mark.slow
def test_ctrl_c_without_a_terminal_leaves_it_running(served: Operator) -> None:
    with begun(served, "auto", "DRAINING") as (process, order_id):
        interrupted = time.monotonic()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=10)
        assert time.monotonic() - interrupted < 2.0
        assert process.returncode == 130
        assert f"fab attach --host {QUICK} --service glm5-rtx6000 --order {order_id}" in said
    assert served.run("attach", "--order", order_id).returncode == 0
    assert len(serving(served.layout)) == 1


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_asks_once_and_stops_it_safely(served: Operator) -> None:
    (before,) = serving(served.layout)
    with on_a_terminal(served, *RELAUNCH, "marlin") as shown:
        shown.wait_for("LOADING")
        shown.interrupt()
        assert shown.wait_for("left half-done? No leaves it running [y/N]") < 1.0
        shown.type("y\n")
        shown.wait_for("stops safely")
        assert shown.exit_code() == 6
        assert "RESTORED" in shown.text
    (after,) = serving(served.layout)
    assert without_gate(after.main.arguments) == without_gate(before.main.arguments)


@pytest.mark.slow
def test_a_second_ctrl_c_on_a_terminal_leaves_it_running(served: Operator) -> None:
    with on_a_terminal(served, *RELAUNCH, "marlin") as shown:
        shown.wait_for("DRAINING")
        shown.interrupt()
        shown.wait_for("[y/N]")
        shown.interrupt()
        assert shown.exit_code() == 130
        assert "goes on in" in shown.text
    assert served.run("attach").returncode == 0


@pytest.mark.slow
def test_a_terminal_that_is_closed_at_the_question_leaves_it_running(served: Operator) -> None:
    folder = state(served.layout)
    with on_a_terminal(served, *RELAUNCH, "flashinfer_cutlass") as shown:
        shown.wait_for("DRAINING")
        shown.interrupt()
        shown.wait_for("[y/N]")
        shown.close()
        assert shown.process.wait(PATIENCE) == 128 + signal.SIGHUP
    order_id = folder.order_ids()[-1]
    (run,) = served.runs.glob("*-relaunch-*")
    told = json.loads((run / "error.json").read_text())
    assert (told["category"], told["exit_code"]) == ("interrupted", 128 + signal.SIGHUP)
    assert f"the relaunch {order_id} goes on in {QUICK}" in told["message"]
    assert told["evidence"] == ["stopped by SIGHUP: the terminal has gone"]
    attached = served.run("attach", "--order", order_id)
    assert attached.returncode == 0, attached.stderr
    states = [entry.state for entry in read_journal(folder.order_folder(order_id) / "journal.jsonl")]
    assert states[-1] == "DONE"
    assert states == list(dict.fromkeys(states)), "nobody has asked it to stop"
    locks = served.ask("lock.status")["lock"]
    assert (locks["person"], locks["order"]["live"]) == (None, False)
    assert served.ask("status")["report"]["server"]["backend"] == "flashinfer_cutlass"


@pytest.mark.slow
def test_a_second_operator_is_told_whose_it_is_and_may_wait(served: Operator) -> None:
    with begun(served, "flashinfer_cutlass", "CHECKED") as (first, order_id), ThreadPoolExecutor(2) as both:
        waits = both.submit(served.run, *RELAUNCH, "auto", "--wait", "60")
        is_refused = both.submit(served.run, *RELAUNCH, "auto")
        waited, refused = waits.result(), is_refused.result()
        assert first.wait(PATIENCE) == 0
    assert refused.returncode == 5
    assert f"order {order_id} is at work on glm5-rtx6000: relaunch by" in " ".join(refused.stderr.split())
    assert waited.returncode == 0, waited.stderr
    assert "waiting for up to" in waited.stdout
    assert served.ask("status")["report"]["server"]["backend"] == "auto"


@pytest.mark.slow
def test_an_order_whose_supervisor_was_killed_is_resumed(served: Operator) -> None:
    folder = state(served.layout)
    with begun(served, "flashinfer_cutlass", "LOADING") as (process, order_id):
        kill_supervisor(folder, order_id)
        assert process.wait(PATIENCE) == 7
    status = served.run("status")
    assert "half-done" in status.stdout
    assert served.run("lock.acquire", "-m", "look at it").returncode == 5
    planned = served.run(*RELAUNCH, "auto", "--plan")
    assert (planned.returncode, "is brought to its end" in " ".join(planned.stdout.split())) == (0, True)

    done = served.run("resume", "--json")

    result = checked(done.stdout)["result"]
    assert (done.returncode, result["order_id"], result["state"]) == (0, order_id, "DONE"), done.stderr
    assert served.ask("status")["report"]["order"]["resumed"] == 1
    assert served.run("resume").returncode == 3


@pytest.mark.slow
def test_a_relaunch_resumes_by_itself_what_was_cut_off_before(served: Operator) -> None:
    folder = state(served.layout)
    with begun(served, "marlin", "STARTING") as (_, order_id):
        kill_supervisor(folder, order_id)
    done = served.run(*RELAUNCH, "auto")
    assert done.returncode == 0, done.stderr + done.stdout
    text = " ".join(done.stdout.split())
    assert f"relaunch {order_id} has come to its end: DONE; looking afresh" in text
    first, second = (order_status(folder, name) for name in folder.order_ids()[-2:])
    assert first is not None
    assert second is not None
    assert (first.order_id, first.state, second.state) == (order_id, "DONE", "DONE")
    assert [server.launch_id for server in serving(served.layout)] == [folder.verified_launch_id()]


@pytest.mark.slow
def test_a_persons_lock_keeps_everybody_away_until_it_is_released(served: Operator) -> None:
    assert served.run("lock.acquire", "-m", "new firmware").returncode == 0
    try:
        refused = served.run(*RELAUNCH, "flashinfer_cutlass", "--wait", "60")
        status = served.run("status")
        second = served.run("lock.acquire", "-m", "me too")
        planned = served.run(*RELAUNCH, "flashinfer_cutlass", "--plan")
    finally:
        released = served.run("lock.release")
    assert [refused.returncode, second.returncode, planned.returncode, released.returncode] == [5, 5, 0, 0]
    for said in (refused.stderr, status.stdout):
        assert re.search(r"glm5-rtx6000 is locked by \S+@\S+ since .* UTC: new firmware", " ".join(said.split()))
    assert "free again" in released.stdout
    assert served.run(*RELAUNCH, "flashinfer_cutlass").returncode == 0
