"""How long the phases of a load take, on the screen: data/pace.yml, and what a terminal makes of the same."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from orchestrator.agent import wire
from orchestrator.agent.history import USUAL
from orchestrator.cli.screen import Screen
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.results.redaction import Redactor

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "data" / "pace.yml").read_text(encoding="utf-8"))


def tell(screen: Screen, told: list[dict[str, Any]]) -> None:
    state = ""
    for sequence, item in enumerate(told):
        if "state" in item:
            state = item["state"]
            data = {USUAL: {name: _usual(value) for name, value in item["usual"].items()}} if "usual" in item else {}
            screen.state(wire.StateEntry(sequence, state, 0.0, item["at"], item["reason"], data))
        else:
            elapsed = float(item.get("elapsed", item.get("in", 0.0)))
            screen.progress(wire.Progress(state, item["phase"], elapsed, item.get("detail", ""), sequence, item.get("in")))


def _usual(value: Any) -> Any:
    return dict(zip(("seconds", "longest", "loads"), value, strict=True)) if isinstance(value, list) else value


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_plain_screen(case: dict[str, Any]) -> None:
    stream = io.StringIO()
    screen = Screen(Redactor(), stream, stream)
    screen.width = 200
    tell(screen, case["told"])
    lines = stream.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines)
    assert [line[10:] for line in lines] == case["shown"]


def terminal(**more: Any) -> tuple[TerminalScreen, io.StringIO]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, highlight=False, soft_wrap=True, **more)
    return TerminalScreen(Redactor(), console, console), stream


def test_a_terminal_keeps_what_a_phase_took_and_shows_the_present_one_on_one_line() -> None:
    screen, stream = terminal()
    tell(screen, CASES["a load like those before it"]["told"][:4])
    live = str(screen._moving_line())
    screen.close()
    assert re.fullmatch(r". LOADING       weights: shards 2/8 \(10\.\d s, usually 40 s\)", live)
    assert "imports took 21.5 s, usually 20 s" in stream.getvalue()
    assert "\n" not in live


def test_what_takes_longer_than_ever_is_yellow_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, _ = terminal()
    tell(screen, CASES["a load like those before it"]["told"][:4])
    before = screen._moving_line()
    now = screen._now
    assert now is not None
    monkeypatch.setattr("orchestrator.cli.terminal.time.monotonic", lambda: now[1] + 60.0)
    after = screen._moving_line()
    screen.close()
    assert [str(span.style) for span in before.spans] == ["cyan"]
    assert [str(span.style) for span in after.spans] == ["cyan", "yellow"]
    assert str(after)[2:] == "LOADING       weights: shards 2/8 (1 min 10 s, never over 44 s before)"


def test_the_longest_line_fits_on_80_columns() -> None:
    screen, stream = terminal(color_system=None)
    told = [
        {
            "at": 0,
            "state": "ACTIVATING",
            "reason": "telling launch 20261130T044813Z-24fa to go on from its gate",
            "usual": {"graph_capture": [3000.0, 3599.0, 10]},
        },
        {"phase": "graph_capture", "in": 7000.0, "detail": "prefill sizes 1023/1024"},
        {"phase": "warm_up", "in": 0.0, "elapsed": 7000.0},
    ]
    tell(screen, told)
    screen.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert max(len(line) for line in re.split(r"[\r\n]+", shown)) <= 80
