"""The screen and the documents of a roll: its plan, how it has ended, and a router's list against the inventory's. Pure."""

from __future__ import annotations

from orchestrator.cli.blocks import Block, Line, Table, Tone
from orchestrator.cli.documents.rolls import PlannedReplica, ReplicaEnd, Rolled, RollPlanData, RollPlanned
from orchestrator.cli.text import duration
from orchestrator.flows.roll_lock import rolled_by
from orchestrator.flows.roll_plan import ReplicaPlan, RollPlan
from orchestrator.flows.roll_repair import Mend, RepairPlan
from orchestrator.results.roll import Growth, Standing, by_words, clients
from orchestrator.results.roll_records import Changed, Returned

_MENDS = {
    Mend.NOTHING: "nothing to do",
    Mend.ADD: "had in again",
    Mend.ADD_AGAIN: "taken out and had in with its key",
}


def plan_blocks(plan: RollPlan) -> list[Block]:
    """Who is rolled, how, by whom each is taken out of the router, and what speaks against it."""
    again = "" if plan.standing is None else ", taken up again"
    blocks: list[Block] = [
        Line(),
        Line(f"roll to {plan.backend} behind router {plan.router}{again}", "strong"),
        Line(f"  router  {plan.url}, asked {plan.reached}; it counts {plan.view.healthy} of {len(plan.view.workers)} workers as healthy"),
        *([Line(f"  why     {plan.reason}")] if plan.reason else []),
        Line(),
    ]
    if plan.replicas:
        rows = [[str(number), *_cells(item)] for number, item in enumerate(plan.replicas, start=1)]
        notes = ["; ".join(item.refusals) for item in plan.replicas]
        tones: tuple[tuple[int, Tone], ...] = tuple((row, "bad") for row, note in enumerate(notes) if note)
        blocks.append(Table(["", "replica", "place", "now", "switch", "out of the router"], rows, tones=tones, notes=notes))
    else:
        blocks.append(Line("no replica is left to be changed"))
    others = len(plan.view.workers) - 1
    return [
        *blocks,
        Line(),
        Line(f"note: one at a time; {others} serve meanwhile, and the next is begun when all do again and requests have reached the last"),
        Line(f"note: a replica is stopped when it has no request left, or not at all: {duration(plan.drain)} are waited for that"),
        Line("note: the first that fails is put back, and the roll stops there"),
        *[Line(f"note: {text}") for text in plan.remarks],
        Line(),
    ]


def _cells(item: ReplicaPlan) -> list[str]:
    server = None if item.plan is None else item.plan.server
    now = "nothing" if server is None else server.backend or "not ours"
    if item.already:
        return [item.replica.service, item.place, now, "serves so already", "-"]
    return [item.replica.service, item.place, now, _switch(item), by_words(item.replica.by)]


def _switch(item: ReplicaPlan) -> str:
    staging = None if item.plan is None else item.plan.staging
    if item.refusals:
        return "refused"
    if staging is None:
        return "-"
    how = "staged" if staging.staged else "sequential"
    return how if staging.estimate is None else f"{how}, about {duration(staging.estimate.seconds)}"


def plan_document(plan: RollPlan) -> RollPlanned:
    """The plan as data."""
    data = RollPlanData(
        router=plan.router,
        url=plan.url,
        reached=plan.reached,
        backend=plan.backend,
        healthy=plan.view.healthy,
        workers=plan.view.workers,
        replicas=[_planned_replica(item) for item in plan.replicas],
        drain=plan.drain,
        remarks=plan.remarks,
    )
    return RollPlanned(data)


def _planned_replica(item: ReplicaPlan) -> PlannedReplica:
    staging = None if item.plan is None else item.plan.staging
    return PlannedReplica(
        service=item.replica.service,
        host=item.replica.host,
        worker=item.replica.worker,
        by=item.replica.by,
        place=item.place,
        already=item.already,
        refusals=item.refusals,
        staged=staging is not None and staging.staged,
        differences=() if item.plan is None else item.plan.differences,
    )


def roll_blocks(standing: Standing, again: str) -> list[Block]:
    """How a roll has ended, and what its clients had of it. `again` is the command that would go on after it has stopped."""
    finished = standing.finished
    rows = [[replica.service, *_end_cells(standing, replica.service)] for replica in standing.begun.replicas]
    tones: tuple[tuple[int, Tone], ...] = tuple(
        (row, "bad") for row, replica in enumerate(standing.begun.replicas) if standing.stop and standing.stop.service == replica.service
    )
    said = "" if finished is None else finished.said
    tone: Tone = "good" if standing.exit_code == 0 else "bad"
    blocks: list[Block] = [
        Line(),
        Table(["replica", "ended", "away", "lost", "in the router"], rows, tones=tones),
        Line(),
        Line(said, tone),
    ]
    blocks += [Line(text, shade) for text, shade in _client_lines(standing)]
    if standing.stop is not None:
        blocks.append(Line(f"next: mend it, then {again}: those that serve so already are passed over"))
    return blocks


def _end_cells(standing: Standing, service: str) -> list[str]:
    end = _change_of(standing, service)
    done = standing.done.get(service)
    if end is None:
        told = "served so already" if done is not None else "refused" if standing.stop and standing.stop.service == service else "not begun"
        return [told, "-", "-", "-"]
    back = standing.returned.get(service)
    dark = "-" if end.dark_seconds is None else f"{end.dark_seconds:.1f} s"
    lost = "?" if end.lost_requests is None else str(end.lost_requests)
    return [end.state, dark, lost, "-" if back is None else "no request came" if back.requests == 0 else f"after {back.seconds:.1f} s"]


def _change_of(standing: Standing, service: str) -> Changed | None:
    return next((end for end in reversed(standing.changes) if end.service == service), None)


def _client_lines(standing: Standing) -> list[tuple[str, Tone]]:
    grown = clients(standing)
    if grown is None:
        why = (
            "it was restarted meanwhile"
            if standing.finished is not None and standing.finished.restarted
            else "its counters could not be read"
        )
        return [(f"clients: nobody knows what they had of it: the router does not tell, {why}", "warn")]
    counted = f"clients: {grown.requests} requests came to the router, {grown.answered} were answered by a replica, {grown.failed} failed"
    if grown.open > 0:
        counted += f", {grown.open} were still at work or their clients had gone"
    if grown.clean:
        return [(f"{counted}; clean: no retry, no exhausted retries, no error of a replica", "good")]
    return [(f"{counted}; not clean: {_unclean(grown)}", "warn")]


def _unclean(grown: Growth) -> str:
    named = {"retries": grown.retries, "exhausted retries": grown.exhausted, "attempts that failed": grown.upstream_errors}
    told = [f"{count} {name}" for name, count in named.items() if count]
    return ", ".join([*told, *([f"{grown.failed} requests without an answer"] if grown.failed else [])])


def roll_document(standing: Standing) -> Rolled:
    """How it has ended as data."""
    grown = clients(standing)
    return Rolled(
        router=standing.begun.router,
        backend=standing.begun.backend,
        replicas=[_replica_end(standing, replica.service) for replica in standing.begun.replicas],
        stopped_at=None if standing.stop is None else standing.stop.service,
        said="" if standing.finished is None else standing.finished.said,
        clients=grown,
        clean=None if grown is None else grown.clean,
        router_restarted=standing.finished is not None and standing.finished.restarted,
    )


def _replica_end(standing: Standing, service: str) -> ReplicaEnd:
    replica, end = standing.replica(service), _change_of(standing, service)
    done = standing.done.get(service)
    return ReplicaEnd(
        service=replica.service,
        host=replica.host,
        worker=replica.worker,
        by=replica.by,
        state=None if end is None else end.state,
        summary=None if end is None else end.summary,
        category=None if end is None else end.category,
        dark_seconds=None if end is None else end.dark_seconds,
        lost_requests=None if end is None else end.lost_requests,
        run=None if end is None else end.run,
        requests_since=done.requests if isinstance(done, Returned) else None,
        already=done is not None and end is None,
    )


def repair_blocks(plan: RepairPlan) -> list[Block]:
    """The router's list against the inventory's."""
    rows = [[item.service, item.worker, item.state, item.health or "not known", _mend(item.mend)] for item in plan.findings]
    tones: tuple[tuple[int, Tone], ...] = tuple((row, "warn") for row, item in enumerate(plan.findings) if item.mend != Mend.NOTHING)
    notes = [item.advice for item in plan.findings]
    blocks: list[Block] = [
        Line(),
        Line(f"router {plan.router} at {plan.url}", "strong"),
        Table(["replica", "worker", "in the router", "its server", "to be"], rows, tones=tones, notes=notes),
    ]
    if plan.strangers:
        blocks.append(Line(f"note: workers that the inventory does not know, which are left alone: {', '.join(plan.strangers)}"))
    if plan.rolling is not None:
        blocks.append(Line(f"note: a roll stands behind it: {rolled_by(plan.rolling)}", "warn"))
    return [*blocks, Line()]


def question(plan: RepairPlan, *, ends: bool) -> str:
    """What is asked before a repair. `ends`: the roll that stands is given up."""
    mended = f"have {len(plan.to_mend)} replicas in router {plan.router} again" if plan.to_mend else ""
    given_up = f"give up the roll {rolled_by(plan.rolling)}" if ends and plan.rolling is not None else ""
    return " and ".join(part for part in (mended, given_up) if part) + "?"


def _mend(mend: str) -> str:
    return _MENDS.get(mend, "left: see below")
