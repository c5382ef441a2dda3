"""The names of the inventory, the playbooks and the runs, for completion.

Read without the models: a key here and there. Whatever can't be read or is not what it should be has no names, and nothing is said of it:
a file that is being edited must not spoil the line that somebody types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.folders import playbook_paths, shipped_profiles

_MOST_BYTES = 1 << 20
_MOST_RUNS = 200
"""The newest ones; nobody looks for an older one by its name."""


@dataclass(frozen=True)
class Backend:
    """A backend profile. `overlay`: it is joined to another one by ``+``."""

    summary: str
    overlay: bool


class Names:
    """What there is to be named, each with a word on it.

    Args:
        inventory: the inventory's folder, None where there is none.
        runs: the folder of run folders.
    """

    def __init__(self, inventory: Path | None, runs: Path) -> None:
        self._inventory = inventory
        self._runs = runs

    @cached_property
    def hosts(self) -> dict[str, str]:
        """The hosts, with their addresses."""
        return {name: _text(entry.get("address")) for name, entry in self._host_entries.items()}

    @cached_property
    def containers(self) -> dict[str, str]:
        """``HOST/CONTAINER`` of each host that has one, with how it is reached."""
        found = {}
        for name, entry in self._host_entries.items():
            inside = _mapping(entry.get("container"))
            reference = inside.get("id") or inside.get("name") or inside.get("address")
            if reference is not None:
                found[f"{name}/{reference}"] = f"its container, by {_text(inside.get('reached_by')) or 'ssh'}"
        return found

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The groups of hosts, each with its hosts; a group may hold those above it."""
        groups: dict[str, list[str]] = {}
        for name, members in _mapping(self._hosts_file.get("groups")).items():
            listed = members if isinstance(members, list) else []
            groups[str(name)] = list(dict.fromkeys(host for member in map(_text, listed) for host in groups.get(member, [member])))
        return groups

    def hosts_of(self, text: str) -> set[str] | None:
        """The hosts that ``--host`` means: one, a list, groups; None: every one."""
        parts = [part.strip().partition("/")[0] for part in text.split(",")]
        return None if "all" in parts else {host for part in parts for host in self.groups.get(part, [part])}

    @cached_property
    def services(self) -> dict[str, str]:
        """The services, each with its host."""
        return {name: _text(entry.get("host")) for name, entry in self._entries("services")}

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """The backend profiles."""
        return {name: Backend(_text(entry.get("summary")), entry.get("kind") == "overlay") for name, entry in self._entries("backends")}

    @cached_property
    def tunings(self) -> dict[str, str]:
        """The tuning profiles."""
        return {name: _text(entry.get("summary")) for name, entry in self._entries("tuning")}

    @cached_property
    def sweeps(self) -> dict[str, str]:
        """The sweeps, by the names of their files."""
        return {path.stem: _text(_read(path).get("summary")) for path in self._files("sweeps")}

    @cached_property
    def routers(self) -> dict[str, str]:
        """The routers, each with its url."""
        return {name: _text(entry.get("url")) for name, entry in self._entries("routers")}

    @cached_property
    def runbooks(self) -> dict[str, str]:
        """The playbooks, those that came with the program among them."""
        return {name: _text(_read(path).get("title")) for name, path in sorted(playbook_paths(self._inventory).items())}

    @cached_property
    def shipped_tunings(self) -> list[str]:
        """The tuning profiles that come with the program."""
        try:
            return sorted(path.stem for path in (shipped_profiles() / "tuning").glob("*.yml"))
        except (ConfigError, OSError):
            return []

    @cached_property
    def topics(self) -> dict[str, str]:
        """What there is to read about, each with its title."""
        from orchestrator.reference.pages import topics

        try:
            return {name: topic.title for name, topic in topics().items()}
        except (OSError, ValueError):
            return {}

    def inputs(self, runbook: str) -> dict[str, str]:
        """What a playbook asks for."""
        found = _mapping(self._playbook(runbook).get("inputs"))
        return {str(name): _text(_mapping(entry).get("about")) for name, entry in found.items()}

    def steps(self, runbook: str) -> dict[str, str]:
        """The steps of a playbook, by their ids."""
        found = self._playbook(runbook).get("steps")
        entries = [_mapping(entry) for entry in found] if isinstance(found, list) else []
        return {_text(entry["id"]): _text(entry.get("why")) for entry in entries if "id" in entry}

    def runs(self, verb: str | None = None) -> list[str]:
        """The names of run folders, the newest first; only those of `verb` where one is named."""
        try:
            names = sorted((path.name for path in self._runs.iterdir() if path.is_dir()), reverse=True)
        except OSError:
            return []
        return [name for name in names if "-" in name and (verb is None or name.split("-")[1] == verb)][:_MOST_RUNS]

    @cached_property
    def _host_entries(self) -> dict[str, Mapping[str, Any]]:
        return {str(name): _mapping(entry) for name, entry in _mapping(self._hosts_file.get("hosts")).items()}

    @cached_property
    def _hosts_file(self) -> Mapping[str, Any]:
        return {} if self._inventory is None else _read(self._inventory / "hosts.yml")

    def _playbook(self, name: str) -> Mapping[str, Any]:
        path = playbook_paths(self._inventory).get(name)
        return {} if path is None else _read(path)

    def _entries(self, folder: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The declarations of a folder, one a file, which is named by its ``name:``."""
        for path in self._files(folder):
            entry = _read(path)
            if "name" in entry:
                yield _text(entry["name"]), entry

    def _files(self, folder: str) -> list[Path]:
        return [] if self._inventory is None else sorted((self._inventory / folder).glob("*.yml"))


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with path.open("rb") as stream:
            return _mapping(yaml.load(stream.read(_MOST_BYTES), loader))  # noqa: S506  # both are safe ones
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return " ".join(str(value).split()) if value is not None else ""
