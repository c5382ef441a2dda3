"""A real launch that fails, in each case with the previous server serving again at the end."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from orchestrator.agent.wire import State
from tests.rig.inventory import BY_SSH
from tests.rig.sglang import ContainerProcess, ServerByHand, generate
from tests.sglang.stage import Stage, describe_service, write_tiny_service

UNIT = "somebodys-sglang.service"


def test_bad_model_path_is_rolled_back(stage: Stage, serving: ContainerProcess, neighbour: ServerByHand, tmp_path: Path) -> None:
    before = stage.argument("schedule_policy")
    inventory = Path(shutil.copytree(stage.operator.inventory, tmp_path / "inventory"))
    write_tiny_service(inventory, describe_service(stage.service, BY_SSH) | {"model": "/srv/models/does-not-exist"})
    operator = dataclasses.replace(stage.operator, inventory=inventory)

    answer = operator.ask("relaunch", "--backend", "fcfs", "--yes", "--accept-drift", "--force", "--no-measure", "--sequential")

    answer.expect(6)
    assert answer.document["result"]["state"] == State.RESTORED
    assert "/srv/models/does-not-exist" in str(answer.document["result"]["failure"])
    assert stage.loaded() != serving
    assert stage.argument("model_path") == stage.service.model
    assert stage.argument("schedule_policy") == before
    assert generate(stage.url, 4) == 4


def test_refused_flag_is_rolled_back_to_somebodys_unit(stage: Stage, neighbour: ServerByHand) -> None:
    """With ``Restart=always`` on the unit: not started again while we work, and started again by systemd at the end."""
    old = stage.serving_as_unit(UNIT)

    answer = stage.operator.ask("relaunch", "--backend", "unknown_flag", "--yes", "--force", "--no-measure", "--sequential")

    answer.expect(6)
    assert "--no-such-flag" in str(answer.document["result"]["failure"])
    shown = stage.service.container.run("systemctl", "show", "--property=ActiveState,MainPID,Restart", UNIT).stdout
    assert set(shown.split()) == {"ActiveState=active", f"MainPID={stage.loaded().pid}", "Restart=always"}
    assert stage.loaded() != old
    assert generate(stage.url, 4) == 4
