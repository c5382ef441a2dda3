"""The gate: where it may be, whether there is one, and what of it stays out of what is kept and compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from orchestrator.agent import copies, gate, relaunch_words, wire
from orchestrator.agent.arguments import read_textually
from orchestrator.agent.clean import GpuClaim, claims_from_json, claims_to_json, gpu_is_back, gpu_use
from orchestrator.agent.command_lines import gate_port, without_gate
from orchestrator.agent.differences import ProfileNames, Side, differences
from orchestrator.agent.gate_firewall import who_can_reach
from orchestrator.agent.gpu import ComputeApp
from orchestrator.agent.known_launches import is_same
from orchestrator.agent.launch_files import prepare, started_files
from orchestrator.agent.load_limits import LoadLimits
from orchestrator.agent.phases import BEYOND_GATE, Phase, PhaseTracker, parse_line
from orchestrator.agent.procfs import Listener
from orchestrator.agent.state_folder import StateFolder

LAUNCH = wire.Launch("l1", "svc", "auto", "/py", ["--port", "30000", "--tp", "2"], "127.0.0.1", 30000, gate_port=15555)
PLAIN = dataclasses.replace(LAUNCH, gate_port=None)
LINUX = range(32768, 61000)


def test_the_port_lies_where_neither_the_kernel_nor_sglang_takes_one_by_itself() -> None:
    ports = gate.candidates([30000], [61005], LINUX)
    assert {10000, 21999, 31101, 61000, 65535} <= set(ports)
    assert not set(ports) & {9999, 22000, 28999, 29999, 30000, 30233, 31000, 32768, 60999, 61005}


def test_where_the_kernel_takes_all_ports_one_of_these_will_do() -> None:
    ports = gate.candidates([30000], [10001], range(1024, 65536))
    assert 10000 in ports
    assert not {10001, 30000} & set(ports)


@pytest.mark.parametrize(
    ("probed", "version", "expected"),
    [
        (True, "0.5.9", True),
        (False, "0.5.23", False),
        (None, "0.5.23", True),
        (None, "0.5.20", True),
        (None, "0.5.19.post2", False),
        (None, "unknown", None),
        (None, None, None),
    ],
)
def test_the_source_tells_of_a_gate_before_the_version(probed: bool | None, version: str | None, expected: bool | None) -> None:
    assert gate.told(probed, "gated_launch.py:15", version)[0] is expected


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        (["--tp", "8"], set()),
        (["--nccl-port", "28765"], {28765}),
        (["--dist-init-addr", "10.0.0.1:5000"], {5000}),
        (["--enable-dp-attention", "--dp", "8"], set(range(30233, 30240))),
        (["--enable-dp-attention", "--dist-init-addr=127.0.0.1:5000"], set(range(5000, 5007))),
    ],
)
def test_ports_that_two_servers_would_both_want_before_the_gate_are_known(arguments: list[str], ports: set[int]) -> None:
    assert gate.fixed_ports(arguments, 30000) == ports
    taken = [Listener(port, 1, 0) for port in (30000, 30234, 28765, 5001)]
    assert gate.taken_ports(arguments, 30000, taken) == sorted(ports & {30234, 28765, 5001})


def test_a_launch_with_a_gate_is_started_with_it_and_started_again_without(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    secret = dataclasses.replace(LAUNCH, secrets={"api-key": "k"})
    assert prepare(folder, LAUNCH).argv[-2:] == ["--gated-launch-port", "15555"]
    assert relaunch_words.argv(LAUNCH)[-2:] == ["--gated-launch-port", "15555"]
    with_secret = prepare(folder, secret).argv
    assert (gate_port(with_secret), with_secret.count("--config")) == (15555, 1)
    for launch in (LAUNCH, secret):
        assert gate_port(started_files(folder, launch).argv) is None
    assert folder.read_launch("l1") == secret
    assert copies.copy_of(folder, "l1", "l2") == dataclasses.replace(secret, launch_id="l2", gate_port=None)
    order = wire.Order("l1", wire.OrderKind.RELAUNCH, "svc", str(tmp_path), 30000, wire.Policy(), "ann", copy_of="l0")
    assert copies.filled(order).new == dataclasses.replace(secret, gate_port=None), "also by a supervisor that takes over"
    assert is_same(LAUNCH, dataclasses.replace(LAUNCH, launch_id="l2", gate_port=16666))


def test_a_gate_is_taken_out_of_a_command_line_in_either_spelling() -> None:
    assert without_gate(["--tp", "2", "--gated-launch-port", "5", "--port=1"]) == ["--tp", "2", "--port=1"]
    assert without_gate(["--gated-launch-port=5", "--tp", "2"]) == ["--tp", "2"]
    assert gate_port(["--gated-launch-port=5"]) == 5
    assert gate_port(["--port", "5"]) is None


def test_the_gate_of_a_running_server_is_our_own_addition_and_no_drift() -> None:
    old, new = (Side(read_textually(arguments), {}) for arguments in (["--tp", "2", "--gated-launch-port", "15555"], ["--tp", "2"]))
    (difference,) = differences(old, new, ProfileNames())
    assert (difference.name, difference.origin) == ("--gated-launch-port", "ours")


def test_the_log_tells_how_far_a_staged_launch_is() -> None:
    tracker = PhaseTracker(0.0)
    lines = [
        ("[2026-11-30 12:00:00 TP0] Init parallel begin.", Phase.DISTRIBUTED),
        ("[2026-11-30 12:00:00 TP1] Gated launch waiting for activation. rank=1", Phase.DISTRIBUTED),
        ("[2026-11-30 12:00:01 TP0] Gated launch control server started on 127.0.0.1:15555", Phase.DISTRIBUTED),
        ("[2026-11-30 12:00:02 TP0] Gated launch waiting for activation. rank=0", Phase.GATE),
        ("[2026-11-30 12:00:12 TP0] Gated launch still waiting for activation. rank=0 elapsed=10 s", Phase.GATE),
        ("[2026-11-30 12:00:13 TP0] Gated launch activated. elapsed=11.00 s", Phase.WEIGHTS),
        ("[2026-11-30 12:00:14 TP0] Load weight begin. avail mem=90.00 GB", Phase.WEIGHTS),
    ]
    for moment, (line, phase) in enumerate(lines):
        tracker.feed(parse_line(line), float(moment))
        assert tracker.phase == phase, line
    assert tracker.seconds(9.0)[Phase.GATE] == 2.0
    assert not {Phase.IMPORTS, Phase.DISTRIBUTED, Phase.GATE} & BEYOND_GATE


def test_the_way_to_the_gate_has_the_limit_that_a_service_sets_for_it() -> None:
    policy = wire.Policy(stage_total=120, load_total=900)
    assert (LoadLimits(policy, staging=True).whole().seconds, LoadLimits(policy).whole().seconds) == (120, 900)
    assert "stage_total" in str(LoadLimits(policy, staging=True).whole())
    assert LoadLimits(wire.Policy(load_total=900), staging=True).whole().seconds == 900


@pytest.mark.parametrize(
    ("share", "used", "back"), [(60_000, 20_900, True), (60_000, 22_000, False), (None, 1_300, True), (None, 2_000, False)]
)
def test_what_a_staged_launch_holds_is_expected_when_the_old_servers_memory_is_waited_for(share: int | None, used: int, back: bool) -> None:
    assert gpu_is_back(GpuClaim(0, 80_000, share, staged=900), used) is back


def test_claims_that_were_kept_say_nothing_of_what_is_staged_later() -> None:
    from orchestrator.agent.clean import Claims

    kept = claims_to_json(Claims(30000, gpus={"GPU-a": GpuClaim(0, 80_000, None)}, beside={"GPU-a": 900}))
    assert claims_from_json(kept).beside == {}


@pytest.mark.parametrize(
    ("apps", "opened", "expected"),
    [
        ([ComputeApp("GPU-a", 7, 700), ComputeApp("GPU-a", 9, 60_000), ComputeApp("GPU-a", 8, 50)], {7, 8, 9}, {"GPU-a": 750}),
        ([ComputeApp("GPU-a", 7, None)], {7}, {"GPU-a": 1_000}),
        ([], {7}, {"GPU-a": 1_000, "GPU-b": 0}),
        ([ComputeApp("GPU-a", 9, 60_000)], {9}, {}),
    ],
    ids=["the driver tells", "it names them alone", "it tells nothing", "no GPU is theirs"],
)
def test_what_processes_hold_of_gpus(
    monkeypatch: pytest.MonkeyPatch, apps: list[ComputeApp], opened: set[int], expected: dict[str, int]
) -> None:
    gpus = [wire.Gpu(index, uuid, "H200", "9.0", used, 143_771) for index, (uuid, used) in enumerate({"GPU-a": 61_000, "GPU-b": 5}.items())]
    monkeypatch.setattr("orchestrator.agent.gpu.read_gpus", lambda *_: gpus)
    monkeypatch.setattr("orchestrator.agent.gpu.compute_apps", lambda *_: apps)
    monkeypatch.setattr("orchestrator.agent.gpu.device_holders", lambda: {pid: {"/dev/nvidia0"} for pid in opened})
    assert gpu_use({7, 8}, {"GPU-a": 60_000, "GPU-b": 10}) == expected


def test_a_plan_says_who_will_reach_a_gate_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def nft(*words: str, given: str = "") -> object:
        asked.append(words)
        return type("Output", (), {"good": False, "errors": "Error: Operation not supported\n", "status": 1})()

    monkeypatch.setattr("orchestrator.agent.gate_firewall._can", lambda: True)
    monkeypatch.setattr("orchestrator.agent.gate_firewall._nft", nft)
    verdict = who_can_reach("0.0.0.0")
    assert verdict.outcome == wire.Outcome.WARN
    assert "whoever reaches this machine: nftables does not work here: Error: Operation not supported" in verdict.detail
    assert asked == [("list", "tables")]
