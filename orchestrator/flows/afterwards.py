"""What is done around an order: planned with it, and, when it has ended, done once, whoever watches."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from orchestrator.agent import wire
from orchestrator.agent.webhook_address import parse, secret_parts
from orchestrator.agent.wire_notice import NOTICE, Afterwards, ClaimReport, ClaimRequest, Fate, FateOutcome, ReachReport, ReachRequest
from orchestrator.errors import AgentError, ConfigError, ConnectError, ConnectionLostError, OrchestratorError
from orchestrator.flows import notices
from orchestrator.flows.hooks import AFTER, BEFORE, hooks_of, missing, order_facts, result_facts, run_hook
from orchestrator.flows.observer import Observer
from orchestrator.flows.plan import HookPlan, NoticePlan, Plan, Sender
from orchestrator.flows.target import Agent, Connect, Target
from orchestrator.remote.beside import Beside
from orchestrator.results.runs import operator_name

if TYPE_CHECKING:
    from orchestrator.config import HookModel, WebhookModel

REACH_SECONDS = 20.0
"""For the question whether the box reaches the webhook, which it answers within 3 s and the time to start an agent."""
CLAIM_SECONDS = 60.0
_CLAIM_ATTEMPTS = 3


def webhook_of(target: Target) -> WebhookModel | None:
    """Where the ends of a service's orders are told: its own webhook, else its host's."""
    return target.service.webhook or target.host.webhook


class Arrangement:
    """What is to be done around an order. Made while it is looked at, since the box is asked meanwhile whether it reaches the webhook.

    The webhook's URL is in here and in the order alone, and only the box that sends gets it.
    """

    def __init__(self, agent: Agent, target: Target, observer: Observer) -> None:
        self._hooks = hooks_of(target)
        self._webhook = webhook_of(target)
        self._url: str | None = None
        self._problem = ""
        self._asked: Beside[ReachReport] | None = None
        if self._webhook is None:
            return
        try:
            self._url = _resolved(self._webhook, observer)
        except ConfigError as error:
            self._problem = error.message
            return
        if self._webhook.sender == "auto":
            address = parse(self._url)
            request = ReachRequest(address.host, address.port, address.tls)
            self._asked = Beside(lambda: agent.ask("reach", request, ReachReport, REACH_SECONDS))

    def shown_in(self, plan: Plan, *, force: bool = False) -> Plan:
        """The plan with what is done around it. A program that is missing refuses it, unless that is overruled (`force`)."""
        reasons, _ = missing(self._hooks)
        hooks = [
            *(HookPlan(BEFORE, hook.command, hook.timeout, hook.on_failure) for hook in self._hooks.before),
            *(HookPlan(AFTER, hook.command, hook.timeout) for hook in self._hooks.after),
        ]
        return dataclasses.replace(
            plan,
            hooks=hooks,
            notice=self._notice(),
            refusals=[*plan.refusals, *([] if force else reasons)],
            overruled=[*plan.overruled, *(reasons if force else [])],
            next_step=plan.next_step or ("mend the hooks in the inventory" if reasons and not force else None),
        )

    def _notice(self) -> NoticePlan | None:
        webhook = self._webhook
        if webhook is None:
            return None
        if self._url is None:
            return NoticePlan("", Sender.NOBODY, self._problem, webhook.when)
        host = parse(self._url).host
        if self._asked is None:
            return NoticePlan(host, Sender.OPERATOR, "as the inventory says", webhook.when)
        try:
            problem = self._asked.result(REACH_SECONDS).problem
        except (OrchestratorError, TimeoutError) as error:
            problem = str(error)
        if problem is None:
            return NoticePlan(host, Sender.BOX, "", webhook.when)
        return NoticePlan(host, Sender.OPERATOR, f"the box does not reach it: {problem}", webhook.when)

    def laid_into(self, order: wire.Order, plan: Plan) -> wire.Order:
        """The order with what follows its end, as the plan showed it."""
        if not plan.hooks and plan.notice is None:
            return order
        notice = plan.notice
        told = notice is not None and notice.sender != Sender.NOBODY
        afterwards = Afterwards(
            verb=plan.verb,
            host=plan.host,
            old_backend=plan.server.backend if plan.server is not None else None,
            new_backend=plan.launch.backend if plan.launch is not None else None,
            hooks=bool(self._hooks.after),
            notice=list(notice.when) if notice is not None and told else [],
            webhook=self._url if notice is not None and notice.sender == Sender.BOX else None,
        )
        return dataclasses.replace(order, afterwards=afterwards)


def _resolved(webhook: WebhookModel, observer: Observer) -> str:
    """The webhook's URL, hidden from whatever is shown or kept.

    Raises:
        ConfigError: it can't be had here.
    """
    from orchestrator.config import resolve_webhook

    url = resolve_webhook(webhook)
    observer.hide(secret_parts(url))
    return url


def conclude(agent: Agent, target: Target, order_id: str, result: wire.OrderResult, observer: Observer, connect: Connect) -> None:
    """Do here what follows an order's end and is left to do: its commands, and its notice where the box did not reach the webhook.

    The box knows what was begun by whom, so that of all who watch one does each of them. Nothing of it changes how the order ended.
    """
    hooks, webhook = hooks_of(target), webhook_of(target)
    if result.state not in wire.State.FINAL or not (hooks.after or webhook is not None):
        return
    ends = _End(agent, target, order_id, result, observer, connect)
    try:
        for hook in hooks.after:
            ends.run(hook)
        if webhook is not None:
            ends.tell(webhook)
    except OrchestratorError as error:
        step = target.command("attach", f"--order {order_id}")
        observer.warn(f"what follows the order's end can't all be done now: {error.message}; {step} does what is left")


class _End:
    """The end of one order, to the operator's end."""

    def __init__(self, agent: Agent, target: Target, order_id: str, result: wire.OrderResult, observer: Observer, connect: Connect) -> None:
        self._agent: Agent | None = agent
        self._target = target
        self._order_id = order_id
        self._result = result
        self._observer = observer
        self._connect = connect
        self._token = secrets.token_hex(8)

    def run(self, hook: HookModel) -> None:
        """Run a command after the order, unless somebody did or does."""
        what = _name(hook)
        claimed = self._ask(what)
        if not claimed.granted:
            if claimed.fate is not None:
                self._observer.note(f"hook after it, {hook.command[0]}: {claimed.fate.outcome} by {claimed.fate.by}, not again")
            return
        facts = order_facts(
            self._target, self._order_id, claimed.afterwards, claimed.operator, claimed.reason, self._observer.kept_in
        ) | result_facts(self._result)
        ran = run_hook(AFTER, hook, facts)
        self._observer.hook(ran)
        self._settle(what, FateOutcome.DONE if ran.good else FateOutcome.FAILED, ran.ending)

    def tell(self, webhook: WebhookModel) -> None:
        """See what became of the notice, and send it where that is left to do."""
        claimed = self._ask(NOTICE)
        if not claimed.granted:
            if claimed.fate is not None:
                self._observer.notice(claimed.fate)
            return
        if claimed.fate is not None and claimed.fate.detail:
            self._observer.note(f"the notice is sent from here, as the box could not: {claimed.fate.detail}")
        try:
            url = _resolved(webhook, self._observer)
        except ConfigError as error:
            outcome, detail = FateOutcome.UNREACHED, error.message
        else:
            outcome, detail = notices.post(url, claimed.text)
        self._observer.notice(self._settle(NOTICE, outcome, detail))

    def _settle(self, what: str, outcome: str, detail: str) -> Fate:
        fate = Fate(operator_name(), outcome, detail, token=self._token)
        self._ask(what, fate)
        return fate

    def _ask(self, what: str, fate: Fate | None = None) -> ClaimReport:
        """Ask the box, over the connection that there is or a new one. Asked twice it answers the same, so it may be asked again."""
        request = ClaimRequest(self._target.service.name, self._target.state_root, self._order_id, what, operator_name(), self._token, fate)
        retrying = Retrying(
            retry=retry_if_exception_type((ConnectError, ConnectionLostError, AgentError)),
            stop=stop_after_attempt(_CLAIM_ATTEMPTS),
            wait=wait_exponential(multiplier=0.5, max=2),
            reraise=True,
        )
        return retrying(self._ask_once, request)

    def _ask_once(self, request: ClaimRequest) -> ClaimReport:
        if self._agent is not None:
            agent, self._agent = self._agent, None
            report = agent.ask("claim", request, ClaimReport, CLAIM_SECONDS)
            self._agent = agent
            return report
        with self._connect(self._target) as agent:
            return agent.ask("claim", request, ClaimReport, CLAIM_SECONDS)


def _name(hook: HookModel) -> str:
    """By what the box knows a command: the same for all operators who have it in their inventory by the same name."""
    words = [hook.command[0].rpartition("/")[2], *hook.command[1:]]
    return hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()[:16]
