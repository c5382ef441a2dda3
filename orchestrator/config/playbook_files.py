"""Loading playbooks: those that come with the program, and one's own beside the inventory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.config.mistakes import Mistake, did_you_mean
from orchestrator.config.playbook import Playbook
from orchestrator.config.playbook_checks import Verbs, check
from orchestrator.config.validation import validated
from orchestrator.config.yaml_reader import read_file
from orchestrator.errors import ConfigError, UsageError
from orchestrator.folders import playbook_paths, shipped_playbooks


@dataclass(frozen=True)
class PlaybookFile:
    """A playbook's file. `shipped`: it came with the program. `digest` is that of its content (SHA-256)."""

    path: Path
    playbook: Playbook
    digest: str
    shipped: bool


def load_playbook(name: str, inventory: Path | None, verbs: Verbs) -> PlaybookFile:
    """Read one playbook and check it against the verbs of this program.

    Args:
        inventory: the inventory's folder, beside which one's own playbooks lie; None: only those that came with the program.

    Raises:
        UsageError: there is none of that name.
        ConfigError: with one line of evidence for each mistake in it.
    """
    paths = playbook_paths(inventory)
    if name not in paths:
        hint = did_you_mean(name, list(paths)).replace("Allowed", "runbooks")
        raise UsageError(f"there is no runbook {name!r}", evidence=[hint], next_step="fab runbook.list")
    loaded, mistakes = read_playbook(paths[name], verbs)
    if loaded is None:
        raise _config_error([paths[name]], mistakes)
    return loaded


def load_playbooks(inventory: Path | None, verbs: Verbs) -> list[PlaybookFile]:
    """Every playbook, by name.

    Raises:
        ConfigError: with one line of evidence for each mistake in any of them.
    """
    paths = playbook_paths(inventory)
    read = [read_playbook(paths[name], verbs) for name in sorted(paths)]
    mistakes = [mistake for _, found in read for mistake in found]
    if mistakes:
        raise _config_error(list(paths.values()), mistakes)
    return [loaded for loaded, _ in read if loaded is not None]


def read_playbook(path: Path, verbs: Verbs) -> tuple[PlaybookFile | None, list[Mistake]]:
    """One file, or None with what is wrong in it."""
    document = read_file(path, path.parent)
    playbook = validated(Playbook, document.data, document) if document.data is not None else None
    if playbook is not None:
        if playbook.name != path.stem:
            document.report(("name",), f"{playbook.name!r} must be the file's name without .yml: {path.stem}")
        check(playbook, document, verbs)
    if playbook is None or document.mistakes:
        return None, document.mistakes
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return PlaybookFile(path, playbook, digest, path.parent.resolve() == shipped_playbooks().resolve()), []


def _config_error(paths: Sequence[Path], mistakes: Sequence[Mistake]) -> ConfigError:
    in_order = sorted(mistakes, key=lambda mistake: (mistake.file, mistake.line))
    lines = list(dict.fromkeys(str(mistake) for mistake in in_order))
    count = "1 mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
    where = str(paths[0]) if len(paths) == 1 else "the playbooks"
    return ConfigError(f"{count} in {where}", evidence=lines, next_step=f"edit {in_order[0].file}", see=["playbook"])
