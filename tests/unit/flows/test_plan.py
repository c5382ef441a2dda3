"""What a plan says in words of a shell, and what speaks against it."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.agent import wire
from orchestrator.flows.plan import command_line, masked, next_step_for, refusals, stop_commands
from tests.unit.flows.samples import BACKEND_DIFFERENCE, CANARY, DRIFT, OLD, OUR_DIFFERENCE

LAUNCH = wire.Launch(
    "L1", "glm5", "triton", "/opt/python", ["--model-path", "/models/a b"], "127.0.0.1", 30000,
    environment={"B": "2 $x", "A": "1"}, secrets={"api-key": CANARY},
)  # fmt: skip


def test_the_command_line_is_quoted_and_names_secrets_without_their_values() -> None:
    line = command_line(LAUNCH)
    assert line.startswith("env A=1 'B=2 $x' /opt/python -m sglang.launch_server --model-path '/models/a b'")
    assert "api-key" in line
    assert CANARY not in line
    assert CANARY not in repr(masked(LAUNCH))


def test_stopping_by_hand_names_every_member_and_the_deadlines() -> None:
    lines = stop_commands(OLD, wire.Policy(drain=30, grace=3))
    assert lines[0].startswith("kill -TERM 4242 ")
    assert "30 s" in lines[0]
    assert "3 s" in lines[0]
    assert lines[1].startswith("kill -KILL 4242 4243 ")


def test_stopping_a_unit_by_hand_begins_with_its_restart_setting() -> None:
    unit = dataclasses.replace(OLD, manager=wire.Manager(wire.ManagerKind.SYSTEMD_UNIT, "sglang.service"))
    assert "sglang.service" in stop_commands(unit, wire.Policy())[0]


REFUSE = wire.Verdict("gpu", wire.Outcome.REFUSE, "none")


@pytest.mark.parametrize(
    ("differences", "verdicts", "accept_drift", "force", "never", "expected"),
    [
        ([], [], False, False, (), 0),
        ([BACKEND_DIFFERENCE, OUR_DIFFERENCE], [], False, False, (), 0),
        ([DRIFT], [], False, False, (), 1),
        ([DRIFT], [], False, True, (), 1),
        ([DRIFT], [], True, False, (), 0),
        ([], [REFUSE], True, False, (), 1),
        ([], [REFUSE], False, True, (), 0),
        ([], [REFUSE], False, True, ("gpu",), 1),
        ([DRIFT], [REFUSE], False, False, (), 2),
        ([], [wire.Verdict("gpu", wire.Outcome.WARN, "so")], False, False, (), 0),
        ([], [wire.Verdict("gpu", wire.Outcome.UNKNOWN, "so")], False, False, (), 0),
    ],
)
def test_what_speaks_against_it(
    differences: list[wire.Difference],
    verdicts: list[wire.Verdict],
    accept_drift: bool,
    force: bool,
    never: tuple[str, ...],
    expected: int,
) -> None:
    reasons = refusals(differences, verdicts, accept_drift=accept_drift, force=force, never_forced=never)
    assert len(reasons) == expected


def test_after_a_refusal_comes_what_the_check_advises_or_the_flag_that_would_help() -> None:
    advised = wire.Verdict("gpu", wire.Outcome.REFUSE, "none", next_step="modprobe nvidia-uvm")
    assert next_step_for([], []) is None
    assert next_step_for([DRIFT], [REFUSE, advised]) == "modprobe nvidia-uvm"
    assert "--force" in str(next_step_for([DRIFT], [REFUSE]))
    assert "--accept-drift" in str(next_step_for([DRIFT], [REFUSE], {"gpu"}))
    assert next_step_for([BACKEND_DIFFERENCE], [REFUSE], {"gpu"}) is None


def test_each_kind_of_drift_is_sent_to_its_key_of_the_service() -> None:
    variable = wire.Difference("environment", "NCCL_DEBUG", "INFO", None, "drift")
    advice = str(next_step_for([DRIFT, variable, OUR_DIFFERENCE], []))
    assert "--mem-fraction-static under `arguments:` and NCCL_DEBUG under `environment:`" in advice
    assert "SPT_NOENV" not in advice
