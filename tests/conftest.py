"""Tiers: which tests this machine can run, and a summary that names those it can't."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.rig.tiers import TIERS, missing, partly_missing, tier_of

pytest_plugins = ["tests.rig.fixtures"]

REQUIRE = "ORCHESTRATOR_REQUIRE_TIERS"
"""Set where every tier must run: then a tier that can't is an error."""

_OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_configure(config: pytest.Config) -> None:
    """A shell's background job ignores SIGINT, and so would everything that the tests start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put cheap tiers first, and skip those that can't run here."""
    items.sort(key=lambda item: _rank(item.path))
    for item in items:
        tier = tier_of(item.path)
        reason = missing(tier) if tier else None
        if reason is None:
            continue
        if os.environ.get(REQUIRE):
            raise pytest.UsageError(f"{REQUIRE} is set, and the {tier} tier can't run: {reason}")
        item.add_marker(pytest.mark.skip(reason=f"{tier} tier: {reason}"), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a tier: what ran, or why it did not."""
    counts = {tier: Counter[str]() for tier in TIERS}
    for outcome in _OUTCOMES:
        for report in terminalreporter.stats.get(outcome, []):
            folder = Path(report.nodeid.partition("::")[0]).parts[1]
            if folder in counts:
                counts[folder][outcome] += 1
    terminalreporter.section("tiers")
    for tier in TIERS:
        terminalreporter.write_line(f"{tier:7} {_describe(tier, counts[tier])}")


def _describe(tier: str, count: Counter[str]) -> str:
    ran = ", ".join(f"{count[outcome]} {outcome}" for outcome in _OUTCOMES if count[outcome])
    reason = missing(tier)
    if reason is not None:
        return f"SKIPPED: {reason}"
    if not ran:
        return "not selected"
    part = partly_missing(tier) if count["skipped"] else None
    return f"{ran}: {part}" if part is not None else ran


def _rank(path: Path) -> int:
    tier = tier_of(path)
    return TIERS.index(tier) if tier else len(TIERS)
