"""Loading an inventory folder: every file is read and checked before anything is said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import references
from orchestrator.config.declared import Declared, Entry, Model
from orchestrator.config.groups import load_groups
from orchestrator.config.inventory import Inventory
from orchestrator.config.mistakes import Mistake
from orchestrator.config.models import Backend, Host, HostsFile, Service
from orchestrator.config.routers import Router
from orchestrator.config.sections import sections_of
from orchestrator.config.tuning import TuningProfile
from orchestrator.config.validation import validated
from orchestrator.config.yaml_reader import Document, read_file
from orchestrator.errors import ConfigError


def load_inventory(directory: Path) -> Inventory:
    """Read ``hosts.yml``, ``services/*.yml``, ``backends/*.yml`` and, where there are such folders, ``tuning/*.yml`` and ``routers/*.yml``.

    Raises:
        ConfigError: with one line of evidence for each mistake in any of the files.
    """
    if not directory.is_dir():
        problem = Mistake(str(directory), 1, (), "no such folder; it holds hosts.yml, services/ and backends/")
        raise _config_error(directory, [problem], ["host", "service", "backend"])
    hosts = _load_hosts(directory)
    services = _load_folder(directory, "services", Service)
    backends = _load_folder(directory, "backends", Backend)
    tuning = _load_folder(directory, "tuning", TuningProfile, optional=True)
    routers = _load_folder(directory, "routers", Router, optional=True)
    references.check(hosts, services, backends, tuning)
    groups = load_groups(hosts.documents[0], hosts)
    references.check_routers(routers, hosts, services)
    inventory = Inventory(directory, hosts.models, services.models, backends.models, tuning.models, groups, routers=routers.models)
    references.check_backend_combinations(inventory, services)
    mistakes = [*hosts.mistakes, *services.mistakes, *backends.mistakes, *tuning.mistakes, *routers.mistakes]
    if mistakes:
        sections = [
            *sections_of("host", hosts.mistakes),
            *sections_of("service", services.mistakes),
            *sections_of("backend", backends.mistakes),
            *sections_of("tuning", tuning.mistakes),
            *sections_of("router", routers.mistakes),
        ]
        raise _config_error(directory, mistakes, sections)
    return inventory


def load_profiles(directory: Path) -> Inventory:
    """Only the backend and tuning profiles below a folder, which need no hosts.

    Raises:
        ConfigError: as :func:`load_inventory`.
    """
    backends = _load_folder(directory, "backends", Backend)
    tuning = _load_folder(directory, "tuning", TuningProfile)
    mistakes = [*backends.mistakes, *tuning.mistakes]
    if mistakes:
        raise _config_error(directory, mistakes, [*sections_of("backend", backends.mistakes), *sections_of("tuning", tuning.mistakes)])
    return Inventory(directory, backends=backends.models, tunings=tuning.models)


def _config_error(directory: Path, mistakes: Sequence[Mistake], sections: Sequence[str]) -> ConfigError:
    in_order = sorted(mistakes, key=lambda mistake: (mistake.file, mistake.line))
    lines = list(dict.fromkeys(str(mistake) for mistake in in_order))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    return ConfigError(f"{count} in the inventory {directory}", evidence=lines, next_step=f"edit {in_order[0].file}", see=sections)


def _load_hosts(directory: Path) -> Declared[Host]:
    document = read_file(directory / "hosts.yml", directory)
    hosts = Declared[Host](documents=[document])
    if document.data is None or validated(HostsFile, document.data, document) is None:
        hosts.complete = False
    entries = document.data.get("hosts") if isinstance(document.data, dict) else None
    for name, data in entries.items() if isinstance(entries, dict) else ():
        path = ("hosts", name)
        model = validated(Host, data, document, path, given={"name": name})
        hosts.entries[name] = Entry(document, path, data if isinstance(data, dict) else {}, model)
    return hosts


def _load_folder(directory: Path, folder: str, model: type[Model], *, optional: bool = False) -> Declared[Model]:
    """One declaration a file, named by its ``name:`` key; an `optional` folder that isn't there declares nothing."""
    declared: Declared[Model] = Declared()
    if optional and not os.path.lexists(directory / folder):
        return declared
    for path in _files(directory / folder, declared):
        document = read_file(path, directory)
        declared.documents.append(document)
        _declare(declared, document, model)
    return declared


def _files(folder: Path, declared: Declared[Model]) -> list[Path]:
    problems = Document(str(folder))
    declared.documents.append(problems)
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        problems.report((), f"can't be listed: {error.strerror}; it must be a folder of .yml files")
        declared.complete = False
        return []
    for path in paths:
        if path.suffix == ".yaml":
            declared.documents.append(misnamed := Document(str(path)))
            misnamed.report((), "is not read: files here end in .yml")
            declared.complete = False
    return [path for path in paths if path.suffix == ".yml"]


def _declare(declared: Declared[Model], document: Document, model: type[Model]) -> None:
    data = document.data
    if data is None:
        declared.complete = False
        return
    entry = Entry(document, (), data if isinstance(data, dict) else {}, validated(model, data, document))
    name = entry.text("name")
    if name is None:
        declared.complete = False
    elif name in declared.entries:
        first = declared.entries[name].document
        document.report(("name",), f"{name!r} is declared already, in {first.file}:{first.line(('name',))}; names must differ")
    else:
        declared.entries[name] = entry
