"""What crosses the wire arrives as it was sent, or is refused with the path to what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from orchestrator.agent import wire

ORDER = wire.Order(
    "o1",
    wire.OrderKind.RELAUNCH,
    "svc",
    "/state",
    30000,
    wire.Policy(grace=3),
    "ann@laptop",
    old=wire.ProcessId(1, 2),
    new=wire.Launch("l", "svc", "auto", "/py", ["--port", "1"], "127.0.0.1", 1, environment={"A": "b"}),
)


def test_an_order_survives_the_crossing() -> None:
    assert wire.from_json(wire.Order, json.loads(json.dumps(wire.to_json(ORDER)))) == ORDER


def test_pydantic_reads_the_same_classes() -> None:
    assert TypeAdapter(wire.Order).validate_python(wire.to_json(ORDER)) == ORDER


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port": "30000"}, "Order.port: expected int, got str"),
        ({"port": True}, "Order.port: expected int, got bool"),
        ({"colour": 1}, "Order: unknown field 'colour'"),
        ({"old": {"pid": 1}}, "Order.old: "),
        ({"new": {**wire.to_json(ORDER.new), "arguments": ["a", 1]}}, "Order.new.arguments[1]: expected str, got int"),
        ({"policy": []}, "Order.policy: expected an object, got list"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(wire.WireError) as caught:
        wire.from_json(wire.Order, {**wire.to_json(ORDER), **change})
    assert message in str(caught.value)


def test_whole_numbers_are_fine_where_seconds_are_meant() -> None:
    assert wire.from_json(wire.Policy, {"grace": 3}).grace == 3.0


def test_the_types_compare_hash_and_show_like_data_classes() -> None:
    one, same, other = wire.ProcessId(1, 2), wire.ProcessId(1, 2), wire.ProcessId(1, 3)
    tuple_of_it: object = (1, 2)
    assert (one == same, one == other, one != other) == (True, False, True)
    assert {one, same, other} == {one, other}
    assert one != tuple_of_it
    assert repr(one) == "ProcessId(pid=1, start_time=2)"
