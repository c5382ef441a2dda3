"""What a person sees of a relaunch, on a real terminal of 80 columns and in a pipe, and how soon Ctrl-C is answered wherever typed."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.lab.layout import Layout
from tests.lab.test_relaunch_end_to_end import QUICK, Operator, layout, operator, served, serving
from tests.rig import terminal
from tests.rig.terminal import Terminal
from tests.unit.flows.samples import write_inventory

__all__ = ["layout", "operator", "served"]

pytestmark = pytest.mark.slow

RELAUNCH = ("relaunch", "--sequential", "--no-measure", "--yes", "--force", "--backend")
_COLOUR = re.compile(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|38)\b[0-9;]*m")
_MOVEMENT = re.compile(r"\x1b|\r(?!\n)")
_TIMED = re.compile(r"\d\d:\d\d:\d\d  ")
_LIVE = re.compile(r"[|/\\-] [A-Z_]+ {2,}")


def takes(layout: Layout, seconds: float) -> None:
    """How much longer the weights take from now on."""
    settings = layout.python(QUICK).parent.parent / "standin.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "slow_start": seconds}))


@contextlib.contextmanager
def on_a_terminal(who: Operator, *words: str, colours: bool = False) -> Iterator[Terminal]:
    environment = {name: value for name, value in who.environment.items() if name not in ("COLUMNS", "LINES", *(("NO_COLOR",) * colours))}
    with terminal.on_a_terminal(who.command(*words), environment, columns=80) as shown:
        yield shown


def states(text: str) -> list[str]:
    """The states that were told of, each once."""
    told = re.findall(r"\d\d:\d\d:\d\d  ([A-Z_]+) {2,}(?!\S+ took |\S+ takes )", text)
    return [name for at, name in enumerate(told) if name not in told[:at]]


SEQUENTIAL = ["CHECKED", "LOCKED", "BASELINE", "WARMING", "DRAINING", "STOPPING", "CLEAN", "STARTING", "LOADING", "ANSWERING", "VERIFIED"]


def test_a_relaunch_tells_what_is_usual_and_what_takes_longer_than_ever(served: Operator, layout: Layout) -> None:
    takes(layout, 2.0)
    piped = served.run(*RELAUNCH, "flashinfer_cutlass")
    assert piped.returncode == 0, piped.stderr
    assert not _MOVEMENT.search(piped.stdout)
    assert states(piped.stdout) == [*SEQUENTIAL, "DONE"]
    events = [line for line in piped.stdout.splitlines() if _TIMED.match(line)]
    assert max(map(len, events)) <= 80
    assert len({line[10:] for line in events}) == len(events), "no line comes twice"
    assert re.search(r"LOADING       weights took [2-9]\.\d s", piped.stdout)

    takes(layout, 9.0)
    with on_a_terminal(served, *RELAUNCH, "auto", colours=True) as shown:
        assert shown.exit_code() == 0
    takes(layout, 0.0)
    assert states(shown.text) == [*SEQUENTIAL, "DONE"]
    told = re.findall(
        r"LOADING weights takes longer than ever: (\S+) s so far, (\S+) s at most in \d+ loads? before", " ".join(shown.text.split())
    )
    assert [float(so_far) > float(longest) for so_far, longest in told] == [True], "said once"
    assert re.search(r"LOADING       weights: shards \d/8 \(\d\.\d s, usually \d\.\d s\)", shown.text)
    assert re.search(r"LOADING       weights: shards \d/8 \(\d\.\d s, never over [2-9]\.\d s before\)", shown.text)
    assert re.search(r"LOADING       weights took (9|1\d)\.\d s, usually \d\.\d s", shown.text)
    lines = re.split(r"[\r\n]+", shown.text)
    assert max(len(line) for line in lines if _TIMED.match(line) or _LIVE.match(line)) <= 80
    assert "\x1b[32mDONE" in shown.raw, "green is what went well"
    assert re.search(r"\x1b\[33mLOADING       weights (takes longer than|took)", shown.raw), "yellow is what is not as it should be"
    assert shown.raw.count("\x1b[?25l") == shown.raw.count("\x1b[?25h"), "the cursor is shown again"


def test_no_color_is_obeyed_on_a_terminal(served: Operator) -> None:
    with on_a_terminal(served, *RELAUNCH, "flashinfer_cutlass") as shown:
        assert shown.exit_code() == 0
    assert "DONE: flashinfer_cutlass serves" in shown.text
    assert not _COLOUR.search(shown.raw)


def answered(shown: Terminal) -> float:
    """How long the program lived on after a Ctrl-C that is typed now."""
    before = time.monotonic()
    shown.interrupt()
    shown.exit_code(10.0)
    return time.monotonic() - before


def test_ctrl_c_at_the_question(served: Operator) -> None:
    with on_a_terminal(served, "relaunch", "--no-measure", "--force", "--backend", "marlin") as shown:
        shown.wait_for("[y/N]")
        assert answered(shown) < 1.0
        assert shown.process.returncode == 130
        assert "interrupted; nothing was touched" in shown.text
    assert len(serving(served.layout)) == 1


def test_ctrl_c_in_a_timing(served: Operator) -> None:
    with on_a_terminal(served, "measure", "--batch", "1", "--repeats", "1000") as shown:
        shown.wait_for("MEASURE  ")
        assert answered(shown) < 1.0
        assert "interrupted; nothing was changed" in shown.text


def test_ctrl_c_in_a_sweep_leaves_it_to_be_resumed(served: Operator, layout: Layout) -> None:
    takes(layout, 20.0)
    words = ("sweep", "--backends", "marlin,flashinfer_cutlass", "--batch", "1", "--repeats", "2", "--yes", "--force", "--accept-drift")
    with on_a_terminal(served, *words) as shown:
        shown.wait_for("LOADING weights")
        before = time.monotonic()
        shown.interrupt()
        shown.wait_for("[y/N]", 1.0)
        shown.interrupt()
        shown.exit_code(10.0)
        assert time.monotonic() - before < 2.0
        assert re.search(r"next: fab sweep .*--resume", shown.text)
    takes(layout, 0.0)
    assert served.run("attach").returncode == 0


def test_ctrl_c_while_an_order_is_waited_for_and_while_it_is_watched(served: Operator, layout: Layout) -> None:
    takes(layout, 20.0)
    with on_a_terminal(served, *RELAUNCH, "auto") as first:
        first.wait_for("LOADING       weights")
        with on_a_terminal(served, *RELAUNCH, "marlin", "--wait", "60") as second:
            second.wait_for("waiting for up to")
            assert answered(second) < 1.0
            assert "nothing was touched" in second.text
        with on_a_terminal(served, "attach") as watcher:
            watcher.wait_for("LOADING       weights")
            watcher.interrupt()
            watcher.wait_for("[y/N]", 1.0)
            assert answered(watcher) < 1.0
            assert watcher.process.returncode == 130
        with on_a_terminal(served, "logs", "--follow") as reader:
            reader.wait_for("shards")
            assert answered(reader) < 1.0
        takes(layout, 0.0)
        assert first.exit_code() == 0


@pytest.fixture(scope="module")
def black_holes() -> Iterator[dict[str, int]]:
    """Ports at which a connection is taken and nothing said, and at which none is ever made."""
    with contextlib.ExitStack() as stack:
        silent, full = (stack.enter_context(socket.socket()) for _ in range(2))
        for listener, room in ((silent, 64), (full, 0)):
            listener.bind(("127.0.0.1", 0))
            listener.listen(room)
        for _ in range(4):  # the kernel answers no more of them
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield {"silent": silent.getsockname()[1], "full": full.getsockname()[1]}


VERBS = [
    ("status",),
    ("relaunch", "--backend", "auto"),
    ("doctor",),
    ("prep", "--profile", "quiet"),
    ("logs", "--follow"),
    ("lock.acquire", "-m", "x"),
    ("runbook.run", "after-reboot", "--yes"),
]


@pytest.mark.parametrize(
    ("kind", "words"), [*(("silent", words) for words in VERBS), *(("full", words) for words in VERBS[:2])], ids=lambda item: item[0]
)
def test_ctrl_c_at_a_host_that_does_not_answer(kind: str, words: tuple[str, ...], black_holes: dict[str, int], tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path / "inventory")
    hosts = inventory / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("port: 1\n", f"port: {black_holes[kind]}\n"))
    (inventory / "tuning").mkdir()
    (inventory / "tuning" / "quiet.yml").write_text("name: quiet\nsummary: x\nknobs:\n  - knob: gpu_persistence_mode\n")
    who = Operator(Layout.of(tmp_path), tmp_path)
    who.environment |= {"ORCHESTRATOR_INVENTORY": str(inventory), "CANARY_KEY": "x"}
    with terminal.on_a_terminal(who.command(*words, host="gpu1"), who.environment, columns=80, folder=tmp_path) as shown:
        what = "connecting to gpu1" if kind == "full" else "logging in to gpu1"
        shown.wait_until(lambda text: re.search(rf"{what}\S* at 127\.0\.0\.1:\d+ \(\d\.\d s of at most \d+ s\)", text) is not None)
        assert answered(shown) < 1.0
        assert shown.process.returncode == 130
        assert "Traceback" not in shown.text
        assert shown.raw.count("\x1b[?25l") == shown.raw.count("\x1b[?25h"), "the cursor is shown again"
