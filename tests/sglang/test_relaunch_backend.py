"""From one real server to another with one argument changed, and what must not change anything."""

from __future__ import annotations

from pathlib import Path

from orchestrator.agent.wire import State
from tests.rig.commands import wait_for
from tests.rig.sglang import START_SECONDS, ContainerProcess, ServerByHand, generate
from tests.sglang.stage import SERVICE, Stage

COMES_BACK = {
    f"etc/systemd/system/{name}"
    for name in (
        f"orchestrator-{SERVICE}.service",
        f"orchestrator-{SERVICE}:log.service",
        f"multi-user.target.wants/orchestrator-{SERVICE}.service",
    )
}
"""What starts a verified server again after a crash or a reboot: all that a relaunch leaves outside of the state folder."""


def test_relaunch_changes_one_argument_of_a_server_started_by_hand(
    stage: Stage, by_hand: ContainerProcess, neighbour: ServerByHand
) -> None:
    before = stage.files() - COMES_BACK  # an earlier test's relaunch leaves these too

    answer = stage.operator.ask("relaunch", "--backend", "lpm", "--yes")

    answer.expect(0)
    result = answer.document["result"]
    assert result["state"] == State.DONE
    changed = [(item["name"], item["new"]) for item in answer.document["plan"]["differences"] if item["origin"] != "ours"]
    assert changed == [("--schedule-policy", "lpm")]
    assert stage.argument("schedule_policy") == "lpm"
    assert stage.loaded() != by_hand
    assert generate(stage.url, 4) == 4
    assert stage.files() - before == COMES_BACK
    assert before <= stage.files()
    assert (Path(answer.document["run"]) / "result.json").is_file()
    for timing in (result["baseline"], result["measured"]):
        assert timing["skipped"] is None
        assert timing["output_tokens"] == 32
        assert timing["tokens_per_second"] > 0


def test_plan_touches_nothing(stage: Stage, serving: ContainerProcess) -> None:
    answer = stage.operator.ask("relaunch", "--backend", "lof", "--plan")
    answer.expect(0)
    assert stage.loaded() == serving


def test_flag_that_the_parser_refuses_is_refused_with_nothing_touched(stage: Stage, serving: ContainerProcess) -> None:
    answer = stage.operator.ask("relaunch", "--backend", "unknown_flag", "--yes")

    answer.expect(3)
    assert "--no-such-flag" in str(answer.document["error"])
    assert stage.loaded() == serving
    assert generate(stage.url, 4) == 4


def test_relaunch_goes_on_when_the_fab_process_is_killed(stage: Stage, serving: ContainerProcess, neighbour: ServerByHand) -> None:
    known = len(stage.orders())
    with stage.operator.watching("relaunch", "--backend", "lof", "--yes", "--no-measure") as running:
        wait_for("the relaunch has the lock", lambda: len(stage.orders()) > known and State.LOCKED in stage.journal(), 60.0)
        running.kill()

    wait_for("the relaunch has ended", lambda: stage.journal()[-1] in State.FINAL, START_SECONDS, 0.5)

    assert stage.journal()[-1] == State.DONE
    assert stage.argument("schedule_policy") == "lof"
    assert stage.operator.ask("status").document["report"]["health"] == "serving"
