"""Relaunch, launch and teardown against an agent that answers from a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_router import RouterReport, RouterTrouble, RouterView, Worker
from orchestrator.config.routers import Router
from orchestrator.errors import ConfigError, ConnectionLostError, InterruptedByOperatorError, LockedError, RefusedError, UsageError
from orchestrator.flows.doctor import doctor
from orchestrator.flows.order import Options, Outcome
from orchestrator.flows.plan import Plan
from orchestrator.flows.relaunch import launch, relaunch
from orchestrator.flows.router import ReachedRouter
from orchestrator.flows.target import Target
from orchestrator.flows.teardown import teardown
from tests.unit.flows.fake_agent import FakeAgent, FakeBox, Heard, answer, state
from tests.unit.flows.samples import CANARY, DRIFT, OLD, OUR_DIFFERENCE, done, healthy_agent, preflight, relaunch_script, staging, survey


def yes(plan: Plan) -> bool:
    return True


def run(agent: FakeAgent, target: Target, heard: Heard, options: Options | None = None, confirm: Any = yes) -> Outcome:
    profiles = target.inventory.backends_named("flashinfer_cutedsl")
    box = FakeBox(agent)
    return relaunch(target, profiles, options or Options(), heard, confirm, box.connect, box.open)


def test_a_relaunch_submits_what_the_plan_showed_and_follows_it(target: Target) -> None:
    agent, heard = healthy_agent(), Heard()
    outcome = run(agent, target, heard, Options(grace=3.0, reason="night shift"))
    assert outcome.result == done()
    (order,) = agent.requests("submit")
    assert (order.kind, order.old, order.port, order.reason) == ("relaunch", OLD.main, 30000, "night shift")
    assert order.policy.grace == 3.0
    assert order.new.backend == "flashinfer_cutedsl"
    assert order.new.secrets == {"api-key": CANARY}
    assert heard.states == ["CHECKED", "LOCKED", "DONE"]
    assert heard.phases == ["weights"]
    assert heard.files.keys() == {"server.log", "journal.jsonl"}


def test_the_secret_is_named_before_anything_could_show_it_and_the_plan_does_not_hold_it(target: Target) -> None:
    heard = Heard()
    outcome = run(healthy_agent(), target, heard)
    assert heard.hidden == [CANARY]
    assert CANARY not in repr(outcome.plan)


def test_the_requests_tell_the_agent_where_things_are(target: Target) -> None:
    agent = healthy_agent()
    run(agent, target, Heard())
    (asked,) = agent.requests("survey")
    assert (asked.service, asked.python, asked.port, asked.state_root) == ("glm5", "/opt/sglang/bin/python", 30000, "/var/lib/orchestrator")
    (checked,) = agent.requests("preflight")
    assert checked.launch.arguments[-2:] == ["--moe-runner-backend", "flashinfer_cutedsl"]


def test_the_order_is_switched_as_the_plan_showed(target: Target) -> None:
    agent = healthy_agent(preflight=[answer(preflight(staging=staging()))])
    outcome = run(agent, target, Heard(), Options(grace=3.0))
    (asked,) = agent.requests("preflight")
    assert (asked.policy.grace, asked.sequential) == (3.0, False)
    (order,) = agent.requests("submit")
    assert order.staged
    assert order.estimate == staging().estimate
    assert outcome.plan.staging == staging()
    first, *stop, activate = outcome.plan.by_hand
    assert "--gated-launch-port GATE" in first
    assert "kill -TERM 4242" in stop[0]
    assert activate == "curl -X POST http://127.0.0.1:GATE/gate/activate"
    assert any("was never stopped" in remark for remark in outcome.plan.remarks)


def test_a_sequential_plan_makes_a_sequential_order(target: Target) -> None:
    agent = healthy_agent(preflight=[answer(preflight(staging=staging(staged=False, reason="asked for")))])
    outcome = run(agent, target, Heard(), Options(sequential=True))
    (asked,) = agent.requests("preflight")
    assert asked.sequential
    (order,) = agent.requests("submit")
    assert not order.staged
    assert order.estimate == staging().estimate
    assert "--gated-launch-port" not in " ".join(outcome.plan.by_hand)


def test_where_nothing_is_said_of_the_switch_it_is_sequential(target: Target) -> None:
    agent = healthy_agent()
    run(agent, target, Heard())
    (order,) = agent.requests("submit")
    assert (order.staged, order.estimate) == (False, None)


def test_a_launch_is_not_asked_how_it_takes_a_servers_place(target: Target) -> None:
    agent = healthy_agent(survey=[answer(survey(server=None, health="down"))], preflight=[answer(preflight(server=None))])
    box = FakeBox(agent)
    launch(target, target.inventory.backends_named("auto"), Options(), Heard(), yes, box.connect, box.open)
    (asked,) = agent.requests("preflight")
    assert asked.policy is None


def test_plan_only_shows_the_plan_and_touches_nothing(target: Target) -> None:
    agent, heard = healthy_agent(), Heard()
    outcome = run(agent, target, heard, Options(plan_only=True))
    assert outcome.result is None
    assert heard.plans == [outcome.plan]
    assert agent.requests("submit") == []


def test_drift_is_refused_until_it_is_accepted(target: Target) -> None:
    agent = healthy_agent(preflight=[answer(preflight(differences=[DRIFT, OUR_DIFFERENCE]))])
    heard = Heard()
    with pytest.raises(RefusedError) as refusal:
        run(agent, target, heard)
    assert "--mem-fraction-static" in refusal.value.evidence[0]
    assert "--accept-drift" in str(refusal.value.next_step)
    assert agent.requests("submit") == []
    assert len(heard.plans) == 1
    assert run(agent, target, Heard(), Options(accept_drift=True)).result == done()


def test_a_plan_that_would_be_refused_is_refused_with_plan_only_too(target: Target) -> None:
    agent = healthy_agent(preflight=[answer(preflight(differences=[DRIFT]))])
    with pytest.raises(RefusedError):
        run(agent, target, Heard(), Options(plan_only=True))


def test_a_refused_check_stops_it_unless_forced(target: Target) -> None:
    verdict = wire.Verdict("compute capability", wire.Outcome.REFUSE, "10.0 only", next_step="take another backend")
    agent = healthy_agent(preflight=[answer(preflight(verdicts=[verdict]))])
    with pytest.raises(RefusedError) as refusal:
        run(agent, target, Heard())
    assert refusal.value.evidence == ["compute capability: 10.0 only"]
    assert refusal.value.next_step == "take another backend"
    assert run(agent, target, Heard(), Options(force=True)).result == done()


def test_a_check_that_protects_others_is_never_forced(target: Target) -> None:
    from orchestrator.agent.preflight import NEVER_FORCED

    verdict = wire.Verdict(sorted(NEVER_FORCED)[0], wire.Outcome.REFUSE, "docker")
    agent = healthy_agent(preflight=[answer(preflight(verdicts=[verdict]))])
    with pytest.raises(RefusedError):
        run(agent, target, Heard(), Options(force=True))


def test_no_at_the_question_is_a_refusal_and_nobody_to_ask_is_wrong_usage(target: Target) -> None:
    agent = healthy_agent()
    with pytest.raises(RefusedError, match="not confirmed"):
        run(agent, target, Heard(), confirm=lambda plan: False)

    def nobody(plan: Plan) -> bool:
        raise UsageError("nobody to ask")

    with pytest.raises(UsageError):
        run(agent, target, Heard(), confirm=nobody)
    assert agent.requests("submit") == []


def test_without_a_server_a_relaunch_is_a_launch_and_says_so(target: Target) -> None:
    agent = healthy_agent(survey=[answer(survey(server=None, health="down"))], preflight=[answer(preflight(server=None, differences=[]))])
    outcome = run(agent, target, Heard())
    assert "this is a launch" in outcome.plan.remarks[0]
    assert agent.requests("submit")[0].old is None


def test_a_relaunch_that_would_change_nothing_is_refused_unless_forced(target: Target) -> None:
    inherited = wire.Difference("environment", "EDITOR_THEME", "dark", None, "inherited")
    agent, heard = healthy_agent(preflight=[answer(preflight(differences=[OUR_DIFFERENCE, inherited]))]), Heard()
    with pytest.raises(RefusedError) as refusal:
        run(agent, target, heard)
    assert "nothing would change" in refusal.value.evidence[0]
    assert "--force" in str(refusal.value.next_step)
    assert "nothing would change" in heard.plans[0].remarks[0]
    assert heard.plans[0].changes_nothing
    assert agent.requests("submit") == []
    assert run(agent, target, Heard(), Options(force=True)).result == done()


def test_a_server_that_does_not_serve_may_be_replaced_by_its_equal(target: Target) -> None:
    agent = healthy_agent(survey=[answer(survey(health="unhealthy"))], preflight=[answer(preflight(differences=[OUR_DIFFERENCE]))])
    assert run(agent, target, Heard()).result == done()


HELD = wire.OrderStatus("O7", "launch", "LOADING", True, 1764400000.0, "kim@laptop", "night shift")


@pytest.mark.parametrize("server", [OLD, None])
@pytest.mark.parametrize("verb", ["relaunch", "launch", "teardown", "doctor"])
def test_nothing_else_is_looked_at_while_an_order_is_at_work(target: Target, verb: str, server: wire.ServerInfo | None) -> None:
    agent = healthy_agent(survey=[answer(survey(server=server, order=HELD))])
    box, profiles = FakeBox(agent), target.inventory.backends_named("auto")
    connect, open_host = box.connect, box.open
    asks: dict[str, Callable[[], Any]] = {
        "relaunch": lambda: relaunch(target, profiles, Options(), Heard(), yes, connect, open_host),
        "launch": lambda: launch(target, profiles, Options(), Heard(), yes, connect, open_host),
        "teardown": lambda: teardown(target, Options(), Heard(), yes, connect),
        "doctor": lambda: doctor(target.inventory, target.host, target, profiles, Heard(), connect, open_host),
    }
    with pytest.raises(LockedError, match=r"O7.*kim@laptop \(night shift\), in LOADING") as locked:
        asks[verb]()
    assert str(locked.value.next_step).startswith("fab attach --host gpu1 --service glm5")
    assert {asked for asked, _ in agent.asked} <= {"doctor", "survey"}


def test_the_plan_holds_the_reason(target: Target) -> None:
    options = Options(plan_only=True, reason="night shift")
    assert run(healthy_agent(), target, Heard(), options).plan.reason == "night shift"
    assert teardown(target, options, Heard(), yes, FakeBox(healthy_agent()).connect).plan.reason == "night shift"


def test_the_agent_learns_how_many_gpus_there_must_be(target: Target) -> None:
    host = target.inventory.hosts["gpu1"].model_copy(update={"gpus": 8})
    expecting = dataclasses.replace(target, inventory=dataclasses.replace(target.inventory, hosts={"gpu1": host}), host=host)
    agent = healthy_agent()
    run(agent, expecting, Heard())
    assert [agent.requests(verb)[0].expected_gpus for verb in ("survey", "preflight")] == [8, 8]


def test_a_missing_secret_is_a_mistake_here_for_doctor_and_relaunch_alike(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_KEY")
    agent = healthy_agent()
    profiles, box = target.inventory.backends_named("flashinfer_cutedsl"), FakeBox(agent)
    asks: list[Callable[[], Any]] = [
        lambda: run(agent, target, Heard()),
        lambda: doctor(target.inventory, target.host, target, profiles, Heard(), box.connect, box.open),
    ]
    for ask in asks:
        with pytest.raises(ConfigError, match="secret api-key of service glm5") as missing:
            ask()
        assert "environment variable CANARY_KEY: is not set" in missing.value.evidence[0]
        assert "export CANARY_KEY" in str(missing.value.next_step)


def test_without_sglang_it_is_refused_with_what_the_survey_saw(target: Target) -> None:
    verdict = wire.Verdict("python", wire.Outcome.REFUSE, "no such file")
    agent = healthy_agent(survey=[answer(survey(sglang_version=None, verdicts=[verdict]))])
    with pytest.raises(RefusedError) as refusal:
        run(agent, target, Heard())
    assert refusal.value.evidence == ["python: no such file"]


def test_ctrl_c_while_following_says_that_it_goes_on(target: Target) -> None:
    agent = healthy_agent(follow=[[state(1, "CHECKED"), KeyboardInterrupt()]])
    with pytest.raises(InterruptedByOperatorError, match="goes on in gpu1/101"):
        run(agent, target, Heard())


def test_ctrl_c_while_submitting_admits_that_it_may_have_been_taken(target: Target) -> None:
    agent = healthy_agent(submit=[[KeyboardInterrupt()]])
    with pytest.raises(InterruptedByOperatorError, match="not known"):
        run(agent, target, Heard())


def test_a_connection_lost_while_submitting_admits_that_it_may_have_been_taken(target: Target) -> None:
    agent = healthy_agent(submit=[[ConnectionLostError("gone")]])
    with pytest.raises(ConnectionLostError, match="not known"):
        run(agent, target, Heard())


def test_a_lock_comes_through(target: Target) -> None:
    agent = healthy_agent(submit=[[LockedError("order X is at work")]])
    with pytest.raises(LockedError):
        run(agent, target, Heard())


def test_a_launch_never_replaces_a_server(target: Target) -> None:
    with pytest.raises(RefusedError, match="4242"):
        launch(
            target,
            target.inventory.backends_named("auto"),
            Options(),
            Heard(),
            yes,
            FakeBox(healthy_agent()).connect,
            FakeBox(healthy_agent()).open,
        )


def test_a_launch_on_an_empty_port_is_an_order_of_its_kind(target: Target) -> None:
    agent = healthy_agent(survey=[answer(survey(server=None))], preflight=[answer(preflight(server=None, differences=[]))])
    box = FakeBox(agent)
    launch(target, target.inventory.backends_named("auto+ep8"), Options(measure=False), Heard(), yes, box.connect, box.open)
    (order,) = agent.requests("submit")
    assert (order.kind, order.old, order.new.backend, order.policy.measure) == ("launch", None, "auto+ep8", False)


def test_a_teardown_pins_the_server_it_showed(target: Target) -> None:
    agent = healthy_agent(follow=[relaunch_script(done(service="down, as asked"))])
    teardown(target, Options(), Heard(), yes, FakeBox(agent).connect)
    (order,) = agent.requests("submit")
    assert (order.kind, order.old, order.new) == ("teardown", OLD.main, None)
    assert agent.requests("preflight") == []


@pytest.mark.parametrize(("grace", "said"), [(3.0, True), (25.0, False), (None, False)])
def test_a_short_grace_says_what_it_cuts(target: Target, grace: float | None, said: bool) -> None:
    options = Options(plan_only=True, grace=grace)
    plans = [
        run(healthy_agent(), target, Heard(), options).plan,
        teardown(target, options, Heard(), yes, FakeBox(healthy_agent()).connect).plan,
    ]
    for plan in plans:
        assert any("cuts the server's own release" in remark for remark in plan.remarks) is said


def test_a_teardown_of_nothing_submits_nothing(target: Target) -> None:
    agent, heard = healthy_agent(survey=[answer(survey(server=None))]), Heard()
    assert teardown(target, Options(), heard, yes, FakeBox(agent).connect).result is None
    assert agent.requests("submit") == []
    assert "nothing to stop" in heard.plans[0].remarks[0]


def test_a_teardown_of_a_docker_container_is_refused(target: Target) -> None:
    docker = dataclasses.replace(OLD, manager=wire.Manager(wire.ManagerKind.UNSUPPORTED, "docker"))
    agent = healthy_agent(survey=[answer(survey(server=docker))])
    with pytest.raises(RefusedError) as refusal:
        teardown(target, Options(), Heard(), yes, FakeBox(agent).connect)
    assert "docker" in refusal.value.evidence[0]


FRONT = Router.model_validate(
    {"name": "front", "url": "http://10.0.0.5:30001", "replicas": [{"service": "glm5", "worker": "http://10.0.0.1:30000"}]}
)
LISTED = RouterReport(RouterView([Worker("1", "http://10.0.0.1:30000", "m", healthy=True)], 1))


def behind_router(target: Target, monkeypatch: pytest.MonkeyPatch, flags: str) -> Target:
    """The service as the only one behind a router that is asked by the box, and from here by a stand-in."""
    router = FRONT.model_copy(update={"started_with": flags})
    monkeypatch.setattr(ReachedRouter, "look", lambda self: LISTED.view)
    return dataclasses.replace(target, inventory=dataclasses.replace(target.inventory, routers={"front": router}))


def test_behind_a_router_whose_retries_hold_the_order_takes_the_only_server_out(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    held = behind_router(target, monkeypatch, "--retry-max-retries 300 --retry-initial-backoff-ms 500 --retry-max-backoff-ms 500")
    agent = healthy_agent(preflight=[answer(preflight(staging=staging()))], router=[answer(LISTED)])
    outcome = run(agent, held, Heard())
    (order,) = agent.requests("submit")
    assert (order.router.worker, order.router.others) == ("http://10.0.0.1:30000", [])
    assert outcome.plan.held is not None
    assert outcome.plan.held.way == "removed"
    assert outcome.plan.failing is None
    assert not any("no router" in remark or "is not told" in remark for remark in outcome.plan.remarks)


def test_behind_a_router_that_the_box_does_not_reach_it_stays_in(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    held = behind_router(target, monkeypatch, "--retry-max-retries 300")
    gone = RouterReport(trouble=RouterTrouble("unreachable", "no route"))
    agent = healthy_agent(preflight=[answer(preflight(staging=staging()))], router=[answer(gone)])
    outcome = run(agent, held, Heard())
    (order,) = agent.requests("submit")
    assert order.router is None
    assert outcome.plan.held is not None
    assert (outcome.plan.held.way, outcome.plan.held.coverage is not None) == ("kept", True)


def test_without_a_router_the_requests_that_will_fail_are_counted(target: Target) -> None:
    report = dataclasses.replace(preflight(staging=staging()), request_rate=2.0)
    outcome = run(healthy_agent(preflight=[answer(report)]), target, Heard())
    assert outcome.plan.failing is not None
    assert (outcome.plan.failing.least, outcome.plan.failing.most) == (82, 92)
    assert outcome.plan.held is None
