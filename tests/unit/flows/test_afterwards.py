"""What is done around an order: planned, run before it, and done once when it has ended."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_notice import NOTICE, SUPERVISOR, Afterwards, ClaimReport, Fate, FateOutcome, ReachReport
from orchestrator.config import load_inventory
from orchestrator.errors import ConnectionLostError, InterruptedByOperatorError, LockedError, RefusedError
from orchestrator.flows import hooks
from orchestrator.flows.attach import attach
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import NoticePlan
from orchestrator.flows.relaunch import relaunch
from orchestrator.flows.target import Target, choose_target
from orchestrator.flows.teardown import teardown
from orchestrator.results.hook_run import HookRun
from tests.agent.webhooks import Webhook, answering
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer
from tests.unit.flows.samples import CANARY, done, healthy_agent, relaunch_script, write_inventory

PROGRAM = """#!/bin/sh
cat > "$2.stdin"
echo "$1" >> "$2.order"
echo "$1 speaks"
echo "$1 complains" >&2
exit "${3:-0}"
"""
AFTERWARDS = Afterwards("relaunch", "gpu1", "triton", "flashinfer_cutedsl", hooks=True, notice=["failure", "success"])
GRANTED = ClaimReport(True, None, AFTERWARDS, "ann@laptop", "night shift", "relaunch of glm5 on gpu1: DONE")
SENT = Fate(SUPERVISOR, FateOutcome.DONE, "hooks.example answered 200", 1.0)


def yes(plan: Any) -> bool:
    return True


class Inventory:
    """An inventory whose service has hooks, which write what they got into `folder`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = root
        self.path = write_inventory(root / "inventory")
        self.monkeypatch = monkeypatch
        program = self.path / "hook"
        program.write_text(PROGRAM)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def command(self, name: str, *status: str) -> str:
        return json.dumps(["./hook", name, str(self.folder / name), *status])

    def target(self, before: list[str], after: list[str], webhook: str = "") -> Target:
        service = self.path / "services" / "glm5.yml"
        lists = "".join(f"  {when}: [{', '.join(hooks)}]\n" for when, hooks in (("before", before), ("after", after)))
        service.write_text(f"{service.read_text()}hooks:\n{lists}{webhook}")
        return choose_target(load_inventory(self.path), None, None)

    def got(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.stdin").read_text())

    def ran(self, name: str) -> int:
        path = self.folder / f"{name}.order"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    return Inventory(tmp_path, monkeypatch)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.delenv("http_proxy", raising=False)
    with answering() as made:
        monkeypatch.setenv("HOOK_URL", made.url)
        yield made


def run(agent: FakeAgent, target: Target, heard: Heard, options: Options | None = None) -> Outcome:
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    box = FakeBox(agent)
    return relaunch(target, profiles, options or Options(reason="night shift"), heard, yes, box.connect, box.open)


WEBHOOK = "webhook:\n  url: env:HOOK_URL\n"


def test_the_commands_around_a_relaunch_get_the_facts(inventory: Inventory) -> None:
    target = inventory.target([inventory.command("b1"), inventory.command("b2")], [inventory.command("a1")])
    agent, heard = healthy_agent(claim=[answer(GRANTED)]), Heard(kept_in="/runs/x")
    outcome = run(agent, target, heard)
    assert outcome.result == done()
    assert [(ran.when, ran.command[1], ran.ending.split(" after ")[0]) for ran in heard.hooks] == [
        ("before", "b1", "ended well"),
        ("before", "b2", "ended well"),
        ("after", "a1", "ended well"),
    ]
    assert (heard.hooks[0].output, heard.hooks[0].errors) == ("b1 speaks\n", "b1 complains\n")
    (order,) = agent.requests("submit")
    assert inventory.got("b1") == {
        "schema": "orchestrator.hook/1",
        "when": "before",
        "order": order.order_id,
        "verb": "relaunch",
        "host": "gpu1",
        "place": "gpu1/101",
        "service": "glm5",
        "old_backend": "auto",
        "new_backend": "flashinfer_cutedsl",
        "operator": order.operator,
        "reason": "night shift",
        "run": "/runs/x",
    }
    after = inventory.got("a1")
    assert (after["when"], after["state"], after["exit_code"], after["failure"]) == ("after", "DONE", 0, None)
    assert (after["old_backend"], after["operator"]) == ("triton", "ann@laptop")
    assert after["dark_seconds"] == done().dark_seconds
    assert after.keys() >= {"summary", "serving", "decode", "lost_requests", "next_step"}
    described = re.findall(r"`(\w+)`", (Path(__file__).parents[3] / "docs" / "hooks.md").read_text(encoding="utf-8"))
    assert {*after, *after["decode"], *after["decode"]["before"]} <= set(described), "docs/hooks.md has each of them"
    assert CANARY not in json.dumps([inventory.got(name) for name in ("b1", "a1")])
    assert (order.afterwards.hooks, order.afterwards.notice, order.afterwards.webhook) == (True, [], None)


def test_the_plan_lists_them(inventory: Inventory) -> None:
    target = inventory.target([inventory.command("b1")], [inventory.command("a1")])
    plan = run(healthy_agent(), target, Heard(), Options(plan_only=True)).plan
    assert [(hook.when, hook.command[1], hook.timeout, hook.on_failure) for hook in plan.hooks] == [
        ("before", "b1", 30.0, "refuse"),
        ("after", "a1", 30.0, ""),
    ]
    assert [inventory.ran(name) for name in ("b1", "a1")] == [0, 0], "a plan runs nothing"
    down = teardown(target, Options(plan_only=True), Heard(), yes, FakeBox(healthy_agent()).connect).plan
    for remarks in (plan.remarks, down.remarks):
        assert "unless a command before it does that, no router" in remarks[0]


def test_a_command_before_it_that_fails_refuses_it(inventory: Inventory) -> None:
    target = inventory.target([inventory.command("b1", "3"), inventory.command("b2")], [inventory.command("a1")])
    agent, heard = healthy_agent(), Heard()
    with pytest.raises(RefusedError, match="refused, nothing was touched: the hook before it") as refused:
        run(agent, target, heard)
    assert "ended with status 3" in refused.value.message
    assert (refused.value.exit_code, refused.value.evidence) == (3, ["b1 complains"])
    assert "--force" in str(refused.value.next_step)
    assert agent.requests("submit") == []
    assert (inventory.ran("b2"), inventory.ran("a1")) == (0, 1), "what those before it did may have to be undone"
    assert (inventory.got("a1")["state"], inventory.got("a1")["exit_code"]) == ("REFUSED", 3)


@pytest.mark.parametrize("how", ["warn", "force"])
def test_a_command_that_may_fail_is_told_and_no_more(inventory: Inventory, how: str) -> None:
    command = inventory.command("b1", "3")
    target = inventory.target([f"{{command: {command}, on_failure: warn}}" if how == "warn" else command], [])
    agent, heard = healthy_agent(), Heard()
    assert run(agent, target, heard, Options(force=how == "force")).result == done()
    assert [(ran.status, ran.refuses) for ran in heard.hooks] == [(3, False)]


def test_a_program_that_is_not_here_is_found_before_the_question(inventory: Inventory) -> None:
    target = inventory.target(["[./no-such-hook]"], [])
    for options in (Options(), Options(plan_only=True)):
        with pytest.raises(RefusedError) as refused:
            run(healthy_agent(), target, Heard(), options)
        assert refused.value.evidence == [f"hooks: there is no {inventory.path}/no-such-hook here, which is to be run before"]
    forced = run(healthy_agent(), target, Heard(), Options(force=True))
    assert (forced.result, forced.plan.overruled) == (done(), refused.value.evidence)


def test_a_command_after_it_that_fails_changes_nothing(inventory: Inventory) -> None:
    target = inventory.target([], [inventory.command("a1", "1"), inventory.command("a2")])
    agent, heard = healthy_agent(claim=[answer(GRANTED)]), Heard()
    assert run(agent, target, heard).result == done()
    assert [(ran.command[1], ran.status) for ran in heard.hooks] == [("a1", 1), ("a2", 0)]
    told = [request.fate for request in agent.requests("claim") if request.fate is not None]
    assert [(fate.outcome, fate.detail.split(" after ")[0]) for fate in told] == [("failed", "ended with status 1"), ("done", "ended well")]


def test_ctrl_c_at_a_command_before_it_says_what_was_not_undone(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    target = inventory.target([inventory.command("b1"), inventory.command("b2")], [inventory.command("a1")])
    agent, runs = healthy_agent(), [hooks.run_hook]

    def interrupted(*words: Any, **more: Any) -> HookRun:
        if not runs:
            raise KeyboardInterrupt
        return runs.pop()(*words, **more)

    monkeypatch.setattr(hooks, "run_hook", interrupted)
    with pytest.raises(InterruptedByOperatorError, match="nothing was touched on the box") as stopped:
        run(agent, target, Heard())
    assert [line.split()[-2] for line in stopped.value.evidence] == ["b1", "b2"]
    assert (agent.requests("submit"), inventory.ran("a1")) == ([], 0)


def test_an_order_that_was_not_taken_runs_those_after_it_to_undo_those_before(inventory: Inventory) -> None:
    target = inventory.target([inventory.command("b1")], [inventory.command("a1")])
    with pytest.raises(LockedError):
        run(healthy_agent(submit=[[LockedError("order X is at work")]]), target, Heard())
    assert (inventory.ran("a1"), inventory.got("a1")["exit_code"], inventory.got("a1")["summary"]) == (1, 5, "order X is at work")


def test_whether_an_order_was_taken_is_not_known_so_nothing_is_undone(inventory: Inventory) -> None:
    target = inventory.target([inventory.command("b1")], [inventory.command("a1")])
    with pytest.raises(ConnectionLostError, match="not known"):
        run(healthy_agent(submit=[[ConnectionLostError("gone")]]), target, Heard())
    assert (inventory.ran("b1"), inventory.ran("a1")) == (1, 0)


def test_without_a_command_before_it_none_after_it_undoes_anything(inventory: Inventory) -> None:
    target = inventory.target([], [inventory.command("a1")])
    with pytest.raises(LockedError):
        run(healthy_agent(submit=[[LockedError("order X is at work")]]), target, Heard())
    assert inventory.ran("a1") == 0


def test_what_somebody_else_did_is_not_done_again(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([], [inventory.command("a1")], WEBHOOK)
    agent = healthy_agent(
        reach=[answer(ReachReport())],
        claim=[answer(ClaimReport(False, Fate("eve@desk", FateOutcome.DONE), AFTERWARDS)), answer(ClaimReport(False, SENT, AFTERWARDS))],
    )
    heard = Heard()
    run(agent, target, heard)
    assert (inventory.ran("a1"), webhook.bodies, heard.notices) == (0, [], [SENT])
    assert any("done by eve@desk, not again" in note for note in heard.notes)


def test_the_box_sends_where_it_reaches_the_webhook(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([], [], WEBHOOK)
    agent, heard = healthy_agent(reach=[answer(ReachReport())], claim=[answer(ClaimReport(False, SENT, AFTERWARDS))]), Heard()
    outcome = run(agent, target, heard)
    assert outcome.plan.notice == NoticePlan("127.0.0.1", "box", "", ["failure", "success"])
    (asked,) = agent.requests("reach")
    assert (asked.host, asked.port, asked.tls) == ("127.0.0.1", webhook.port, False)
    (order,) = agent.requests("submit")
    assert order.afterwards == Afterwards("relaunch", "gpu1", "auto", "flashinfer_cutedsl", False, ["failure", "success"], webhook.url)
    assert (heard.notices, webhook.bodies) == ([SENT], [])


def test_from_here_it_is_sent_where_the_box_does_not_reach_it(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([], [], WEBHOOK)
    agent = healthy_agent(reach=[answer(ReachReport("127.0.0.1 port 9: Connection refused"))], claim=[answer(GRANTED)])
    heard = Heard()
    outcome = run(agent, target, heard)
    assert outcome.plan.notice is not None
    assert (outcome.plan.notice.sender, outcome.plan.notice.why) == (
        "operator",
        "the box does not reach it: 127.0.0.1 port 9: Connection refused",
    )
    (order,) = agent.requests("submit")
    assert order.afterwards.webhook is None, "who does not send it does not get the secret"
    assert webhook.texts == ["relaunch of glm5 on gpu1: DONE"]
    claimed, told = agent.requests("claim")
    assert (claimed.what, claimed.fate, told.fate.outcome, told.token == claimed.token) == (NOTICE, None, FateOutcome.DONE, True)
    assert [(fate.outcome, fate.detail) for fate in heard.notices] == [(FateOutcome.DONE, "127.0.0.1 answered 200")]


def test_an_operator_may_keep_the_url_to_their_own_machine(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([], [], f"{WEBHOOK}  sender: operator\n  when: [failure]\n")
    agent = healthy_agent(claim=[answer(ClaimReport(False, None, AFTERWARDS))])
    outcome = run(agent, target, Heard())
    assert outcome.plan.notice == NoticePlan("127.0.0.1", "operator", "as the inventory says", ["failure"])
    assert agent.requests("reach") == []
    assert agent.requests("submit")[0].afterwards.notice == ["failure"]


@pytest.mark.parametrize("answers", [[LockedError("no")], [ConnectionLostError("gone")]])
def test_a_box_that_can_not_tell_whether_it_reaches_it_does_not_send(inventory: Inventory, webhook: Webhook, answers: list[Any]) -> None:
    target = inventory.target([], [], WEBHOOK)
    plan = run(healthy_agent(reach=[answers]), target, Heard(), Options(plan_only=True)).plan
    assert plan.notice is not None
    assert plan.notice.sender == "operator"


def test_a_url_that_can_not_be_had_keeps_nobody_from_anything(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOK_URL", raising=False)
    target = inventory.target([], [], WEBHOOK)
    agent = healthy_agent(claim=[answer(ClaimReport(False, None, dataclasses.replace(AFTERWARDS, notice=[])))])
    outcome = run(agent, target, Heard())
    assert outcome.result == done()
    assert outcome.plan.notice is not None
    assert (outcome.plan.notice.sender, "HOOK_URL: is not set" in outcome.plan.notice.why) == ("nobody", True)
    assert agent.requests("submit")[0].afterwards.notice == []


def test_the_url_is_hidden_before_anything_could_show_it_and_is_nowhere_else(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([], [inventory.command("a1")], WEBHOOK)
    agent, heard = healthy_agent(reach=[answer(ReachReport("no"))], claim=[answer(GRANTED)]), Heard()
    outcome = run(agent, target, heard)
    assert {webhook.url, webhook.path} <= set(heard.hidden)
    told = repr((outcome, heard.notes, heard.warnings, heard.notices, heard.hooks, inventory.got("a1")))
    assert "canary-hook" not in told


def test_a_box_that_is_lost_at_the_end_changes_nothing_and_says_what_is_left(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.flows.afterwards._CLAIM_ATTEMPTS", 1)
    target = inventory.target([], [inventory.command("a1")])
    heard = Heard()
    outcome = run(healthy_agent(claim=[[ConnectionLostError("gone")]]), target, heard)
    assert (outcome.result, inventory.ran("a1")) == (done(), 0)
    assert "does what is left" in heard.warnings[-1]
    assert "fab attach --host gpu1 --service glm5 --order" in heard.warnings[-1]


def test_a_claim_whose_answer_was_lost_is_asked_for_again(inventory: Inventory) -> None:
    target = inventory.target([], [inventory.command("a1")])
    agent = healthy_agent(claim=[[ConnectionLostError("gone")], answer(GRANTED)])
    assert run(agent, target, Heard()).result == done()
    assert inventory.ran("a1") == 1
    first, second, _ = agent.requests("claim")
    assert first.token == second.token


def test_an_order_that_was_cut_off_is_followed_by_nothing(inventory: Inventory) -> None:
    target = inventory.target([], [inventory.command("a1")], WEBHOOK)
    inventory.monkeypatch.setenv("HOOK_URL", "http://127.0.0.1:9/x")
    cut_off = dataclasses.replace(done(), state="INTERRUPTED(LOADING)", exit_code=7)
    agent = healthy_agent(reach=[answer(ReachReport())], follow=[relaunch_script(cut_off)])
    run(agent, target, Heard())
    assert (agent.requests("claim"), inventory.ran("a1")) == ([], 0)


def test_who_attaches_and_sees_the_end_does_what_is_left(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([inventory.command("b1")], [inventory.command("a1")], WEBHOOK)
    status = wire.OrderStatus("O1", "relaunch", "LOADING", True, 1.0, "ann@laptop")
    agent = healthy_agent(lock=[answer(wire.LockStatus(order=status))], claim=[answer(GRANTED)])
    heard = Heard()
    assert attach(target, None, heard, connect=FakeBox(agent).connect) == done()
    assert [inventory.ran(name) for name in ("b1", "a1")] == [0, 1]
    assert webhook.texts == ["relaunch of glm5 on gpu1: DONE"]
    assert {request.order_id for request in agent.requests("claim")} == {"O1"}


def test_a_teardown_has_them_too(inventory: Inventory, webhook: Webhook) -> None:
    target = inventory.target([inventory.command("b1", "1")], [], WEBHOOK)
    agent, heard = healthy_agent(reach=[answer(ReachReport())]), Heard()
    with pytest.raises(RefusedError) as refused:
        teardown(target, Options(), heard, yes, FakeBox(agent).connect)
    assert "on_failure: warn" in str(refused.value.next_step)
    assert (inventory.got("b1")["verb"], inventory.got("b1")["new_backend"]) == ("teardown", None)


def test_where_the_inventory_names_nothing_nothing_is_asked(target: Target) -> None:
    agent, heard = healthy_agent(), Heard()
    run(agent, target, heard)
    assert {asked for asked, _ in agent.asked} & {"claim", "reach"} == set()
    assert agent.requests("submit")[0].afterwards is None
