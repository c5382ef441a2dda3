from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.agent.phases import LogFollower, PhaseTracker, parse_batch, parse_line, split_lines

CAPTURES = Path(__file__).parents[2] / "data/captures"
GATED = ["imports", "distributed", "gate", "weights", "kv_cache", "warm_up", "ready"]
BASIC = ["imports", "distributed", "weights", "kv_cache", "warm_up", "ready"]
GRAPHS = ["imports", "distributed", "weights", "kv_cache", "graph_capture", "warm_up", "ready"]


def follow(path: Path) -> PhaseTracker:
    follower = LogFollower(path)
    tracker = PhaseTracker()
    for moment, line in enumerate(follower.read()):
        tracker.feed(line, float(moment))
    tracker.feed_partial(follower.partial)
    follower.close()
    return tracker


@pytest.mark.parametrize(
    ("log", "phases"),
    [
        ("cpu-0.5.23/main.log", BASIC),
        ("cpu-0.5.23/tp2.log", BASIC),
        ("cpu-0.5.9/main.log", BASIC),
        ("cpu-0.5.23/gate.log", GATED),
        ("cpu-0.5.23/gate_port_taken.log", GATED[:3]),
        ("cpu-0.5.23/gate_rank_killed.log", GATED[:3]),
        ("h200-0.5.17/A0_default.log", GRAPHS),
        ("h200-0.5.17/F_port_in_use.log", GRAPHS),
        ("h200-0.5.17/M_deep_gemm.log", GRAPHS[:5]),
        ("h200-0.5.17/M_flashinfer_trtllm.log", [*GRAPHS[:4], "autotune"]),
        ("h200-0.5.17/E2_sigterm_while_loading.log", ["imports"]),
        ("h200-0.5.17/M_flashinfer_cutedsl.log", ["imports"]),
    ],
)
def test_phases_of_real_logs(log: str, phases: list[str]) -> None:
    assert [phase for phase, _ in follow(CAPTURES / log).history] == phases


def test_details_of_a_load() -> None:
    tracker = PhaseTracker()
    lines = [parse_line(line) for line in split_lines((CAPTURES / "h200-0.5.17/A0_default.log").read_text(encoding="utf-8"))]
    seen = [(tracker.phase, tracker.detail) for line in lines if tracker.feed(line, 0.0)]

    assert ("kv_cache", "16440381 tokens") in seen
    assert ("graph_capture", "prefill sizes 58/58") in seen
    assert ("graph_capture", "done in 82.70 s") in seen
    assert ("graph_capture", "batch sizes 36/36") in seen
    assert tracker.figures == {"attention_backend": "fa3", "max_total_num_tokens": "16440381", "moe_kernels": "triton"}


def test_a_bar_that_is_being_drawn_is_seen() -> None:
    tracker = follow(CAPTURES / "h200-0.5.17/M_deep_gemm.log")

    assert (tracker.phase, tracker.detail) == ("graph_capture", "DeepGEMM kernels 21/128")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("Loading safetensors checkpoint shards:  25% Completed | 12/47 [00:31<01:22,  2.40s/it]", "shards 12/47"),
        ("Multi-thread loading shards:  50% Completed | 8/16 [00:03<00:03,  2.4it/s]", "shards 8/16"),
        ("Loading pt checkpoint shards: 100% Completed | 2/2 [00:03<00:00]", "shards 2/2"),
        ("Capturing batches (bs=8 avail_mem=11.41 GB):  42%|████      | 15/36 [00:02<00:02,  9.2it/s]", "batch sizes 15/36"),
    ],
)
def test_bars(text: str, detail: str) -> None:
    tracker = PhaseTracker()

    assert tracker.feed_partial(text)
    assert tracker.detail == detail


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("[2026-11-29 12:00:00 TP0] Init torch distributed begin.", "distributed"),
        ("[2026-11-29 12:00:00.123 TP0] Init parallel begin.", "distributed"),
        ("[2026-11-29 12:00:00] Capture cuda graph begin. This can take up to several minutes. avail mem=3.0 GB", "graph_capture"),
        ("[2026-11-29 12:00:00 DP0 TP0 EP0] Load weight begin. avail mem=94.1 GB", "weights"),
        ("[2026-11-29 12:00:00 TP7] Load weight begin. avail mem=94.1 GB", "imports"),
        ("Load weight begin. avail mem=94.1 GB", "weights"),
    ],
)
def test_phase_starts_in_all_spellings(text: str, phase: str) -> None:
    tracker = PhaseTracker()
    tracker.feed(parse_line(text), 1.0)

    assert tracker.phase == phase


def test_seconds_of_each_phase_are_summed_when_one_comes_twice() -> None:
    tracker = PhaseTracker(started=10.0)
    for moment, text in [(12.0, "Load weight begin."), (13.0, "Capture cuda graph begin."), (15.0, "Load weight begin.")]:
        tracker.feed(parse_line(text), moment)

    assert tracker.seconds(20.0) == {"imports": 2.0, "weights": 6.0, "graph_capture": 2.0}


def test_lines_are_taken_apart() -> None:
    line = parse_line("\x1b[33m[2026-11-29 12:18:55.123 DP1 TP0] Endpoint is deprecated\x1b[0m\r")

    assert (line.text, line.ranks, line.stamp) == ("Endpoint is deprecated", ("DP1", "TP0"), "2026-11-29 12:18:55.123")
    assert not line.leads
    assert parse_line("  File x").stamp is None


def test_a_line_glued_to_a_bar_is_its_own() -> None:
    bar = "Capturing num tokens (num_tokens=8192):   0%|          | 0/58 [00:00<?, ?it/s]"

    assert split_lines(f"\r{bar}[2026-11-29 12:20:29] Using default MoE kernel config.\n")[1:3] == [
        bar,
        "[2026-11-29 12:20:29] Using default MoE kernel config.",
    ]


def test_follower_holds_partial_lines_back(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    assert follower.read() == []

    with log.open("wb") as stream:
        stream.write("one\ntwo ä".encode()[:-1])
        stream.flush()
        assert [line.text for line in follower.read()] == ["one"]
        stream.write("ä".encode()[1:] + b"\nthree")
        stream.flush()
        assert [line.text for line in follower.read()] == ["two ä"]
    assert follower.partial == "three"
    follower.close()


def test_follower_survives_rotation_by_renaming(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("one\n")
    follower = LogFollower(log)
    assert [line.text for line in follower.read()] == ["one"]

    with log.open("a") as stream:
        stream.write("two\n")
    os.rename(log, tmp_path / "server.log.1")
    log.write_text("three\n")

    assert [line.text for line in follower.read()] == ["two", "three"]
    follower.close()


def test_follower_survives_truncation(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("a long first line\n")
    follower = LogFollower(log)
    follower.read()

    log.write_text("new\n")

    assert [line.text for line in follower.read()] == ["new"]
    follower.close()


def test_follower_from_the_end_sees_only_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n")
    follower = LogFollower(log, from_end=True)
    with log.open("a") as stream:
        stream.write("new\n")

    assert [line.text for line in follower.read()] == ["new"]
    follower.close()


@pytest.mark.parametrize(
    ("text", "kind", "running", "throughput", "graph"),
    [
        (
            "Decode batch, #running-req: 1, #token: 46, token usage: 0.00, cuda graph: True, gen throughput (token/s): 2.72, #queue-req: 0",
            "decode",
            1,
            2.72,
            True,
        ),
        (
            "Decode batch [12], #running-req: 4, #full token: 1, mamba num: 2, accept len: 2.10, cpu graph: False, "  # noqa: ISC004
            "gen throughput (token/s): 514.73, #queue-req: 2, ",
            "decode",
            4,
            514.73,
            False,
        ),
        (
            "Prefill batch, #new-seq: 1, #new-token: 17, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, ",
            "prefill",
            0,
            None,
            None,
        ),
    ],
)
def test_batch_lines(text: str, kind: str, running: int, throughput: float | None, graph: bool | None) -> None:
    batch = parse_batch(text)

    assert batch is not None
    assert batch.kind == kind
    assert batch.number("#running-req") == running
    assert batch.number("gen throughput (token/s)") == throughput
    assert batch.graph is graph


def test_other_lines_are_no_batches() -> None:
    assert parse_batch("The server is fired up and ready to roll!") is None


def test_a_log_that_is_flooded_is_read_in_portions_and_not_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("Load weight begin. avail mem=90.00 GB\n" + "the same line over and over\n" * 100_000)
    follower = LogFollower(log)
    portions = [len(follower.read()) for _ in range(4)]
    assert sum(portions) == 100_001
    assert max(portions) < 60_000
    with log.open("a") as stream:
        stream.write("the same line over and over\n" * 1_000_000 + "Load weight end. elapsed=3.00 s\n")
    last = follower.read()
    assert len(last) < 60_000
    assert last[-1].text == "Load weight end. elapsed=3.00 s"
    assert follower.read() == []
    follower.close()
