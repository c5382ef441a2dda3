"""An inventory on disk and the reports of a box on which everything is in order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from textwrap import dedent
from typing import Any

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport
from tests.unit.flows.fake_agent import NO_TUNING, FakeAgent, answer, progress, state

CANARY = "canary-7f3a9c"
"""The service's API key: must never be seen."""

_HOSTS = """
hosts:
  gpu1:
    address: 127.0.0.1
    port: 1
    container:
      reached_by: pct
      id: 101
"""
_SECOND_HOST = """
  gpu2:
    address: 127.0.0.2
"""
_SERVICE = """
name: {name}
host: {host}
place: {place}
python: /opt/sglang/bin/python
model: /models/tiny
port: 30000
arguments:
  --tp-size: 8
secrets:
  api-key: "env:CANARY_KEY"
"""
_BACKEND = """
name: {name}
kind: {kind}
summary: for {name}
variants:
  - sglang: ">=0.5.11"
    arguments:
      {flag}
"""


def write_inventory(folder: Path, *, second_host: bool = False) -> Path:
    """Write an inventory with one host and one service (or two of each) and three profiles."""
    for name in ("services", "backends"):
        (folder / name).mkdir(parents=True)
    _write(folder / "hosts.yml", _HOSTS + (_SECOND_HOST if second_host else ""))
    _write(folder / "services" / "glm5.yml", _SERVICE.format(name="glm5", host="gpu1", place="container"))
    if second_host:
        _write(folder / "services" / "tiny.yml", _SERVICE.format(name="tiny", host="gpu2", place="host"))
    for name, kind, flag in (
        ("auto", "backend", "--moe-runner-backend: auto"),
        ("flashinfer_cutedsl", "backend", "--moe-runner-backend: flashinfer_cutedsl"),
        ("ep8", "overlay", "--ep-size: 8"),
    ):
        _write(folder / "backends" / f"{name}.yml", _BACKEND.format(name=name, kind=kind, flag=flag))
    return folder


def _write(path: Path, text: str) -> None:
    path.write_text(dedent(text).lstrip(), encoding="utf-8")


OLD = wire.ServerInfo(
    main=wire.ProcessId(4242, 1111),
    members=[wire.ProcessId(4242, 1111), wire.ProcessId(4243, 1112)],
    manager=wire.Manager(wire.ManagerKind.SESSION, "tmux"),
    port=30000,
    listening=True,
    python="/opt/sglang/bin/python",
    arguments=["--model-path", "/models/tiny", "--api-key", "********"],
    user="root",
    started=1764400000.0,
    backend="auto",
)
GPU = wire.Gpu(0, "GPU-1", "NVIDIA RTX PRO 6000", "12.0", 90000, 97887)
BACKEND_DIFFERENCE = wire.Difference("argument", "--moe-runner-backend", "auto", "flashinfer_cutedsl", "backend")
OUR_DIFFERENCE = wire.Difference("environment", "SPT_NOENV", None, "1", "ours")
DRIFT = wire.Difference("argument", "--mem-fraction-static", "0.85", None, "drift")
SUBMITTED = wire.Submitted("ORDER", "orchestrator-glm5-order")


def survey(**changes: Any) -> wire.SurveyReport:
    """A box where the old server serves."""
    report = wire.SurveyReport(facts=[], sglang_version="0.5.23", server=OLD, health="serving", gpus=[GPU])
    return dataclasses.replace(report, **changes)


def preflight(**changes: Any) -> wire.PreflightReport:
    """A candidate that only differs in its backend."""
    report = wire.PreflightReport(
        verdicts=[wire.Verdict("compute capability", wire.Outcome.PASS, "12.0 is known to work")],
        differences=[BACKEND_DIFFERENCE, OUR_DIFFERENCE],
        server=OLD,
        sglang_version="0.5.23",
        load=2,
    )
    return dataclasses.replace(report, **changes)


def staging(**changes: Any) -> wire.StagingPlan:
    """A switch that can be staged, as two before it."""
    room = wire.Verdict("staging", wire.Outcome.PASS, "100.0 GiB of memory are available; 6.0 GiB are needed")
    caches = wire.Verdict("kernel_caches", wire.Outcome.WARN, "caches of compiled kernels are cold", ["triton was never verified here"])
    estimate = wire.DarkEstimate(44.04, 41.0, 46.2, "2 staged switches to flashinfer_cutedsl, caches cold", 2)
    return dataclasses.replace(wire.StagingPlan(True, "SGLang can wait at a gate", [room, caches], estimate), **changes)


def timing(milliseconds: float) -> wire.DecodeTiming:
    """A timing of three repeats around so many milliseconds a token."""
    samples = [wire.DecodeSample(0.2 + 0.01 * n, (milliseconds + n) / 1000, 128, 3.0) for n in (-1, 0, 1)]
    return wire.DecodeTiming(256, 128, 0.2, milliseconds / 1000, 1000 / milliseconds, samples)


def done(**changes: Any) -> wire.OrderResult:
    """A relaunch that went well."""
    result = wire.OrderResult(
        order_id="ORDER",
        state=wire.State.DONE,
        exit_code=0,
        summary="flashinfer_cutedsl serves",
        service="serving",
        baseline=timing(25.0),
        measured=timing(20.0),
        dark_seconds=41.5,
        launch_id="LAUNCH",
    )
    return dataclasses.replace(result, **changes)


def relaunch_script(result: wire.OrderResult) -> list[Any]:
    """What following a relaunch brings."""
    return [
        state(1, wire.State.CHECKED),
        state(2, wire.State.LOCKED),
        progress(wire.State.LOADING, "weights"),
        state(3, result.state),
        *answer(result),
    ]


COLLECTED = wire.Event(wire.EventKind.COLLECTED, wire.to_json(wire.Collected({"server.log": "up\n", "journal.jsonl": "{}\n"})))


def healthy_agent(**scripts: Any) -> FakeAgent:
    """An agent on a box where everything is in order, except for what `scripts` say."""
    defaults: dict[str, Any] = {
        "survey": [answer(survey())],
        "preflight": [answer(preflight())],
        "submit": [answer(SUBMITTED)],
        "follow": [[COLLECTED, *relaunch_script(done())]],
        "doctor": [answer(DoctorReport([], []))],
        "tune": [NO_TUNING],
    }
    return FakeAgent(**{**defaults, **scripts})
