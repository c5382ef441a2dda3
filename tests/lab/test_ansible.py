"""The shipped playbooks run by the real ansible-core, over the lab's real SSH and processes; only SGLang and the GPUs are stand-ins."""

from __future__ import annotations

import copy
import shutil
import signal
import socket
from pathlib import Path

import pytest
import yaml

from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.command_lines import without_gate
from tests.lab.test_orders_go_on import wait_for_state
from tests.lab.test_relaunch_end_to_end import PATIENCE, QUICK, SECRET, TIMED, Operator, layout, operator, served, serving, state
from tests.rig.controller import Controller

__all__ = ["layout", "operator", "served"]

QUICKLY = ("-e", '{"measure": false}')


@pytest.fixture
def controller(served: Operator, tmp_path: Path) -> Controller:
    return Controller(tmp_path / "controller", served.layout.inventory, [QUICK], {"LAB_API_KEY": SECRET})


def other_backend(who: Operator) -> str:
    """A backend that works there and does not serve now."""
    (server,) = serving(who.layout)
    return "auto" if "marlin" in server.main.arguments else "marlin"


def test_a_check_is_the_programs_plan_and_touches_nothing(served: Operator, controller: Controller) -> None:
    (before,) = serving(served.layout)
    orders = state(served.layout).order_ids()
    backend = other_backend(served)

    played = controller.play("relaunch.yml", "--check", "-e", f"backend={backend}")

    result = played.one("ok")
    assert (result["changed"], result["exit_code"], result["state"]) == (True, 0, None)
    (diff,) = result["diff"]
    assert "--moe-runner-backend" in diff["before"]
    assert f"--moe-runner-backend: {backend}" in diff["after"]
    assert "ORCHESTRATOR_LAUNCH" not in diff["after"], "what differs at every launch is no difference"
    assert f"+argument --moe-runner-backend: {backend}" in played.output
    assert any("hard limits" in warning for warning in result["warnings"])
    (after,) = serving(served.layout)
    assert (after.main.id, state(served.layout).order_ids()) == (before.main.id, orders)


@pytest.mark.slow
def test_a_relaunch_changes_once_and_then_nothing(served: Operator, controller: Controller) -> None:
    backend = other_backend(served)

    first = controller.play("relaunch.yml", "-v", "-e", f"backend={backend}", "-e", "reason=firmware", *QUICKLY)
    (between,) = serving(served.layout)
    second = controller.play("relaunch.yml", "-e", f"backend={backend}", *QUICKLY)

    done = first.one("ok")
    assert (done["changed"], done["state"], done["failure_class"], done["attached_to"]) == (True, "DONE", None, None)
    assert done["service_state"]
    assert done["dark_seconds"] > 0
    assert Path(done["run"]).is_dir()
    assert any(f"<{QUICK}>" in line and "VERIFIED" in line for line in first.output.splitlines()), "-v shows the progress"
    order = served.ask("status")["report"]["order"]
    assert order["reason"] == f"Ansible: relaunch to {backend}; firmware"
    again = second.one("ok")
    assert (again["changed"], again["exit_code"], again["state"]) == (False, 0, None)
    assert "serves already" in again["msg"]
    (after,) = serving(served.layout)
    assert after.main.id == between.main.id


@pytest.mark.slow
def test_a_rollback_is_a_failure_with_its_class_its_evidence_and_what_serves(served: Operator, controller: Controller) -> None:
    (before,) = serving(served.layout)

    failed = controller.play("relaunch.yml", "-e", "backend=flashinfer_cutedsl", *QUICKLY).one("failed")

    assert (failed["exit_code"], failed["state"], failed["failure_class"]) == (6, "RESTORED", "kernel_missing")
    assert failed["changed"], "the server was started anew"
    assert "kernel_missing" in failed["msg"]
    assert any("expects arch to be one of" in line for line in failed["evidence"])
    assert f"orchestrator logs --host {QUICK}" in failed["next_step"]
    assert failed["service_state"] == "the previous server serves again"
    (after,) = serving(served.layout)
    assert without_gate(after.main.arguments) == without_gate(before.main.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_when_ansible_is_ended_the_change_goes_on_and_the_same_task_again_watches_it(
    number: signal.Signals, served: Operator, controller: Controller
) -> None:
    folder = state(served.layout)
    before = folder.order_ids()
    words = ("relaunch.yml", "-e", f"backend={other_backend(served)}", *QUICKLY)

    first = controller.start(*words)
    assert wait_until(lambda: len(folder.order_ids()) > len(before), Deadline(PATIENCE))
    order_id = folder.order_ids()[-1]
    wait_for_state(folder, order_id, "CHECKED")
    first.send_signal(number)
    output, _ = first.communicate(timeout=30)
    assert first.returncode not in (0, 2), output
    second = controller.play(*words).one("ok")

    assert second["changed"], "handlers of the run that was ended were never told"
    assert (second["attached_to"], second["result"]["order_id"], second["state"]) == (order_id, order_id, "DONE")
    assert folder.order_ids() == [*before, order_id], "no second order was made"


def test_a_person_s_lock_fails_with_the_holders_words(served: Operator, controller: Controller) -> None:
    assert served.run("lock.acquire", "-m", "new firmware").returncode == 0
    try:
        failed = controller.play("relaunch.yml", "-e", f"backend={other_backend(served)}", *QUICKLY).one("failed")
    finally:
        served.run("lock.release")
    assert (failed["exit_code"], failed["changed"], failed["attached_to"]) == (5, False, None)
    assert "new firmware" in failed["msg"]
    assert "orchestrator lock.release" in failed["next_step"]


def test_a_host_that_is_not_reached_is_unreachable_and_harms_no_other(served: Operator, tmp_path: Path) -> None:
    inventory = shutil.copytree(served.layout.inventory, tmp_path / "inventory")
    hosts = yaml.safe_load((inventory / "hosts.yml").read_text())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hosts["hosts"]["gone"] = copy.deepcopy(hosts["hosts"][QUICK]) | {"port": taken.getsockname()[1]}
    (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
    controller = Controller(tmp_path / "controller", inventory, ["gone", QUICK], {"LAB_API_KEY": SECRET})

    for playbook in ("doctor.yml", "prep.yml"):
        played = controller.play(playbook)
        found = {item.host: item for item in played.ours}
        assert {host: item.outcome for host, item in found.items()} == {"gone": "unreachable", QUICK: "ok"}, played.output
        assert played.exit_code == 4
        assert (found["gone"].result["exit_code"], found[QUICK].result["changed"]) == (4, False)
        assert "127.0.0.1" in found["gone"].result["msg"], "it says what was tried"


def test_a_diagnosis_changes_nothing_and_warns(controller: Controller) -> None:
    found = controller.play("doctor.yml").one("ok")
    assert (found["changed"], found["exit_code"]) == (False, 0)
    assert found["passed"] > 5
    limits = next(verdict for verdict in found["verdicts"] if verdict["check"] == "limits")
    assert (limits["outcome"], bool(limits["section"]), bool(limits["source"])) == ("warn", True, True)
    assert any("hard limits" in warning for warning in found["warnings"])


def test_what_a_diagnosis_refuses_is_a_failure(controller: Controller, served: Operator) -> None:
    failed = controller.play("doctor.yml", "-e", "backend=nonesuch").one("failed")
    assert failed["exit_code"] == 2
    assert "nonesuch" in failed["msg"]
    folder = served.layout.host(QUICK) / "sglang" / "lib"
    (module,) = folder.glob("python*/site-packages/deep_gemm.py")
    module.rename(module.with_suffix(".gone"))
    try:
        refused = controller.play("doctor.yml", "-e", "backend=deep_gemm").one("failed")
    finally:
        module.with_suffix(".gone").rename(module)
    assert refused["exit_code"] == 3
    assert "deep_gemm" in refused["msg"]
    assert not refused["changed"]


def test_a_profile_that_only_reads_changes_nothing(controller: Controller) -> None:
    prepared = controller.play("prep.yml").one("ok")
    assert (prepared["changed"], prepared["profile"], prepared["diff"]) == (False, "observe", [])
    assert {knob["outcome"] for knob in prepared["knobs"]} <= {"observed", "unavailable", "unknown"}


def test_secrets_reach_the_program_by_the_tasks_environment_and_nothing_else(operator: Operator, tmp_path: Path) -> None:
    controller = Controller(tmp_path / "controller", operator.layout.inventory, [TIMED])
    options = {"backend": "marlin"}

    without = controller.play(controller.task("relaunch", options), "--check").one("failed")
    task = controller.task("relaunch", options, environment={"LAB_API_KEY": SECRET})
    played = controller.play(task, "--check", "-vvvvv")

    assert without["exit_code"] == 2
    assert "LAB_API_KEY" in str(without["evidence"]) + without["msg"]
    played.one("ok")
    assert SECRET not in played.output
    assert SECRET not in str(played.results)


def test_what_can_not_be_had_is_told_before_anything_is_asked(controller: Controller) -> None:
    asynchronous = controller.play(controller.task("relaunch", {"backend": "marlin"}, **{"async": 60, "poll": 5})).one("failed")
    missing = controller.play(controller.task("doctor", {"executable": "/nonexistent/orchestrator"})).one("failed")
    misspelt = controller.play(controller.task("prep", {"persists": True})).one("failed")
    assert "async" in asynchronous["msg"]
    assert "/nonexistent/orchestrator" in missing["msg"]
    assert "persists" in misspelt["msg"]


def test_a_task_that_runs_out_of_time_ends_its_program_by_a_signal_that_it_may_answer(controller: Controller, tmp_path: Path) -> None:
    program, said = tmp_path / "orchestrator", tmp_path / "said"
    program.write_text(
        f"#!/bin/sh\ntrap 'echo leaving it to the box > {said}; exit 143' TERM\necho begun >&2\nwhile :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    task = controller.task("relaunch", {"backend": "marlin", "executable": str(program)}, timeout=4)
    failed = controller.play(task).one("failed")
    assert "timed out" in failed["msg"].lower()
    assert said.read_text() == "leaving it to the box\n"


def test_a_program_that_ends_without_an_answer_is_quoted(controller: Controller, tmp_path: Path) -> None:
    program = tmp_path / "orchestrator"
    program.write_text("#!/bin/sh\necho No module named pydantic >&2\nexit 1\n")
    program.chmod(0o755)
    failed = controller.play(controller.task("prep", {"executable": str(program)})).one("failed")
    assert (failed["exit_code"], failed["evidence"]) == (1, ["No module named pydantic"])
