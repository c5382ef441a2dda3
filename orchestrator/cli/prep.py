"""prep: bring hosts to their tuning profiles, say whether they have drifted, put things back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.blocks import Line
from orchestrator.cli.common import FLEET_FLAGS, SHARED_FLAGS, WAIT_FLAG, forks_of, hosts_text, load, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.blocks import Block
    from orchestrator.cli.documents.envelope import Problem
    from orchestrator.cli.documents.hosts import PreparedHost, PreparedPlace
    from orchestrator.config import Host, Inventory
    from orchestrator.errors import OrchestratorError
    from orchestrator.flows.prep import HostPrep, PrepOptions
    from orchestrator.flows.prep_outcome import PlaceTuning

_FLAGS = {
    **FLEET_FLAGS,
    "profile": "Tuning profile, instead of the host's own (tuning: in hosts.yml).",
    "check": "Only say whether the host has drifted (exit code 8). Nothing is written.",
    "plan": "Show what would be done, with the commands by hand, and stop. Nothing is written.",
    "persist": "Also have the profile applied at each boot, before any guest starts.",
    "unpersist": "Apply nothing at boot any more; knobs stay as they are.",
    "revert": "Put the values back that were there before the first prep; nothing is applied at boot any more.",
    "reason": "Why, for the record on the host.",
    **WAIT_FLAG,
    **SHARED_FLAGS,
}
_CONTRADICTIONS = (
    ("check", "plan", "--check says whether it has drifted, --plan shows what would be done about it"),
    ("check", "persist", "--check writes nothing"),
    ("check", "unpersist", "--check writes nothing"),
    ("check", "revert", "--check writes nothing; --plan --revert shows what a revert would do"),
    ("persist", "unpersist", "one sets what is done at boot, the other removes it"),
    ("persist", "revert", "a revert also removes what is done at boot"),
)


@verb(flags=_FLAGS, many_hosts=True)
def prep(
    call: Call,
    host: str | None = None,
    profile: str | None = None,
    check: bool = False,
    plan: bool = False,
    persist: bool = False,
    unpersist: bool = False,
    revert: bool = False,
    reason: str = "",
    wait: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    forks: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Bring hosts to their tuning profile: what was, what is, how it is known. After each reboot; a second run changes nothing.

    fab prep --host gpu1 --plan        what would be done; writes nothing
    fab prep --host gpu1,gpu2          do it, on many at the same time
    fab prep --all --check             exit code 8 when one has drifted
    """
    given = {"check": check, "plan": plan, "persist": persist, "unpersist": unpersist, "revert": revert}
    _refuse_contradictions(given)
    loaded = load(inventory)
    hosts = _choose(call, loaded, hosts_text(host, all=all), profile)
    return _Report(call, loaded, hosts, _options(given, reason, seconds("wait", wait) or 0.0), forks_of(forks), check=check).run(profile)


def _refuse_contradictions(given: dict[str, bool]) -> None:
    for one, other, why in _CONTRADICTIONS:
        if given[one] and given[other]:
            raise UsageError(f"--{one} and --{other} can't be had together: {why}", next_step="leave out one of the two")


def _options(given: dict[str, bool], reason: str, wait: float) -> PrepOptions:
    from orchestrator.agent.wire_host import PersistenceAction, TuneAction
    from orchestrator.flows.prep import PrepOptions

    persistence = {"persist": PersistenceAction.INSTALL, "unpersist": PersistenceAction.REMOVE}
    return PrepOptions(
        write=not (given["check"] or given["plan"]),
        action=TuneAction.REVERT if given["revert"] else TuneAction.APPLY,
        persistence=next((action for flag, action in persistence.items() if given[flag]), PersistenceAction.KEEP),
        reason=reason,
        plan=given["plan"],
        wait=wait,
    )


def _choose(call: Call, inventory: Inventory, text: str | None, profile: str | None) -> list[Host]:
    """The hosts that are meant. Of ``all``, those that have a profile.

    Raises:
        UsageError: none is named and there are several, or there is no such host.
    """
    if text is None and len(inventory.hosts) > 1:
        raise UsageError(
            "which host? Say it with --host NAME, --host NAME,NAME, --host GROUP or --all",
            evidence=[f"hosts: {', '.join(inventory.hosts)}"],
            next_step="fab hosts",
        )
    named = inventory.hosts_named("all" if text is None else text)
    for item in named:
        if item.by_container:
            label = item.host.place(container=True).label
            call.screen.note(f"{label} is on {item.host.name}: knobs of the host are set on {item.host.name} itself")
    hosts = [item.host for item in named]
    if text != "all" or profile is not None:
        return hosts
    without = [item.name for item in hosts if item.tuning is None]
    if len(without) == len(hosts):
        raise UsageError(
            "no host of the inventory has a tuning profile", next_step="write tuning: NAME for each in hosts.yml, or give --profile NAME"
        )
    if without:
        call.screen.note(f"left out, as hosts.yml names no tuning: for them: {', '.join(without)}")
    return [item for item in hosts if item.tuning is not None]


class _Report:
    """What is shown and kept of one call."""

    def __init__(self, call: Call, inventory: Inventory, hosts: Sequence[Host], options: PrepOptions, forks: int, *, check: bool) -> None:
        self._call = call
        self._inventory = inventory
        self._hosts = hosts
        self._options = options
        self._forks = forks
        self._check = check
        self._heard = 0
        self._profile_flag = ""

    def run(self, profile: str | None) -> int:
        """Prepare, show, keep; returns the exit code."""
        from orchestrator.cli.documents.hosts import Prepared
        from orchestrator.errors import worst
        from orchestrator.flows.prep import TUNE_SECONDS, prep_all

        call = self._call
        self._profile_flag = "" if profile is None else f" --profile {profile}"
        call.interrupted = "interrupted; nothing was touched"
        call.screen.outlives_reader = self._options.write
        call.screen.note(f"inventory {self._inventory.label}")
        number = len(self._hosts)
        limit = f"at most {TUNE_SECONDS + self._options.wait:g} s"
        many = f"asking {number} hosts, {min(self._forks, number)} at a time, {limit} each"
        call.screen.note(f"asking {self._hosts[0].name}, for {limit}" if number == 1 else many)
        if self._options.write:
            call.keep_run(self._hosts[0].name if number == 1 else f"{number}-hosts")
        done = prep_all(self._inventory, self._hosts, profile, self._options, self._told, self._forks, note=call.screen.note)
        call.interrupted = "interrupted"
        code = worst([prep.exit_code for prep in done])
        code = call.interrupted_code if code == _INTERRUPTED else code
        tracebacks = self._keep(done)
        self._show(done, tracebacks)
        hosts = [host_document(prep) for prep in done]
        if call.run is not None:
            call.run.keep("prep.json", {"mode": self._mode, "hosts": hosts, "exit_code": code})
        call.answer(Prepared(str(self._inventory.directory), self._mode, hosts))
        return code

    @property
    def _mode(self) -> str:
        what = "revert" if self._options.action == "revert" else "unpersist" if not self._options.about_knobs else "apply"
        return "check" if self._check else what if self._options.write else f"plan {what}"

    def _told(self, prep: HostPrep) -> None:
        """One line for each host as it comes, where there are several."""
        self._heard += 1
        if len(self._hosts) == 1:
            return
        from orchestrator.cli.prep_text import first_problem, summary, tone

        text = summary(prep) if prep.results or not prep.exit_code else first_problem(prep)
        self._call.screen.event(f"{self._heard}/{len(self._hosts)}  {prep.host}: {text}", tone(prep))

    def _keep(self, done: Sequence[HostPrep]) -> list[str]:
        """Make the run folder where something was written or may have been; the evidence for what was not foreseen."""
        if self._call.run is not None and any(_left_something(prep) for prep in done):
            self._call.run.begin()
        causes = [error.__cause__ for prep in done for error in _errors(prep) if _is_unforeseen(error) and error.__cause__ is not None]
        return self._call.keep_tracebacks(*causes) if causes else []

    def _show(self, done: Sequence[HostPrep], tracebacks: list[str]) -> None:
        from orchestrator.cli.prep_fleet import fleet_summary, fleet_table, next_step, next_steps
        from orchestrator.cli.prep_text import check_blocks, host_blocks

        screen = self._call.screen
        for prep in done:
            for warning in prep.warnings:
                screen.warn(warning)
        if len(done) > 1:
            screen.show([Line(), fleet_table(done), Line()])
            self._tell_errors(done, tracebacks, short=True)
            steps = next_steps(done, check=self._check, profile_flag=self._profile_flag)
            screen.show([*(Line(f"next: {step}", whole=True) for step in steps), fleet_summary(done), *self._verdict(done)])
            return
        (prep,) = done
        self._tell_errors(done, tracebacks, short=False)
        if not prep.reports or all(part.report is None for part in prep.reports):
            return
        blocks = check_blocks(prep) if self._check else host_blocks(prep)
        step = next_step(prep, check=self._check, profile_flag=self._profile_flag)
        screen.show([*blocks, *([Line(f"next: {step}", whole=True)] if step else []), *self._verdict(done)])

    def _verdict(self, done: Sequence[HostPrep]) -> list[Block]:
        """The last line of a plan."""
        if not self._options.plan:
            return []
        from orchestrator.cli.verdict_text import again, prep_verdict

        return prep_verdict(done, again(self._call.verb, self._call.flags))

    def _tell_errors(self, done: Sequence[HostPrep], tracebacks: list[str], *, short: bool) -> None:
        """Why places could not be asked. Of many hosts only what to type next: the table has the rest."""
        from orchestrator.cli.text import commands, error_blocks

        for prep in done:
            for error in _errors(prep):
                evidence = [*error.evidence, *(tracebacks if _is_unforeseen(error) else [])]
                next_step = "report it with that file" if _is_unforeseen(error) else error.next_step
                if not short:
                    self._call.screen.error(error_blocks(error.message, evidence, next_step, commands(error.see)))
                elif next_step and error.exit_code != _INTERRUPTED:
                    self._call.screen.error([Line(f"{prep.host}, next: {next_step}", whole=True)])
        if short and tracebacks:
            self._call.screen.error([Line(line) for line in tracebacks])


_INTERRUPTED = 130


def _errors(prep: HostPrep) -> list[OrchestratorError]:
    """A host's errors, each once: a container that is entered from the host has the same."""
    every = [prep.error, *(part.error for part in prep.reports)]
    return list({error.message: error for error in every if error is not None}.values())


def _is_unforeseen(error: OrchestratorError) -> bool:
    from orchestrator.errors import OrchestratorError

    return type(error) is OrchestratorError


def _left_something(prep: HostPrep) -> bool:
    """Whether something was written, or may have been."""
    from orchestrator.agent.wire_host import KnobOutcome
    from orchestrator.errors import ConnectError, HostKeyError, LockedError, RefusedError, RightsError

    untouched = (ConnectError, HostKeyError, LockedError, RefusedError, RightsError)
    if any(not isinstance(error, untouched) for error in _errors(prep)):
        return True
    changes = [path for part in prep.reports if part.report is not None for path in part.report.changes]
    return bool(changes) or any(result.outcome == KnobOutcome.FAILED or result.before != result.after for result in prep.results)


def host_document(prep: HostPrep) -> PreparedHost:
    """One host as data: the same shape for one and for many."""
    from collections import Counter

    from orchestrator.cli.documents.hosts import PreparedHost

    return PreparedHost(
        host=prep.host,
        profile=prep.profile,
        exit_code=prep.exit_code,
        seconds=round(prep.seconds, 3),
        counts=dict(Counter(result.outcome for result in prep.results)),
        error=_problem(prep.error),
        warnings=prep.warnings,
        places=[_place_document(part) for part in prep.reports],
    )


def _place_document(part: PlaceTuning) -> PreparedPlace:
    from orchestrator.cli.documents.hosts import PreparedPlace

    return PreparedPlace(place=part.label, kind=part.kind, stands_in=part.stands_in, error=_problem(part.error), report=part.report)


def _problem(error: OrchestratorError | None) -> Problem | None:
    from orchestrator.cli.documents.envelope import Problem

    return None if error is None else Problem.of(error)
