"""Copying a server that somebody started by hand, from a real process that only looks like one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.agent.previous import AS_FOUND, capture, split_entry
from orchestrator.agent.processes import Server, find_servers
from orchestrator.agent.state_folder import StateFolder

PORT = 39917


@pytest.fixture
def lookalike(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line is a server's, with a key on it, as people do."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python3").symlink_to(sys.executable)
    process = subprocess.Popen(
        [
            "python3",
            "-m",
            "sglang.launch_server",
            "--model-path",
            "/m",
            "--port",
            str(PORT),
            "--host",
            "0.0.0.0",
            "--api-key",
            "hunter2222",
        ],
        executable=str(bin_folder / "python3"),
        cwd=tmp_path,
        env={"PATH": f"{bin_folder}:/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site"), "NCCL_DEBUG": "INFO", "INVOCATION_ID": "f00"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def server_of(process: subprocess.Popen[bytes]) -> Server:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for server in find_servers():
            if server.main.pid == process.pid:
                return server
    raise AssertionError("the process was not found")


def test_a_server_started_by_hand_is_copied_whole(lookalike: subprocess.Popen[bytes], tmp_path: Path) -> None:
    previous = capture(server_of(lookalike), StateFolder(str(tmp_path / "state"), "svc"), "svc", PORT)
    launch = previous.launch
    assert previous.unit is None
    assert launch.backend == AS_FOUND
    assert launch.python == str(tmp_path / "venv/bin/python3"), "the virtual environment's link, not what it points to"
    assert launch.entry == ["-m", "sglang.launch_server"]
    assert launch.arguments == ["--model-path", "/m", "--port", str(PORT), "--host", "0.0.0.0"]
    assert launch.secrets == {"api-key": "hunter2222"}
    assert (launch.host, launch.port, launch.directory, launch.user) == ("0.0.0.0", PORT, str(tmp_path), None)
    assert launch.environment["NCCL_DEBUG"] == "INFO"
    assert "INVOCATION_ID" not in launch.environment


@pytest.mark.parametrize(
    ("words", "python", "entry"),
    [
        (["/v/bin/python", "-m", "sglang.launch_server"], "/v/bin/python", ["-m", "sglang.launch_server"]),
        (["bin/python", "-m", "sglang.launch_server"], "/srv/bin/python", ["-m", "sglang.launch_server"]),
        (["/v/bin/python3.11", "/v/bin/sglang", "serve"], "/v/bin/python3.11", ["/v/bin/sglang", "serve"]),
        (["no-such-python", "-m", "sglang.launch_server"], "no-such-python", ["-m", "sglang.launch_server"]),
    ],
)
def test_the_interpreter_is_found_as_the_shell_found_it(words: list[str], python: str, entry: list[str]) -> None:
    assert split_entry(words, {"PATH": os.defpath}, "/srv") == (python, entry)
