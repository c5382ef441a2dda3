"""Where playbooks lie. Apart from what reads them, so that completion can name them without pydantic."""

from __future__ import annotations

from pathlib import Path

PLAYBOOKS = "playbooks"


def shipped_playbooks() -> Path:
    """The playbooks that come with this program: beside the package in a checkout, inside it where it was installed from a wheel."""
    package = Path(__file__).parent
    installed = package / PLAYBOOKS
    return installed if installed.is_dir() else package.parent / PLAYBOOKS


def playbook_paths(inventory: Path | None) -> dict[str, Path]:
    """Name -> file of every playbook; of two of one name the one beside the inventory counts."""
    folders = [shipped_playbooks(), *([] if inventory is None else [inventory.absolute().parent / PLAYBOOKS])]
    return {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yml"))}
