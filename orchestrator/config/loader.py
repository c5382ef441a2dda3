"""Loading an inventory folder."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.inventory import Inventory


def load_inventory(directory: Path) -> Inventory:
    """Read ``hosts.yml``, ``services/*.yml`` and ``backends/*.yml`` under `directory`.

    Raises:
        ConfigError: with one line of evidence for each mistake in any of the files.
    """
    raise NotImplementedError(directory)
