"""Which launch a rollback goes to."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import wire
from orchestrator.agent.copies import copy_of, filled, require
from orchestrator.agent.known_launches import is_same, previous_launch, read_known, shown
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.scrub import launch_scrubber
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.wire_launches import KnownLaunch

SECRET = "canary-99-hunter2"
LAUNCH = wire.Launch(
    "a", "glm", "auto", "/py", ["--port", "1"], "127.0.0.1", 1, secrets={"api-key": SECRET}, environment={"HF_TOKEN": "tok-canary"}
)


def known(*rows: tuple[str, str, float | None, bool]) -> list[KnownLaunch]:
    return [KnownLaunch(replace(LAUNCH, launch_id=name, backend=backend), when, serves) for name, backend, when, serves in rows]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", "auto", 1.0, False), ("b", "dsl", 2.0, True)], "a"),
        ([("a", "auto", 1.0, False), ("b", "dsl", 2.0, False), ("c", "tri", 3.0, True)], "b"),
        ([("a", "auto", 1.0, False), ("b", "dsl", None, False), ("c", "auto", 3.0, True)], None),  # c only repeats a
        ([("a", "auto", 1.0, False), ("b", "dsl", 2.0, False), ("c", "auto", 3.0, True)], "b"),  # and forth again
        ([("a", "auto", 1.0, True), ("b", "dsl", 2.0, False)], None),  # what was verified later is not before it
        ([("a", "auto", 1.0, False), ("b", "dsl", 2.0, False)], "b"),  # nothing of ours serves
        ([("a", "auto", None, False), ("b", "dsl", None, True)], None),
        ([("a", "auto", 1.0, False), ("b", "dsl", None, True)], "a"),  # it serves, never verified
        ([], None),
    ],
)
def test_a_rollback_goes_to_the_launch_verified_last_before_the_one_that_serves(
    rows: list[tuple[str, str, float | None, bool]], expected: str | None
) -> None:
    found = previous_launch(known(*rows))
    assert (None if found is None else found.launch.launch_id) == expected


def test_records_are_listed_with_when_and_how_fast_and_without_their_secrets(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "glm")
    folder.create()
    for name in ("a", "b"):
        folder.write_launch(replace(LAUNCH, launch_id=name))
    folder.mark_verified("a", {})
    os.utime(folder.launch_folder("a") / "verified.json", (100.0, 100.0))
    (folder.launch_folder("c")).mkdir()
    (folder.order_folder("o")).mkdir()
    result = wire.OrderResult("o", "DONE", 0, "", "serving", launch_id="b", measured=wire.DecodeTiming(tokens_per_second=40.0))
    (folder.order_folder("o") / "result.json").write_text(json.dumps(wire.to_json(result)))
    found = read_known(folder, None)
    assert [(item.launch.launch_id, item.verified, item.timing is not None) for item in found] == [("a", 100.0, False), ("b", None, True)]
    told = json.dumps(wire.to_json([shown(item.launch, launch_scrubber([item.launch])) for item in found]))
    assert SECRET not in told
    assert "tok-canary" not in told
    assert "api-key" in told


def test_a_clock_that_was_set_back_between_two_proofs_does_not_choose_another_launch(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "glm")
    folder.create()
    noon = 1_767_355_200.0
    for name, backend, verified in (
        ("20260102T110000Z-aa", "auto", noon - 3600),
        ("20260102T120000Z-bb", "dsl", noon),
        ("20260102T090000Z-cc", "tri", noon - 3 * 3600),  # set back by hours before this one
    ):
        folder.write_launch(replace(LAUNCH, launch_id=name, backend=backend))
        folder.mark_verified(name, {})
        os.utime(folder.launch_folder(name) / "verified.json", (verified, verified))
    listed = read_known(folder, None)
    assert [item.launch.backend for item in listed] == ["auto", "dsl", "tri"]
    assert chosen(listed) == "tri", "nothing of ours serves"
    assert chosen([*listed[:2], replace(listed[2], serves=True)]) == "dsl"


def chosen(listed: list[KnownLaunch]) -> str | None:
    found = previous_launch(listed)
    return None if found is None else found.launch.backend


def test_an_order_names_a_record_and_the_box_fills_it_in(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "glm")
    folder.create()
    folder.write_launch(LAUNCH)
    order = wire.Order("o1", "relaunch", "glm", str(tmp_path), 1, wire.Policy(), "ann", copy_of="a")
    assert order.launch_id == "o1"
    assert SECRET not in json.dumps(wire.to_json(order))
    assert filled(order).new == replace(LAUNCH, launch_id="o1")
    assert filled(replace(order, copy_of=None)).new is None
    require(order)
    with pytest.raises(AgentRefusal, match="no record of a launch gone"):
        require(replace(order, copy_of="gone"))
    assert copy_of(folder, "gone", "x") is None
    folder.write_launch(replace(LAUNCH, launch_id="o1", backend="as it was started"))
    assert filled(order).new == replace(LAUNCH, launch_id="o1", backend="as it was started"), "a resumed order goes on with what it started"


def test_a_swept_launch_and_its_equal_from_the_services_file_are_the_same() -> None:
    swept = replace(LAUNCH, launch_id="b", swept_flags=["--max-running-requests"])
    assert is_same(LAUNCH, swept)
    assert not is_same(LAUNCH, replace(swept, arguments=[*swept.arguments, "--max-running-requests", "8"]))
