"""init: from an address to an inventory that loads, by looking at what is there. Nothing is changed on the machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agent.wire_discovery import DiscoverReport, DiscoverRequest, FoundContainer
from orchestrator.agent.wire_host import PlaceKind
from orchestrator.config.inventory import Inventory
from orchestrator.config.inventory_writer import KNOWN_HOSTS_HEADING, HostEntry
from orchestrator.errors import ConnectError, OrchestratorError, RefusedError, RightsError, UnreachableError, UsageError
from orchestrator.flows import init_parts
from orchestrator.flows.init_draft import Answers, Asker, Draft, Machine, Provisional, Surroundings
from orchestrator.flows.init_files import File, read
from orchestrator.flows.init_found import ITSELF, Seen, container_label, containers_to_ask, likeliest
from orchestrator.flows.observer import Observer

if TYPE_CHECKING:
    from orchestrator.config import Host
    from orchestrator.flows.trust import Offer
    from orchestrator.remote.ssh_config import Login

DISCOVER_SECONDS = 120.0
"""Listing the guests of a Proxmox cluster, and waking eight GPUs, take up to 20 s each."""


def draft(answers: Answers, around: Surroundings, confirm: Callable[[Offer], bool]) -> Draft:
    """Look at the machine and put together what would be written. Writes nothing but a temporary file.

    Raises:
        UsageError: something is not said and nobody can be asked, or does not fit what is there.
        RefusedError: `confirm` did not agree to a key.
        UnreachableError: the machine can't be reached, trusted or used.
    """
    known_hosts = read(around.directory / "known_hosts")
    with tempfile.TemporaryDirectory(prefix="pinned-") as folder:
        staged = Path(folder) / "known_hosts"
        before = KNOWN_HOSTS_HEADING if known_hosts is None else known_hosts
        staged.write_text(before, encoding="utf-8")
        there = around.existing
        inventory = Provisional(around.directory, there.hosts, there.services, there.backends, there.tunings, staged=staged)
        machine = find_machine(answers, around, inventory, confirm)
        pinned = staged.read_text(encoding="utf-8")
        files = [File("known_hosts", pinned, known_hosts, "host keys, as compared")] if pinned != before else []
        parts = init_parts.assemble(answers, around, inventory, machine)
    return replace(parts, files=[*files, *parts.files])


def find_machine(answers: Answers, around: Surroundings, inventory: Provisional, confirm: Callable[[Offer], bool]) -> Machine:
    """Log in, look around, and choose the place."""
    login = _login(answers)
    known = init_parts.known_host(around.existing, login)
    if known is not None and answers.name not in (None, known.name):
        what = f"{login.user}@{login.address}:{login.port} is {known.name} in hosts.yml already"
        raise UsageError(what, next_step=f"leave out --name {answers.name}")
    if known is not None and answers.container is not None:
        _require_declared(known, answers.container)
    jumps = [] if known is not None or login.jump is None else init_parts.jump_entries(around.existing, login.jump)
    host = known or init_parts.first_model(answers, login, around.existing, jumps)
    inventory = replace(inventory, hosts={**inventory.hosts, **{item.name: item for item in init_parts.models(jumps)}, host.name: host})
    try:
        offers = _trust(answers, inventory, host, around.observer, confirm)
        host, report, remarks = _look_around(answers, around, inventory, host, known=known is not None)
    except UnreachableError as error:
        raise _advised(error, answers, login) from error
    seen = [Seen(None, report), *_look_into(answers, around, inventory, host, report, known=known is not None)]
    place = _choose(answers, around.asker, seen, known=known is not None, host=host)
    if known is not None:
        remarks.append(f"{known.name} is in hosts.yml already, and its entry stays as it is")
    entries: list[HostEntry] = []
    if known is None:
        entry = init_parts.entry_of(answers, around, host, report, place, jumps, login)
        entries = [*jumps, entry]
        host = init_parts.models([entry])[0]
    return Machine(host, report, seen, place, entries, known is not None, offers, remarks)


def _require_declared(host: Host, wanted: str) -> None:
    """Raise UsageError where another container is wanted than the one of an entry that stays as it is."""
    inside = host.container
    names = [ITSELF] if inside is None else [str(item) for item in (inside.id, inside.name, inside.address) if item is not None]
    if wanted not in names:
        what = f"{host.name} is in hosts.yml already, with {'no container' if inside is None else f'container {inside.reference}'}"
        raise UsageError(f"{what}, and its entry stays as it is", next_step=f"leave out --container {wanted}, or edit the entry")


def _login(answers: Answers) -> Login:
    from orchestrator.remote.ssh_config import agent_holds_keys, login_of, usual_keys, with_keys

    login = login_of(answers.address, identity_files=answers.identity_files)
    return with_keys(login, usual_keys(), agent=agent_holds_keys())


def _trust(answers: Answers, inventory: Inventory, host: Host, observer: Observer, confirm: Callable[[Offer], bool]) -> list[Offer]:
    from orchestrator.flows.trust import trust

    found = trust(inventory, host, observer, confirm, keep_known=True, only=answers.fingerprints)
    if found.failures:
        raise found.failures[0]
    return found.offers


def _look_around(
    answers: Answers, around: Surroundings, inventory: Provisional, host: Host, *, known: bool
) -> tuple[Host, DiscoverReport, list[str]]:
    """The machine's own word, by sudo where the login is not root's and sudo asks for nothing."""
    around.observer.note(f"looking around on {host.address}")
    report = _ask(around, inventory, host, None)
    if known or report.user_id == 0 or answers.become == "none":
        return host, report, list(report.problems)
    raised = host.model_copy(update={"become": "sudo"})
    try:
        as_root = _ask(around, inventory, raised, None)
        return raised, as_root, [f"{report.user} becomes root by sudo -n", *as_root.problems]
    except RightsError as error:
        if answers.become == "sudo":
            raise
        unseen = f"{report.user} is not root, so root's containers and servers are not seen: {error.message}"
        return host, replace(report, problems=[*report.problems, unseen]), [*report.problems, unseen]


def _look_into(
    answers: Answers, around: Surroundings, inventory: Provisional, host: Host, report: DiscoverReport, *, known: bool
) -> list[Seen]:
    """What each container says that could be the one; of a machine that is in the inventory already, its own."""
    if known:
        return [] if host.container is None else [Seen(_declared(host), _ask(around, inventory, host, PlaceKind.CONTAINER))]
    found = []
    for container in containers_to_ask(report, answers.container):
        around.observer.note(f"looking into {container_label(container)}")
        try:
            found.append(Seen(container, _ask(around, inventory, host, container)))
        except UnreachableError as error:
            found.append(Seen(container, None, error.message))
    return found


def _declared(host: Host) -> FoundContainer:
    assert host.container is not None
    return FoundContainer(host.container.reached_by, host.container.reference, running=True)


def _ask(around: Surroundings, inventory: Provisional, host: Host, container: FoundContainer | str | None) -> DiscoverReport:
    if isinstance(container, FoundContainer):
        host = host.model_copy(update={"container": init_parts.container_model(container, host.state_root)})
    kind = PlaceKind.HOST if container is None else PlaceKind.CONTAINER
    root = host.place(container=container is not None).state_root
    with around.open(inventory, host, kind) as agent:
        return agent.ask("discover", DiscoverRequest(root), DiscoverReport, DISCOVER_SECONDS)


def _choose(answers: Answers, asker: Asker, seen: list[Seen], *, known: bool, host: Host) -> Seen:
    """The place that is meant: as said, the likeliest, or as somebody answers.

    Raises:
        UsageError: it can't be told.
        RefusedError: the container that was named does not answer.
    """
    if known:
        return seen[-1]
    if answers.container is not None:
        chosen = seen[0] if answers.container == ITSELF else seen[-1]
        if chosen.report is None:
            raise RefusedError(f"{chosen}", next_step="--container with another one")
        return chosen
    best = likeliest(seen)
    if best is not None:
        return best
    answering = [item for item in seen if item.report is not None]
    key = asker.choose("container", f"where on {host.address} does SGLang run", [(item.key, str(item)) for item in answering])
    return next(item for item in answering if item.key == key)


def _advised(error: UnreachableError, answers: Answers, login: Login) -> OrchestratorError:
    """The same error, with a next step that does not speak of an entry which nobody has written yet."""
    step = error.next_step or ""
    if "fab trust" in step:
        named = login.address if login.port == 22 else f"[{login.address}]:{login.port}"
        error.next_step = f"find out why; if it was reinstalled: ssh-keygen -R '{named}', in each file that is named above"
    elif isinstance(error, ConnectError) and ("ssh-add" in step or "identity_files" in step):
        error.next_step = f"fab init {answers.address} --identity ~/.ssh/KEY, or ssh-add; {_by_hand(login)} must ask for nothing"
    elif isinstance(error, ConnectError) and "hosts.yml" in step:
        error.next_step = f"the same by hand: {_by_hand(login)}"
    return error


def _by_hand(login: Login) -> str:
    return f"ssh -p {login.port} {login.user}@{login.address} true"
