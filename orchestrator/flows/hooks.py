"""The commands around an order: what they are told, and running them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.agent import wire
from orchestrator.agent.wire_notice import Afterwards
from orchestrator.errors import InterruptedByOperatorError, RefusedError
from orchestrator.flows.local_command import run_here
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Target
from orchestrator.results.hook_run import HookRun

if TYPE_CHECKING:
    from orchestrator.config import BeforeHookModel, HookModel, Hooks

SCHEMA = "orchestrator.hook/1"
BEFORE, AFTER = "before", "after"
UNLESS_HOOKED = "unless a command before it does that, "
"""Begins what a plan says this program does not do, where somebody's own command may."""


def hooks_of(target: Target) -> Hooks:
    """The commands around the orders of a service."""
    from orchestrator.config import Hooks

    return Hooks.of(target.host.hooks, target.service.hooks)


def is_missing(hook: HookModel) -> bool:
    """Whether there is no such program here."""
    return shutil.which(hook.command[0]) is None


def order_facts(
    target: Target, order_id: str, afterwards: Afterwards | None, operator: str, reason: str, folder: str | None
) -> dict[str, Any]:
    """What is known of an order before it begins. `folder`: where this run is kept."""
    return {
        "order": order_id,
        "verb": afterwards.verb if afterwards is not None else None,
        "host": target.host.name,
        "place": target.place,
        "service": target.service.name,
        "old_backend": afterwards.old_backend if afterwards is not None else None,
        "new_backend": afterwards.new_backend if afterwards is not None else None,
        "operator": operator,
        "reason": reason,
        "run": folder,
    }


def result_facts(result: wire.OrderResult) -> dict[str, Any]:
    """What is known of an order that has ended."""
    return {
        "state": result.state,
        "exit_code": result.exit_code,
        "summary": result.summary,
        "serving": result.service,
        "failure": result.failure.category if result.failure is not None else None,
        "dark_seconds": result.dark_seconds,
        "lost_requests": result.lost_requests,
        "decode": {"before": _timing(result.baseline), "after": _timing(result.measured)},
        "next_step": result.next_step,
    }


def _timing(timing: wire.DecodeTiming | None) -> dict[str, float] | None:
    """Of one stream; seconds."""
    if timing is None or timing.skipped:
        return None
    return {
        "tokens_per_second": timing.tokens_per_second,
        "time_per_output_token": timing.time_per_output_token,
        "time_to_first_token": timing.time_to_first_token,
    }


def run_hook(when: str, hook: HookModel, facts: dict[str, Any], *, refuses: bool = False) -> HookRun:
    """Run one command with the facts on its standard input."""
    given = json.dumps({"schema": SCHEMA, "when": when, **facts}, indent=2, ensure_ascii=False) + "\n"
    done = run_here(hook.command, hook.timeout, given.encode("utf-8", "replace"))
    failed = done.status != 0
    return HookRun(when, tuple(hook.command), done.status, done.seconds, done.output, done.errors, done.problem, refuses and failed)


def run_before(target: Target, order: wire.Order, observer: Observer, *, force: bool) -> bool:
    """Run the commands before an order; whether there was one.

    Raises:
        RefusedError: one of them failed that refuses the order; nothing was touched. Those after the order were told.
        InterruptedByOperatorError: Ctrl-C; the one that was at work was killed.
    """
    hooks = hooks_of(target)
    facts = order_facts(target, order.order_id, order.afterwards, order.operator, order.reason, observer.kept_in)
    begun: list[str] = []
    for hook in hooks.before:
        begun.append(shlex.join(hook.command))
        try:
            run = run_hook(BEFORE, hook, facts, refuses=hook.on_failure == "refuse" and not force)
        except KeyboardInterrupt:
            raise _interrupted(target, begun) from None
        observer.hook(run)
        if run.refuses:
            error = refusal(target, order.kind, run)
            run_untaken(target, order, observer, error.message, error.exit_code)
            raise error
    return bool(hooks.before)


def _interrupted(target: Target, begun: Sequence[str]) -> InterruptedByOperatorError:
    """Whoever interrupts wants this to end now, and not to wait for the commands after the order, which would undo those before it."""
    message = "interrupted here; nothing was touched on the box, and what the commands before it have done was not undone"
    return InterruptedByOperatorError(message, evidence=[f"run: {line}" for line in begun], next_step=target.command("status"))


def run_untaken(target: Target, order: wire.Order, observer: Observer, why: str, exit_code: int) -> None:
    """Run the commands after an order that the box never took: what those before it did may have to be undone."""
    facts = order_facts(target, order.order_id, order.afterwards, order.operator, order.reason, observer.kept_in)
    result = wire.OrderResult(order.order_id, wire.State.REFUSED, exit_code, why, "unchanged")
    for hook in hooks_of(target).after:
        observer.hook(run_hook(AFTER, hook, {**facts, **result_facts(result)}))


def refusal(target: Target, kind: str, run: HookRun) -> RefusedError:
    """What a command that failed means for its order."""
    either = "or write on_failure: warn for it" if kind == wire.OrderKind.TEARDOWN else "or give --force to go on without it"
    message = f"refused, nothing was touched: the hook before it, {run.line}, {run.ending}"
    return RefusedError(message, evidence=run.last_errors(), next_step=f"mend it, {either}")


def missing(hooks: Hooks) -> tuple[list[str], list[BeforeHookModel]]:
    """What speaks against an order already, and the commands it is about: programs that refuse it, since they are not here."""
    absent = [hook for hook in hooks.before if hook.on_failure == "refuse" and is_missing(hook)]
    return [f"hooks: there is no {hook.command[0]} here, which is to be run before" for hook in absent], absent
