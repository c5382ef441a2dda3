"""Who keeps a server running, in words that fit the end of a sentence."""

from __future__ import annotations

import pytest

from orchestrator.agent.wire import Manager, ManagerKind
from orchestrator.agent.wire_words import managed


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        (Manager(ManagerKind.OWN_UNIT, "orchestrator-glm5.service"), "managed by this program in unit orchestrator-glm5.service"),
        (Manager(ManagerKind.OWN_SESSION, "session 32182"), "managed by this program in session 32182"),
        (Manager(ManagerKind.SYSTEMD_UNIT, "sglang.service"), "managed by systemd unit sglang.service"),
        (Manager(ManagerKind.SESSION, "nohup"), "started by hand (nohup)"),
        (Manager(ManagerKind.SESSION, ""), "started by hand"),
        (Manager(ManagerKind.UNSUPPORTED, "docker"), "managed by docker"),
    ],
)
def test_managed(manager: Manager, words: str) -> None:
    assert managed(manager) == words
