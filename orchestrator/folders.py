"""Where playbooks and the shipped profiles lie. Apart from what reads them, so that completion can name them without pydantic."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError

PLAYBOOKS = "playbooks"
_CERTAIN = {"backends": "auto.yml", "tuning": "observe.yml"}
"""What is in each folder of profiles for certain."""
SHIPPED_FOLDERS = tuple(_CERTAIN)
_PACKAGE = Path(__file__).parent


def shipped_playbooks() -> Path:
    """The playbooks that come with this program: beside the package in a checkout, inside it where it was installed from a wheel."""
    installed = _PACKAGE / PLAYBOOKS
    return installed if installed.is_dir() else _PACKAGE.parent / PLAYBOOKS


def playbook_paths(inventory: Path | None) -> dict[str, Path]:
    """Name -> file of every playbook; of two of one name the one beside the inventory counts."""
    folders = [shipped_playbooks(), *([] if inventory is None else [inventory.absolute().parent / PLAYBOOKS])]
    return {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.yml"))}


def shipped_profiles() -> Path:
    """The inventory folder with the backend and tuning profiles that come with this program, found as its playbooks are.

    Raises:
        ConfigError: they are not where they should be.
    """
    candidates = [_PACKAGE.parent / "inventory", _PACKAGE / "inventory"]
    for candidate in candidates:
        if all((candidate / folder / name).is_file() for folder, name in _CERTAIN.items()):
            return candidate
    raise ConfigError("the profiles that come with this program are missing", evidence=[f"looked in {path}" for path in candidates])
