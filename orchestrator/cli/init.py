"""init: from zero to an inventory of one's own machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.agent.private_files import DEFAULT_ROOT
from orchestrator.cli.blocks import Line, indented
from orchestrator.cli.called import as_typed
from orchestrator.cli.common import SHARED_FLAGS, asked, inventory_to_write, positive
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import OrchestratorError, RefusedError, UsageError
from orchestrator.flows.observer import Observer, Observers

if TYPE_CHECKING:
    from orchestrator.cli.documents.new_inventory import Checks, NewInventory
    from orchestrator.config import Inventory
    from orchestrator.flows.init_draft import Draft
    from orchestrator.flows.plan import Plan
    from orchestrator.flows.target import Target

_ADDRESS = "address of the machine or container, as ssh takes it (user@address:port, or a Host of ~/.ssh/config)"


@verb(
    gathers="address",
    several=("identity", "fingerprint"),
    flags={
        "address": "Machine or container, as ssh takes it: user@address:port, or a Host of ~/.ssh/config. Its flag may be left out.",
        "name": "What the machine is called in the inventory; else its own name.",
        "identity": "A private key to log in with, instead of the SSH agent's; may be given several times.",
        "fingerprint": "A host key's SHA256:... that was compared already; no other key is accepted then. May be given several times.",
        "become": "sudo | none: whether to become root by sudo -n; else where that is possible.",
        "container": "The container that SGLang runs in, by number or name; none: the machine itself. Else the likeliest.",
        "port": "The port of the SGLang server, where several run; else 30000 where none runs.",
        "service": "What the service is called in the inventory; else its model's name.",
        "python": "The Python that has SGLang, where no server runs.",
        "model": "The model's folder, where no server runs.",
        "tuning": "The tuning profile to begin with: observe, blackwell-pcie, or one that the inventory has.",
        "backend": "The backend profile to check and plan for at the end; else the service's own.",
        "state-root": "The folder in each place that will hold the services' state folders.",
        "plan": "Show what would be written and stop.",
        "yes": "Do not ask: host keys were compared elsewhere, and what is likeliest is meant.",
        **SHARED_FLAGS,
        "inventory": "Inventory folder, made where there is none; else $ORCHESTRATOR_INVENTORY, else ./inventory here or above.",
    },
)
def init(
    call: Call,
    address: str | None = None,
    name: str | None = None,
    identity: Collection[str] | None = None,
    fingerprint: Collection[str] | None = None,
    become: str | None = None,
    container: str | None = None,
    port: str | None = None,
    service: str | None = None,
    python: str | None = None,
    model: str | None = None,
    tuning: str | None = None,
    backend: str | None = None,
    state_root: str = DEFAULT_ROOT,
    plan: bool = False,
    yes: bool = False,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Look at a machine over SSH and write its inventory: host, service, tuning; overwrites nothing. Ends with doctor and a plan."""
    from orchestrator.cli.init_text import draft_blocks, next_blocks, written_blocks
    from orchestrator.flows.init import draft as look
    from orchestrator.flows.init_draft import Answers, Surroundings
    from orchestrator.flows.init_files import put_in_place

    call.interrupted = "interrupted; nothing was written"
    if become not in (None, "sudo", "none"):
        raise UsageError(f"--become takes sudo or none; {become!r} is neither")
    questions = Questions(call, yes=yes)
    directory = inventory_to_write(inventory)
    answers = Answers(
        address=_one_address(address) or questions.text("address", _ADDRESS) or "",
        name=name,
        identity_files=[_key(item) for item in identity or ()],
        fingerprints=list(fingerprint or ()),
        become=become,
        container=container,
        port=None if port is None else positive("port", port),
        service=service,
        python=python,
        model=model,
        tuning=tuning,
        state_root=state_root,
    )
    around = Surroundings(directory, _existing(directory), call.screen, questions)
    made = look(answers, around, _confirm(call, yes=yes, compared=bool(fingerprint)))
    if backend is not None:
        made.inventory.backends_named(backend)  # a name that does not exist is told before anything is written
    files = [dataclasses.replace(file, text=(file.before or "") + as_typed(file.added)) for file in made.files]
    made = dataclasses.replace(made, files=files)
    call.screen.show(draft_blocks(made))
    if plan:
        call.answer(_answer(made))
        return 0
    if made.files and not asked(call, f"write {len(made.files)} files to {directory} now?", yes=yes):
        raise RefusedError("not confirmed, nothing was written")
    put_in_place(directory, made.files)
    call.interrupted = f"interrupted; the inventory {directory} is written"
    call.screen.show(written_blocks(made))
    checks, planned = _check(call, made, backend)
    call.screen.show(next_blocks(made, found_by_itself=inventory_to_write(None) == directory))
    call.answer(dataclasses.replace(_answer(made), written=bool(made.files), checks=checks, plan=planned))
    return 0


class Questions:
    """Asks on a terminal. Where nobody sits, or `yes` was said, defaults are taken, and what has none must be a flag."""

    def __init__(self, call: Call, *, yes: bool) -> None:
        self._screen = call.screen
        self._asks = call.screen.interactive and not yes

    def text(self, flag: str, question: str, default: str | None = None, *, optional: bool = False) -> str | None:
        """See :class:`orchestrator.flows.init_draft.Asker`."""
        if not self._asks:
            if default is None and not optional:
                raise UsageError(f"{question}: nobody can be asked here", next_step=f"say it with --{flag}")
            return default
        while True:
            given = self._screen.prompt(question, default or "")
            if given is None:
                raise UsageError(f"{question}: no answer", next_step=f"say it with --{flag}")
            if given or optional:
                return given or None

    def choose(self, flag: str, question: str, options: Sequence[tuple[str, str]]) -> str:
        """See :class:`orchestrator.flows.init_draft.Asker`."""
        if not self._asks:
            evidence = [f"--{flag} {value}: {what}" for value, what in options]
            raise UsageError(f"{question}? It can't be told, and nobody can be asked here", evidence=evidence, next_step=f"--{flag}")
        self._screen.show(
            [Line(f"{question}?", "strong"), *indented(f"{number}  {value}: {what}" for number, (value, what) in _numbered(options))]
        )
        while True:
            given = self._screen.prompt(f"1 to {len(options)}")
            if given is None:
                raise UsageError(f"{question}: no answer", next_step=f"say it with --{flag}")
            for number, (value, _) in _numbered(options):
                if given in (str(number), value):
                    return value


def _numbered(options: Sequence[tuple[str, str]]) -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(options, 1))


def _one_address(text: str | None) -> str | None:
    if text is not None and "," in text:
        raise UsageError(f"one address at a time; {text!r} is several", next_step="fab init once for each")
    return text


def _key(text: str) -> str:
    """A key's file as hosts.yml has it: from the operator's home, or absolute.

    Raises:
        UsageError: there is no such file.
    """
    path = Path(os.path.abspath(Path(text).expanduser()))
    if not path.is_file() and not Path(f"{path}.pub").is_file():
        raise UsageError(f"--identity {text}: there is no such file", next_step="ls ~/.ssh")
    home = f"{Path.home()}/"
    return f"~/{str(path).removeprefix(home)}" if str(path).startswith(home) else str(path)


def _existing(directory: Path) -> Inventory:
    """What is in the inventory already; nothing where there is none.

    Raises:
        ConfigError: it has mistakes.
    """
    from orchestrator.config import Inventory, load_inventory

    return load_inventory(directory) if (directory / "hosts.yml").exists() else Inventory(directory)


def _confirm(call: Call, *, yes: bool, compared: bool) -> Callable[[Any], bool]:
    from orchestrator.cli.inventory import accepted

    return lambda offer: accepted(call, offer, yes=yes or compared, flags="--fingerprint SHA256:..., or --yes")


def _answer(made: Draft) -> NewInventory:
    """As long as nothing is written."""
    from orchestrator.cli.documents.new_inventory import FileAdded, NewInventory, PlaceSeen

    return NewInventory(
        inventory=str(made.directory),
        host=made.host.name,
        service=None if made.target is None else made.target.service.name,
        files=[FileAdded(file.name, file.before is None, file.added) for file in made.files],
        paste=made.paste or None,
        unfinished=made.unfinished or None,
        offers=made.offers,
        places=[PlaceSeen(item.key, item.problem or None, item.report) for item in made.seen],
        remarks=made.remarks,
    )


def _check(call: Call, made: Draft, backend: str | None) -> tuple[Checks, Plan | None]:
    """The exit codes of the diagnosis and of the plan, and the plan as far as it was made; what is red undoes nothing."""
    from orchestrator.cli.documents.new_inventory import Checks
    from orchestrator.config import load_inventory

    inventory = made.inventory if made.paste else load_inventory(made.directory)
    target = None
    if made.target is not None and not made.paste:
        from orchestrator.flows.target import Target

        service = inventory.service(made.target.service.name)
        target = Target(inventory, inventory.host(service.host), service)
    heard = _PlanHeard([call.screen])
    doctor = _told(call, lambda: _doctor(call, inventory, made, target, backend))
    plan = None if target is None else _told(call, lambda: _plan(call, target, backend, heard, serves=made.server is not None))
    return Checks(doctor, plan), heard.found


class _PlanHeard(Observers):
    """Remembers the plan, also where it is refused."""

    found: Plan | None = None

    def plan(self, plan: Plan) -> None:
        super().plan(plan)
        self.found = plan


def _told(call: Call, check: Callable[[], int]) -> int:
    from orchestrator.cli.text import error_blocks

    try:
        return check()
    except OrchestratorError as error:
        call.screen.error(error_blocks(error.message, error.evidence, error.next_step))
        return error.exit_code


def _doctor(call: Call, inventory: Inventory, made: Draft, target: Target | None, backend: str | None) -> int:
    from orchestrator.cli.doctor_text import diagnosis_blocks
    from orchestrator.flows.doctor import doctor

    named = backend or (target.service.backend if target is not None else None) or "auto"
    profiles = inventory.backends_named(named) if target is not None else []
    call.screen.show([Line(), Line(f"fab doctor --host {made.host.name}", "strong", whole=True)])
    found = doctor(inventory, inventory.host(made.host.name), target, profiles, call.screen)
    call.screen.show(diagnosis_blocks(found))
    return found.exit_code


def _plan(call: Call, target: Target, backend: str | None, observer: Observer, *, serves: bool) -> int:
    from orchestrator.flows.order import Options
    from orchestrator.flows.relaunch import launch, relaunch

    named = backend or target.service.backend or "auto"
    profiles = target.inventory.backends_named(named)
    run, name = (relaunch, "relaunch") if serves else (launch, "launch")
    call.screen.show([Line(), Line(target.command(name, f"--backend {named}", "--plan"), "strong", whole=True)])
    outcome = run(target, profiles, Options(plan_only=True, again=True), observer, lambda plan: False)
    return 0 if outcome.result is None else outcome.result.exit_code
