"""What every model of the inventory is: closed, strict and frozen."""

from __future__ import annotations

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
"""Built when first used, so that a model inside another one is not built twice: a fifth of the time of loading an inventory."""
