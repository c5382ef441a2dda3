"""rollback, adopt and boot as verbs, and what the status screen says of a server that comes back: over a scripted agent."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_launches import BootReport, KnownLaunch, LaunchesReport
from orchestrator.cli.boot_text import comes_back_lines
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.fake_agent import FakeAgent, answer
from tests.unit.flows.samples import OLD, healthy_agent, preflight, survey, timing
from tests.unit.flows.test_rollback_flow import NEWER, OLDER, REPORT, found

__all__ = ["box"]

UNIT = wire.BootUnit("orchestrator-glm5.service", "L2", armed=True)


def test_the_list_shows_each_launch_what_serves_and_where_a_rollback_goes(box: Box) -> None:
    report = dataclasses.replace(REPORT, launches=[KnownLaunch(OLDER, 1764400000.0, timing=timing(25.0)), KnownLaunch(NEWER, serves=True)])
    ended = box.run(FakeAgent(launches=[answer(report)]), "rollback", "--list", "--host", "gpu1")
    assert ended.code == 0
    rows = [line for line in ended.out.splitlines() if line.strip().startswith("L")]
    assert "40.00" in rows[0]
    assert "a rollback's" in rows[0]
    assert "never" in rows[1]
    assert "serves now" in rows[1]
    assert "fab rollback --host gpu1 --service glm5" in ended.out


def test_an_empty_list_says_so(box: Box) -> None:
    report = LaunchesReport([], OLD, why="no launch of this service was ever verified on this box")
    out = box.run(FakeAgent(launches=[answer(report)]), "rollback", "--list").out
    assert "the box remembers none" in out
    assert "process 4242 serves now" in out
    assert "was ever verified" in out


def test_a_rollback_asks_submits_and_ends_like_a_relaunch(box: Box) -> None:
    ended = box.run(healthy_agent(launches=[answer(REPORT)]), "rollback", "--yes", "--json")
    assert ended.code == 0
    assert (ended.document["schema"], ended.document["verb"]) == ("1", "rollback")
    assert ended.document["plan"]["verb"] == "rollback"
    assert box.run(healthy_agent(launches=[answer(REPORT)]), "rollback").code == 2, "nobody can be asked"
    assert box.run(healthy_agent(launches=[answer(REPORT)]), "rollback", "--list", "--to", "L1").code == 2


def test_boot_shows_writes_and_removes(box: Box) -> None:
    shown = box.run(FakeAgent(boot=[answer(BootReport(UNIT))]), "boot")
    assert "by orchestrator-glm5.service" in shown.out
    assert "no restart since it was verified" in shown.out
    off = FakeAgent(boot=[answer(BootReport(None, changed=True))])
    ended = box.run(off, "boot", "--off")
    assert "nothing starts it again" in ended.out
    assert "boot: false" in ended.out
    assert off.requests("boot")[0].action == "off"
    warned = FakeAgent(boot=[answer(BootReport(None, [wire.Verdict("boot unit", "warn", "systemd does not run here")]))])
    assert box.run(warned, "boot", "--on").code == 1
    assert box.run(FakeAgent(), "boot", "--on", "--off").code == 2


def test_status_tells_of_restarts_and_of_a_server_that_was_given_up(box: Box) -> None:
    often = dataclasses.replace(UNIT, restarts=3, last=1764400000.0, ended="signal killed KILL")
    out = box.run(healthy_agent(survey=[answer(survey(boot=often))]), "status").out
    assert "3 restarts since it was verified" in out
    assert "signal killed KILL" in out
    given_up = dataclasses.replace(often, problem="systemd has given it up after 3 restarts")
    out = box.run(healthy_agent(survey=[answer(survey(server=None, health="down", boot=given_up))]), "status").out
    assert "given it up" in out
    assert "fab launch starts it anew" in out
    assert "nothing starts it again" in box.run(healthy_agent(), "status").out
    theirs = dataclasses.replace(OLD, manager=wire.Manager(wire.ManagerKind.SYSTEMD_UNIT, "their.service"))
    assert "starts it again" not in box.run(healthy_agent(survey=[answer(survey(server=theirs))]), "status").out
    off = comes_back_lines(dataclasses.replace(UNIT, armed=False))
    assert "is off" in off[0]


def test_the_file_that_is_written_is_the_one_that_was_shown(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/orchestrator"])
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/local/bin/{name}")
    words = ("adopt", "--host", "gpu1", "--port", "30500")
    agent = FakeAgent(
        adopt=[answer(found()), answer(found()), answer(found(recorded="R"))], preflight=[answer(preflight(differences=[]))] * 2
    )
    shown = box.run(agent, *words, "--print").out
    assert box.run(agent, *words, "--yes").code == 0
    text = (box.folder / "inventory" / "services" / "new.yml").read_text()
    assert "Written by orchestrator adopt" in text
    assert text in shown


def test_adopt_prints_or_plans_or_writes(box: Box) -> None:
    words = ("adopt", "--host", "gpu1", "--port", "30500")

    def agent() -> FakeAgent:
        return FakeAgent(adopt=[answer(found()), answer(found(recorded="R"))], preflight=[answer(preflight(differences=[]))])

    printed = box.run(agent(), *words, "--print")
    assert "model: /models/New" in printed.out
    services = box.folder / "inventory/services"
    assert sorted(path.name for path in services.iterdir()) == ["glm5.yml"]
    planned = box.run(agent(), *words, "--plan")
    assert "rollback: to this server as it is" in planned.out
    assert "note: HF_TOKEN" in planned.out or "HF_TOKEN" in planned.out
    assert box.run(agent(), *words).code == 2, "nobody can be asked"
    assert sorted(path.name for path in services.iterdir()) == ["glm5.yml"]
    done = box.run(agent(), *words, "--yes")
    assert done.code == 0
    assert "recorded on the box as launch R, proven to serve" in done.out
    assert "its answers could not be kept" in done.out
    assert sorted(path.name for path in services.iterdir()) == ["glm5.yml", "new.yml"]
    (services / "new.yml").unlink()
    wrong = [
        wire.Verdict("greedy output", wire.Outcome.WARN, "2 of 3 outputs decayed"),
        wire.Verdict("fixed texts", wire.Outcome.PASS, "-2"),
    ]
    kept = found(recorded="R", answers=wrong, answers_kept=True)
    told = box.run(FakeAgent(adopt=[answer(found()), answer(kept)], preflight=[answer(preflight(differences=[]))]), *words, "--yes").out
    assert "what it answered lies with it: later launches and timings are held against it" in told
    assert "greedy output: 2 of 3 outputs decayed" in told
    assert "fixed texts" not in told
    (services / "new.yml").unlink()
    again = FakeAgent(adopt=[answer(found()), answer(kept)], preflight=[answer(preflight(differences=[]))])
    assert box.run(again, *words, "--yes", "--json").document["answers_kept"] is True
    none = box.run(FakeAgent(adopt=[answer(found(rollback="its Python is gone"))], preflight=[answer(preflight())]), *words, "--plan")
    assert "rollback: none: its Python is gone" in none.out
