"""The backend and tuning profiles that come with this program. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import ConfigError

_CERTAIN = {"backends": "auto.yml", "tuning": "observe.yml"}
"""What is in each folder for certain."""
SHIPPED_FOLDERS = tuple(_CERTAIN)


def shipped_profiles() -> Path:
    """The inventory folder that holds them: beside the package in a checkout, inside it where it was installed from a wheel.

    Raises:
        ConfigError: they are not where they should be.
    """
    package = Path(__file__).parents[1]
    candidates = [package.parent / "inventory", package / "inventory"]
    for candidate in candidates:
        if all((candidate / folder / name).is_file() for folder, name in _CERTAIN.items()):
            return candidate
    raise ConfigError("the profiles that come with this program are missing", evidence=[f"looked in {path}" for path in candidates])
