"""``fab profile`` over a scripted agent: the table, the kept traces, the document and the exit codes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_budget import FilePiece, ProfileReport
from orchestrator.results.kept_runs import Ending, read_run
from orchestrator.results.profile import short_name
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.fake_agent import FakeAgent, answer
from tests.unit.flows.samples import healthy_agent

__all__ = ["box"]

SYNTHETIC = Path(__file__).parents[2] / "data/traces/synthetic_cuda_like.json"
NAMES = ("1-TP-0.trace.json.gz", "1-TP-1.trace.json.gz")


def agent(content: bytes | None = None, **more: Any) -> FakeAgent:
    data = SYNTHETIC.read_bytes() if content is None else content
    half = len(data) // 2
    pieces = [FilePiece(name, base64.b64encode(part).decode()) for name in NAMES for part in (data[:half], data[half:])]
    files = [wire.Event(wire.EventKind.FILE, wire.to_json(piece)) for piece in pieces]
    report = ProfileReport(list(NAMES), "0.5.23", **{"batch_size": 4, "steps": 8, "ranks": 2, **more})
    return healthy_agent(profile=[[*files, *answer(report)]])


def words(text: str) -> str:
    return " ".join(text.split())


def test_kernel_time_by_class_and_the_traces_in_the_run_folder(box: Box) -> None:
    asked = agent()

    ended = box.run(asked, "profile", "--batch", "4")

    assert ended.code == 0
    told = words(ended.out)
    for row in ("GEMM 0.400 40.0 % 3", "attention 0.170 17.0 % 1", "communication 0.090 9.0 % 1", "gaps 0.330 33.0 %"):
        assert row in told
    assert "overlapped -0.100 -10.0 %" in told
    assert "step 1.000 100.0 % 10" in told
    assert "not known what it is for: mystery_kernel" in told
    assert "1-TP-1.trace.json.gz: 1.000 ms a step, busy 0.670, communication 0.090, gaps 0.330" in told
    [folder] = box.runs
    assert all((folder / name).read_bytes() == SYNTHETIC.read_bytes() for name in NAMES)
    assert (folder / NAMES[0]).stat().st_mode & 0o777 == 0o600
    kept = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    gemm = kept["ranks"][0]["classes"]["GEMM"]
    assert (gemm["seconds"], gemm["launches"]) == (pytest.approx(400e-6), 3)
    assert read_run(folder).ending == Ending(0, "traced")
    [request] = asked.requests("profile")
    assert (request.batch_size, request.steps) == (4, 8)


def own_lines(screen: str) -> list[str]:
    lines = screen.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("a decode step of"))
    return lines[first : lines.index("nothing speaks against it") + 1]


def test_show_has_it_as_the_verb_has_shown_it_without_the_traces(box: Box) -> None:
    told = own_lines(box.run(agent(), "profile", "--batch", "4").out)
    for name in NAMES:
        (box.runs[0] / name).unlink()

    shown = box.run(agent(), "show")

    assert own_lines(shown.out) == told
    assert any("mystery_kernel" in line for line in told)
    account = box.run(agent(), "show", "--json").document["account"]
    assert [rank["trace"] for rank in account["ranks"]] == list(NAMES)


def test_the_report_has_it_where_nothing_else_was_run(box: Box) -> None:
    box.run(agent(), "profile", "--batch", "4")
    out = box.folder / "page.html"

    made = box.run(agent(), "report", "--out", str(out), "--json").document

    assert (made["timings"], made["changes"], made["accounts"]) == (0, 0, 1)
    page = out.read_text(encoding="utf-8")
    assert "not known what it is for: mystery_kernel" in page
    assert "Where a step" in page


def test_as_json(box: Box) -> None:
    document = box.run(agent(), "profile", "--batch", "4", "--json").document

    assert (document["valid"], document["exit_code"], len(document["ranks"])) == (True, 0, 2)
    assert document["ranks"][1]["gaps"] == pytest.approx(330e-6)


def test_others_requests_in_the_trace_are_seen(box: Box) -> None:
    ended = box.run(agent(batch_size=1), "profile")

    assert ended.code == 9
    assert "steps of batch 4 are in the trace: others' requests ran" in words(ended.out)


def test_a_trace_that_can_not_be_read_is_kept_and_told(box: Box) -> None:
    ended = box.run(agent(b"no trace"), "profile", "--batch", "4")

    assert ended.code == 9
    assert "can't be read as a trace" in ended.out
    assert (box.runs[0] / NAMES[0]).read_bytes() == b"no trace"


@pytest.mark.parametrize("flags", [("--batch", "0"), ("--steps", "2"), ("--steps", "x"), ("--limit", "-1")])
def test_flags_that_make_no_sense(box: Box, flags: tuple[str, str]) -> None:
    asked = agent()

    assert box.run(asked, "profile", *flags).code == 2
    assert asked.asked == []


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::reduce_kernel<512, 1, x>(y)", "at::native::reduce_kernel"),
        ("fused_moe_kernel", "fused_moe_kernel"),
        ("<lambda>", "<lambda>"),
        ("k" * 80, "k" * 59 + "…"),
    ],
)
def test_a_long_name_is_cut_where_its_template_begins(name: str, short: str) -> None:
    assert short_name(name) == short
