"""What is said of a port without a server, among real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent.adopt import adopt
from orchestrator.agent.locks import lock
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire import LockRequest
from orchestrator.agent.wire_launches import AdoptRequest
from tests.agent.box import Box
from tests.rig.network import free_port


def test_a_port_without_a_server_is_refused_with_the_ports_that_have_one(box: Box, tmp_path: Path) -> None:
    port, empty = free_port(), free_port()
    server = box.serve(port)
    with pytest.raises(AgentRefusal, match=f"no SGLang server runs on port {empty}, but on .*{port}") as refused:
        adopt(AdoptRequest("adopted", str(tmp_path), empty), lambda *_: None)
    assert any(line.startswith(f"--port {port}: process {server.main.pid}, ") for line in refused.value.failure.evidence)
    assert refused.value.failure.next_step == "--port with one of these"


def test_a_service_that_a_person_has_locked_gets_no_record(box: Box, tmp_path: Path) -> None:
    port, root = free_port(), tmp_path / "state"
    root.mkdir()
    box.serve(port)
    lock(LockRequest("adopted", str(root), "acquire", "kim@desk", "firmware"), lambda *_: None)

    with pytest.raises(AgentRefusal, match=r"locked by kim@desk") as refused:
        adopt(AdoptRequest("adopted", str(root), port, "adopted-1"), lambda *_: None)

    assert refused.value.failure.category == "locked"
    assert adopt(AdoptRequest("adopted", str(root), port), lambda *_: None).recorded is None, "a look is free"
