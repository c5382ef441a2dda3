"""The parts of an inventory that ``fab init`` puts together: entries of hosts.yml, a service, a tuning profile, backend profiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from orchestrator.agent.command_lines import DEFAULT_PORT
from orchestrator.agent.wire_discovery import DiscoverReport, FoundContainer, FoundServer
from orchestrator.config.inventory import Inventory
from orchestrator.config.inventory_writer import HostEntry, host_text, tuning_text, with_entries
from orchestrator.config.models import Container, Host
from orchestrator.config.service_file import FoundServer as ServerToWrite
from orchestrator.config.service_file import ServiceFile, default_name, service_file
from orchestrator.errors import ConfigError, LockedError, RefusedError, RightsError, UsageError
from orchestrator.flows import init_found
from orchestrator.flows.init_draft import Answers, Draft, Machine, Provisional, Surroundings
from orchestrator.flows.init_files import File, read, rehearsal
from orchestrator.flows.init_found import Seen
from orchestrator.flows.target import Target
from orchestrator.folders import shipped_profiles

if TYPE_CHECKING:
    from orchestrator.config import Service
    from orchestrator.remote.ssh_config import Login


@dataclass(frozen=True)
class ServicePart:
    """The service's file, if there is one to write, and what there is to say of it."""

    file: File | None = None
    service: Service | None = None
    unfinished: str = ""
    remarks: list[str] = field(default_factory=list)


def known_host(inventory: Inventory, login: Login) -> Host | None:
    """The entry that is this login already."""
    same = (host for host in inventory.hosts.values() if (host.address, host.port, host.user) == (login.address, login.port, login.user))
    return next(same, None)


def jump_entries(inventory: Inventory, login: Login) -> list[HostEntry]:
    """Entries for the logins that lead to another one and have none yet, the first to be gone through first."""
    before = [] if login.jump is None else jump_entries(inventory, login.jump)
    if known_host(inventory, login) is not None:
        return before
    taken = {*inventory.hosts, *(entry.name for entry in before)}
    name = init_found.host_name(login.alias, login.alias if login.is_alias else "jump", taken)
    entry = HostEntry(
        name,
        login.address,
        login.user,
        login.port,
        identity_files=login.identity_files,
        jump=None if login.jump is None else _name_of(inventory, login.jump, before),
        about="On the way to others (ProxyJump). Written by fab init.",
    )
    return [*before, entry]


def _name_of(inventory: Inventory, login: Login, entries: Sequence[HostEntry]) -> str:
    known = known_host(inventory, login)
    if known is not None:
        return known.name
    return next(entry.name for entry in entries if (entry.address, entry.port, entry.user) == (login.address, login.port, login.user))


def first_model(answers: Answers, login: Login, inventory: Inventory, jumps: Sequence[HostEntry]) -> Host:
    """The machine as it is logged in to, before anything is known of it.

    Raises:
        UsageError: its name is taken, or something that was said can't stand in an inventory.
    """
    taken = {*inventory.hosts, *(entry.name for entry in jumps)}
    if answers.name in taken:
        raise UsageError(f"host {answers.name} is in the inventory already, as another machine", next_step="--name with another name")
    entry = HostEntry(
        answers.name or _provisional_name(login.alias, taken),
        login.address,
        login.user,
        login.port,
        identity_files=login.identity_files,
        jump=None if login.jump is None else _name_of(inventory, login.jump, jumps),
        state_root=answers.state_root,
    )
    return models([entry])[0]


def _provisional_name(alias: str, taken: Collection[str]) -> str:
    """What it is called until it has said its own name: as it was typed, where that can be a name."""
    name = alias.replace(":", "-").replace("%", "-").strip("-")
    return name if name not in taken else f"{name}-new"


def models(entries: Sequence[HostEntry]) -> list[Host]:
    """The entries as an inventory would have them: what is written is what is used.

    Raises:
        UsageError: something that was said can't stand in an inventory.
    """
    from pydantic import ValidationError

    found = []
    for entry in entries:
        ((name, data),) = yaml.safe_load(host_text(entry)).items()
        try:
            found.append(Host.model_validate({"name": name, **data}))
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg'].removeprefix('Value error, ')}" for item in error.errors()]
            raise UsageError(f"this can't be host {entry.name}", evidence=problems, next_step="fab init --help") from None
    return found


def container_model(container: FoundContainer, state_root: str) -> Container:
    """A container, as it is entered through its host."""
    entry = init_found.container_entry(container)
    return Container(reached_by=entry.reached_by, id=entry.id, name=entry.name, state_root=state_root)


def entry_of(
    answers: Answers, around: Surroundings, host: Host, report: DiscoverReport, place: Seen, jumps: Sequence[HostEntry], login: Login
) -> HostEntry:
    """What hosts.yml would say of the machine, under the name that somebody wants."""
    taken = {*around.existing.hosts, *(entry.name for entry in jumps)}
    name = answers.name or around.asker.text(
        "name", "what is this machine to be called in the inventory", init_found.host_name(login.alias, report.host_name, taken)
    )
    if name is None or name in taken:
        raise UsageError(f"host {name} is in the inventory already, as another machine", next_step="--name with another name")
    gpus, comment = init_found.agreed_gpus(report, place.report if place.container is not None else None)
    return HostEntry(
        name,
        host.address,
        host.user,
        host.port,
        become=host.become,
        identity_files=login.identity_files,
        jump=host.jump,
        state_root=host.state_root,
        gpus=gpus,
        gpus_comment=comment,
        tuning=answers.tuning if answers.tuning in around.existing.tunings else name,
        container=None if place.container is None else init_found.container_entry(place.container),
        about=init_found.about(report, place),
    )


def assemble(answers: Answers, around: Surroundings, inventory: Provisional, machine: Machine) -> Draft:
    """All files, rehearsed: what is given back loads as a whole.

    Raises:
        UsageError: something is not said and nobody can be asked.
        ConfigError: with what is there already, it would not load.
    """
    remarks = list(machine.remarks)
    entries = machine.entries
    tuning = [] if machine.known else _tuning(answers, around, machine, remarks)
    files = [*_backends(around.directory, around.existing, remarks), *tuning]
    hosts_text = read(around.directory / "hosts.yml")
    text = with_entries(hosts_text, entries) if entries else None
    paste = "".join(host_text(entry) for entry in entries) if entries and text is None else ""
    if text is not None:
        files.append(File("hosts.yml", text, hosts_text, f"{machine.host.name} and how it is reached"))
    inventory = _with_machine(inventory, machine)
    server = _chosen_server(around, answers, machine.place)
    part = _service(answers, around, inventory, machine, server)
    if part.file is not None and not paste:
        files.append(part.file)
    unfinished = part.file.text if part.file is not None and paste else part.unfinished
    loaded = _rehearsed(around.directory, files)
    services = {**inventory.services, **({} if part.service is None else {part.service.name: part.service})}
    whole = Inventory(around.directory, inventory.hosts, services, loaded.backends, loaded.tunings)
    target = None if part.service is None else Target(whole, machine.host, part.service)
    return Draft(
        directory=around.directory,
        files=files,
        inventory=whole,
        host=machine.host,
        target=target,
        seen=machine.seen,
        server=server,
        offers=machine.offers,
        remarks=[*remarks, *part.remarks],
        paste=paste,
        unfinished=unfinished,
    )


def _with_machine(inventory: Provisional, machine: Machine) -> Provisional:
    added = {host.name: host for host in models(machine.entries)}
    return replace(inventory, hosts={**inventory.hosts, **added})


def _rehearsed(directory: Path, files: Sequence[File]) -> Inventory:
    from orchestrator.config import load_inventory

    with rehearsal(directory, files) as copy:
        try:
            return load_inventory(copy)
        except ConfigError as error:  # what is there of an inventory that was none yet, as it had no hosts.yml
            evidence = [line.replace(str(copy), str(directory)) for line in error.evidence]
            message = error.message.replace(str(copy), str(directory))
            step = (error.next_step or "").replace(str(copy), str(directory))
            raise ConfigError(f"nothing is written, as it would not load: {message}", evidence=evidence, next_step=step) from None


def _backends(directory: Path, existing: Inventory, remarks: list[str]) -> list[File]:
    """The shipped backend profiles that are not there yet."""
    shipped = sorted((shipped_profiles() / "backends").glob("*.yml"))
    left = [path for path in shipped if (directory / "backends" / path.name).exists() or path.stem in existing.backends]
    if left and len(left) < len(shipped):
        remarks.append(f"backend profiles that are there already stay as they are: {', '.join(path.stem for path in left)}")
    return [File(f"backends/{path.name}", path.read_text(encoding="utf-8")) for path in shipped if path not in left]


def _tuning(answers: Answers, around: Surroundings, machine: Machine, remarks: list[str]) -> list[File]:
    """A tuning profile of the machine's own, unless there is one of its name or another one was named."""
    name = machine.entries[-1].tuning
    assert name is not None, "every new entry has one"
    if name in around.existing.tunings:
        remarks.append(f"tuning profile {name} is there already and stays as it is")
        return []
    inside = machine.place.report if machine.place.container is not None else None
    base = answers.tuning or init_found.tuning_base(machine.report, inside)
    path = shipped_profiles() / "tuning" / f"{base}.yml"
    if not path.is_file():
        known = sorted({*around.existing.tunings, *(item.stem for item in path.parent.glob("*.yml"))})
        raise UsageError(
            f"there is no tuning profile {base!r}", evidence=[f"tuning profiles: {', '.join(known)}"], next_step="--tuning NAME"
        )
    if (around.directory / "tuning" / f"{name}.yml").exists():
        raise UsageError(
            f"{around.directory}/tuning/{name}.yml is there already, and is no profile called {name}",
            next_step=f"--name with another name than {name}, or --tuning with a profile that is there",
        )
    seen = init_found.gpu_words(inside.gpus if inside is not None and inside.gpus else machine.report.gpus)
    driver = machine.report.driver or (inside.driver if inside is not None else None)
    summary = f"{seen}; what the shipped profile {base} has."
    text = tuning_text(base, path.read_text(encoding="utf-8"), name, summary, machine.report.kernel, driver)
    return [File(f"tuning/{name}.yml", text, about=f"its knobs, after the shipped profile {base}")]


def _service(answers: Answers, around: Surroundings, inventory: Provisional, machine: Machine, server: FoundServer | None) -> ServicePart:
    kind = "container" if machine.host.container is not None else "host"
    port = server.info.port if server is not None else answers.port or DEFAULT_PORT
    for service in around.existing.services.values():
        if (service.host, service.place, service.port) == (machine.host.name, kind, port) and answers.service in (None, service.name):
            return ServicePart(service=service, remarks=[f"service {service.name} is in the inventory already and stays as it is"])
    if server is not None:
        return _of_server(answers, around, inventory, machine, server)
    return _by_hand(answers, around, machine, kind, port)


def _chosen_server(around: Surroundings, answers: Answers, place: Seen) -> FoundServer | None:
    """The server that is meant, None where none runs; asked where there are several."""
    servers = place.report.servers if place.report is not None else []
    server = init_found.chosen_server(servers, answers.port)
    if server is not None or len(servers) < 2:
        return server
    options = [(str(item.info.port), " ".join([item.info.python, *item.info.arguments])) for item in servers]
    port = around.asker.choose("port", "which of the SGLang servers is meant", options)
    return init_found.chosen_server(servers, int(port))


def _taken(around: Surroundings) -> list[str]:
    """Names that a new service can't have: of services, and of files beside which its own would lie."""
    folder = around.directory / "services"
    stems = [path.stem for path in sorted(folder.glob("*.y*ml"))] if folder.is_dir() else []
    return [*around.existing.services, *stems]


def _service_name(answers: Answers, around: Surroundings, suggested: str) -> str:
    """The name that somebody wants for the service.

    Raises:
        UsageError: it is taken.
    """
    name = answers.service or around.asker.text("service", "what is the service to be called", suggested)
    if name is None or name in _taken(around):
        where = f"{around.directory}/services/{name}.yml"
        raise UsageError(f"service {name} is there already ({where}, or one of this name) and stays as it is", next_step="--service NAME")
    return name


def _of_server(answers: Answers, around: Surroundings, inventory: Provisional, machine: Machine, server: FoundServer) -> ServicePart:
    """The service of a server that runs: as adopt would write it, and of a launch of ours as the box remembers it."""
    from orchestrator.flows.adopt import examine

    name = _service_name(answers, around, server.service or default_name(init_found.model_of(server), _taken(around)))
    try:
        found = examine(inventory, machine.host, name, server.info.port, around.observer, around.connect, ours=True, written_by="fab init")
    except (RefusedError, RightsError, LockedError) as error:
        retry = f"fab adopt --host {machine.host.name} --port {server.info.port} --service {name}"
        return ServicePart(remarks=[f"no service is written: {error.message}; later: {retry}"])
    return _part(found.file, name, [remark for remark in found.remarks if remark not in found.file.remarks])


def _by_hand(answers: Answers, around: Surroundings, machine: Machine, kind: str, port: int) -> ServicePart:
    """The service where nothing serves: as somebody says."""
    report = machine.place.report
    installed = report.installations if report is not None else []
    python = answers.python
    if python is None and answers.model is not None and len(installed) != 1:
        options = [(item.python, f"SGLang {item.version or 'of unknown version'}") for item in installed]
        question = "which Python has SGLang"
        python = around.asker.choose("python", question, options) if options else around.asker.text("python", f"{question} there")
    python = python or (installed[0].python if len(installed) == 1 else None)
    model = answers.model
    if model is None and python is not None:
        model = around.asker.text("model", "nothing serves there; which model is to (its folder, or nothing: no service)", optional=True)
    if python is None or model is None:
        again = "--model FOLDER --python PYTHON, or once a server runs: fab adopt"
        return ServicePart(remarks=[f"nothing serves in {_where(machine)}, so no service is written; later: {again}"])
    gpus = len(report.gpus) if report is not None else 0
    name = _service_name(answers, around, default_name(model, _taken(around)))
    written = service_file(
        ServerToWrite(
            name=name,
            host=machine.host.name,
            place="container" if kind == "container" else "host",
            python=python,
            entry=["-m", "sglang.launch_server"],
            arguments=["--model-path", model, *(["--tp-size", str(gpus)] if gpus > 1 else [])],
            port=port,
            comment=f"Written by fab init, while nothing served in {_where(machine)}: look through the arguments before the first launch.",
        )
    )
    remarks = [f"--tp-size {gpus} is a guess: as many as there are GPUs"] if gpus > 1 else []
    return _part(written, name, remarks)


def _part(written: ServiceFile, name: str, remarks: Sequence[str]) -> ServicePart:
    if written.service is None:
        return ServicePart(unfinished=written.text, remarks=[*written.remarks, *remarks])
    file = File(f"services/{name}.yml", written.text, about="the server and its arguments")
    return ServicePart(file, written.service, remarks=[*written.remarks, *remarks])


def _where(machine: Machine) -> str:
    return machine.host.place(container=machine.host.container is not None).label
