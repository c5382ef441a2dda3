"""The words that a playbook may use: verdicts of steps, facts for its guards, checks, and findings of a diagnosis. Closed sets.

`flows/runbook_facts.py` reads each fact and makes each check; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EXIT_VERDICTS: Mapping[int, str] = {
    0: "done",
    1: "failed",
    2: "misused",
    3: "refused",
    4: "unreachable",
    5: "locked",
    6: "rolled_back",
    7: "down",
    8: "drift",
    9: "not_believed",
    129: "interrupted",
    130: "interrupted",
    143: "interrupted",
}
"""What a verb's exit code says of it; see README, "Exit codes"."""
FAILED = EXIT_VERDICTS[1]
DONE = EXIT_VERDICTS[0]
INTERRUPTED = EXIT_VERDICTS[130]
MISUSED = EXIT_VERDICTS[2]
HOLDS, DOES_NOT_HOLD = "holds", "does_not_hold"
"""How a check ends that could be made."""
NOT_DONE = "not_done"
"""A person's answer to a manual step; the other one is ``done``."""
SKIPPED = "skipped"
"""Its guard did not hold, or a person left it out."""
NOT_RUN = "not_run"
"""A step before the one that ``--from`` names."""

VERDICTS = (*dict.fromkeys(EXIT_VERDICTS.values()), HOLDS, DOES_NOT_HOLD, NOT_DONE, SKIPPED, NOT_RUN)
"""What a guard may ask of an earlier step."""
GOOD = (DONE, HOLDS, SKIPPED)
"""Verdicts after which a runbook goes on by itself."""
OVERLOOKED = (*(word for word in EXIT_VERDICTS.values() if word not in (DONE, INTERRUPTED, MISUSED)), DOES_NOT_HOLD, NOT_DONE)
"""What ``go_on_after`` may name."""


FACTS: Mapping[str, tuple[str, ...] | None] = {
    # how the service's server answers
    "health": ("serving", "starting", "unhealthy", "silent", "down"),
    # whether a server is found on the service's port, whoever started it
    "server": ("there", "none"),
    # the backend profile of the server that runs; unknown of one that somebody started by hand, none where there is none
    "backend": None,
    # who manages the server
    "manager": ("own_unit", "own_session", "systemd_unit", "session", "unsupported", "none"),
    # where the newest change of the service stands
    "order": ("none", "at_work", "half_done", "ended"),
    # whether a person has locked the service
    "lock": ("free", "locked"),
    # whether a unit starts the server again after a crash or a reboot
    "comes_back": ("armed", "off", "none"),
    # what became of the tuning profile at this boot of the host
    "tuned_at_boot": ("applied", "failed", "none", "unknown"),
    # whether the box remembers a verified launch to go back to
    "previous_launch": ("there", "none"),
}
"""What only_if and stop_if may ask, read when the step is about to be taken: all that each can read; None is any text."""

OUTCOMES = ("pass", "warn", "refuse", "unknown", "absent")
"""What a guard may find of a doctor's check; several verdicts of one check count as the gravest, ``absent``: nothing was said of it."""

FINDINGS = (
    "reach",
    "driver",
    "driver_versions",
    "gpu_driver",
    "device_nodes",
    "cuda",
    "expected_gpus",
    "gpu_on_bus",
    "gpu_recovery",
    "gpu_ecc",
    "gpu_fabric",
    "gpu_mig",
    "gpu_memory",
    "gpu_users",
    "stuck_processes",
    "xid",
    "pcie_link",
    "pcie_errors",
    "cpuset",
    "tuning",
    "at_boot",
    "nvidia_smi",
    "model",
    "port",
    "sglang",
    "memory",
    "shared_memory",
    "state_folder",
)
"""Checks of ``fab doctor`` that a playbook may name."""


@dataclass(frozen=True)
class CheckWord:
    """A check that a step may make.

    `arguments` are those it may be given, each with what it means; those in `required` it must. `exit_code` is the runbook's where
    it does not hold, by the table of exit codes.
    """

    about: str
    exit_code: int
    arguments: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_WITHIN = {"within": "seconds to wait until it holds; else it is looked at once"}

CHECKS: Mapping[str, CheckWord] = {
    "serves": CheckWord(
        "the service's server is healthy, by a generation", 7, {**_WITHIN, "backend": "and it runs with this backend profile"}
    ),
    "nothing_serves": CheckWord("no server is on the service's port, whoever started it", 5, _WITHIN),
    "no_order": CheckWord("no change of the service is at work or half-done", 5, _WITHIN),
    "finding_absent": CheckWord("the diagnosis refuses nothing under this name", 3, {"finding": "a check of fab doctor"}, ("finding",)),
    "finding_passes": CheckWord("the diagnosis has asked, and passes it", 3, {"finding": "a check of fab doctor"}, ("finding",)),
    "nothing_refused": CheckWord("the diagnosis refuses nothing: a relaunch would go ahead", 3),
    "no_drift": CheckWord("the host's knobs are as its tuning profile says", 8),
    "comes_back": CheckWord("a unit starts the server again after a crash or a reboot", 3),
    "previous_launch": CheckWord("the box remembers a verified launch to go back to", 3),
}
