"""What to do about keys that can't be used, said without a server."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import ConnectError
from orchestrator.remote.authentication import KeyAuthentication
from orchestrator.remote.endpoint import Endpoint


def _advice(*files: Path) -> str:
    endpoint = Endpoint("gpu1", "192.0.2.1", "root", identity_files=files)
    with pytest.raises(ConnectError, match=r"no key .* can be used") as raised:
        KeyAuthentication(endpoint).authenticate(None)  # type: ignore[arg-type]  # nothing is offered
    return str(raised.value.next_step)


def test_a_key_file_that_is_not_there_is_to_be_corrected_not_added(tmp_path: Path) -> None:
    assert _advice(tmp_path / "absent") == "correct identity_files: of gpu1 in hosts.yml: no such file on this machine"


def test_a_locked_key_is_added_to_an_agent_that_may_be_asked(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    paramiko.ECDSAKey.generate().write_private_key_file(str(locked), password="correct horse")
    advice = _advice(tmp_path / "absent", locked)
    assert advice == f"eval $(ssh-agent) && ssh-add {locked}, and agent: true for gpu1 in hosts.yml"
