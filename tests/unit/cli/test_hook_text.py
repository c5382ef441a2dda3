"""The words for what is done around an order."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from pydantic import TypeAdapter

from orchestrator.agent import wire
from orchestrator.agent.wire_notice import SUPERVISOR, Fate, FateOutcome
from orchestrator.cli.documents.envelope import SCHEMA, Envelope, Problem
from orchestrator.cli.hook_text import around_blocks, hook_line, notice_line
from orchestrator.cli.screen import JsonScreen, Screen
from orchestrator.cli.status_text import order_lines
from orchestrator.flows.plan import HookPlan, NoticePlan, Plan, Sender
from orchestrator.results.hook_run import HookRun
from orchestrator.results.redaction import Redactor
from tests.unit.flows.samples import done

PLAN = Plan("relaunch", "gpu1", "gpu1/101", "glm5", wire.Policy())
BEFORE = HookPlan("before", ["/inventory/drain", "--out", "a b"], 30.0, "refuse")
AFTER = HookPlan("after", ["/inventory/undrain"], 5.0)
BOTH = ["failure", "success"]


def shown(plan: Plan) -> list[str]:
    return [block.text for block in around_blocks(plan)[1:]]  # type: ignore[union-attr]


def test_a_plan_without_anything_around_it_says_nothing() -> None:
    assert around_blocks(PLAN) == []


def test_a_kept_plan_is_read_again_with_them() -> None:
    plan = dataclasses.replace(PLAN, hooks=[BEFORE, AFTER], notice=NoticePlan("h", Sender.BOX, "", BOTH))
    read = TypeAdapter(Plan).validate_python(json.loads(json.dumps(wire.to_json(plan))))
    assert around_blocks(read) == around_blocks(plan)


def test_the_plan_says_what_is_run_where_and_when() -> None:
    assert shown(dataclasses.replace(PLAN, hooks=[BEFORE, dataclasses.replace(BEFORE, on_failure="warn"), AFTER])) == [
        "around it",
        "  before  /inventory/drain --out 'a b'  (30 s at most; refuses it when it fails)",
        "  before  /inventory/drain --out 'a b'  (30 s at most; only told when it fails)",
        "  after   /inventory/undrain  (5 s at most)",
        "  commands after it run here; if this machine is closed by then, when attach or resume sees its end",
    ]


@pytest.mark.parametrize(
    ("notice", "said"),
    [
        (
            NoticePlan("hooks.slack.com", Sender.BOX, "", BOTH),
            "  notice  of its end to hooks.slack.com, sent by the box itself, also when this machine is closed",
        ),
        (
            NoticePlan("hooks.slack.com", Sender.OPERATOR, "the box does not reach it: timed out", ["failure"]),
            (
                "  notice  of its end where it fails to hooks.slack.com, sent from here (the box does not reach it: timed out); "
                "if this machine is closed by then, when attach or resume sees its end"
            ),
        ),
        (NoticePlan("", Sender.NOBODY, "HOOK_URL is not set", BOTH), "  notice  none: HOOK_URL is not set"),
    ],
)
def test_the_plan_says_who_sends_the_notice(notice: NoticePlan, said: str) -> None:
    assert shown(dataclasses.replace(PLAN, notice=notice)) == ["around it", said]


@pytest.mark.parametrize(
    ("run", "said", "tone"),
    [
        (HookRun("before", ["./drain"], 0, 0.31, "ok\n"), "hook before it, ./drain: ended well after 0.3 s", ""),
        (
            HookRun("after", ["./x", "a b"], 3, 1.0, "", "one\n two\n"),
            "hook after it, ./x 'a b': ended with status 3 after 1.0 s: two",
            "warn",
        ),
        (HookRun("after", ["./x"], -9, 1.0), "hook after it, ./x: was killed by SIGKILL after 1.0 s", "warn"),
        (HookRun("after", ["./x"], -99, 1.0), "hook after it, ./x: was killed by signal 99 after 1.0 s", "warn"),
        (
            HookRun("before", ["./x"], None, 0.0, problem="could not be started: No such file or directory"),
            "hook before it, ./x: could not be started: No such file or directory",
            "warn",
        ),
    ],
)
def test_what_became_of_a_command(run: HookRun, said: str, tone: str) -> None:
    assert hook_line(run) == (said, tone)


@pytest.mark.parametrize(
    ("fate", "said", "tone"),
    [
        (Fate(SUPERVISOR, FateOutcome.DONE, "h answered 200"), "notice sent, by the box itself: h answered 200", "good"),
        (Fate("ann@laptop", FateOutcome.FAILED, "h answered 404"), "notice failed, by ann@laptop: h answered 404", "warn"),
        (Fate(SUPERVISOR, FateOutcome.UNKNOWN, "no answer"), "notice may have arrived, by the box itself: no answer", "warn"),
        (Fate("eve@desk", FateOutcome.BEGUN), "notice begun, and nobody has said how it went, by eve@desk", "warn"),
        (Fate("eve@desk", "of a later version"), "notice of a later version, by eve@desk", "warn"),
    ],
)
def test_what_became_of_a_notice(fate: Fate, said: str, tone: str) -> None:
    assert notice_line(fate) == (said, tone)
    status = wire.OrderStatus("O1", "relaunch", "DONE", False, 1.0, "ann@laptop", notice=fate)
    assert said in order_lines(status, 2.0)


def test_the_screen_and_the_document_hold_them_masked() -> None:
    redactor, out, errors = Redactor(), io.StringIO(), io.StringIO()
    redactor.add(["canary-hook"])
    run, fate = HookRun("after", ["./x"], 1, 1.0, "canary-hook\n", "canary-hook\n"), Fate(SUPERVISOR, FateOutcome.DONE, "h/canary-hook")
    screens = [Screen(redactor, out, errors), JsonScreen(redactor, out, errors)]
    for screen in screens:
        screen.hook(run)
        screen.notice(fate)
    assert "hook after it, ./x: ended with status 1 after 1.0 s: ********" in " ".join(out.getvalue().split())
    out.truncate(0)
    out.seek(0)
    screens[1].result(done())
    screens[1].document(Envelope(SCHEMA, "relaunch", 4, Problem("connection_lost", "gone", [], None, 4)), None)
    document = json.loads(out.getvalue())
    assert [(hook["when"], hook["status"]) for hook in document["hooks"]] == [("after", 1)]
    assert (document["notice"]["outcome"], document["notice"]["by"]) == ("done", SUPERVISOR)
    assert "canary-hook" not in out.getvalue() + errors.getvalue()
