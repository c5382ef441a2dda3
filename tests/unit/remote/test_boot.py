"""The agent as it is sent: booted by Pythons of several kinds, on this machine and without SSH."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import archive, main, wire
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.remote.agent_client import FIRST_STAGE, compose
from orchestrator.remote.frames import FrameDecoder

TOKEN = "00112233445566778899aabbccddeeff"
PYENV = Path("/root/.pyenv/versions")


def boot(first_stage: str, python: str = sys.executable) -> tuple[list[wire.Event], FrameDecoder, str]:
    """Run the agent with a ping; the events, the decoder with its stray output, and standard error."""
    process = subprocess.Popen(
        [python, "-I", "-S", "-c", first_stage], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdin.write(compose(TOKEN, "ping", wire.PingRequest()))
        process.stdin.flush()
        # Standard input stays open until the answer is in, as over SSH: its end would end the agent.
        output = process.stdout.read()
        decoder = FrameDecoder(TOKEN)
        return decoder.feed(output), decoder, process.stderr.read().decode()


def failure(events: list[wire.Event]) -> wire.AgentFailure:
    assert [event.kind for event in events] == ["error"]
    return wire.from_json(wire.AgentFailure, events[0].data)


def test_ping() -> None:
    events, decoder, errors = boot(FIRST_STAGE)

    assert [event.kind for event in events] == ["result"]
    facts = wire.from_json(wire.PlaceFacts, events[0].data)
    assert facts.python == sys.version.split()[0]
    assert decoder.stray.lines() == []
    assert errors == ""


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_ping_with_another_python(version: str) -> None:
    events, _, errors = boot(FIRST_STAGE, installed(version))

    assert [event.kind for event in events] == ["result"]
    assert errors == ""


@pytest.mark.parametrize("version", ["3.6", "3.8"])
def test_an_old_python_says_so(version: str) -> None:
    events, _, _ = boot(FIRST_STAGE, installed(version))

    assert failure(events).category == "python"
    assert f"python3 is {version}." in failure(events).message


def installed(version: str) -> str:
    """A pyenv Python of that version; skips where there is none."""
    found = sorted(PYENV.glob(f"{version}.*/bin/python")) if PYENV.is_dir() else []
    if not found:
        pytest.skip(f"no Python {version} under {PYENV}")
    return str(found[-1])


@pytest.mark.parametrize("module", ["json", "dataclasses", "typing", "threading"])
def test_a_minimal_python_names_the_missing_module(module: str) -> None:
    events, _, _ = boot(f"import sys; sys.modules[{module!r}] = None; {FIRST_STAGE}")

    assert failure(events).category == "python"
    assert f"lacks the module {module}" in failure(events).message
    assert failure(events).next_step == "apt install python3"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import os; del os.pidfd_open", "built without pidfd_open"),
        ("import os\ndef no(*args): raise OSError(38, 'Function not implemented')\nos.pidfd_open = no", "Function not implemented"),
        ("import os\ndef no(*args): raise OSError(1, 'Operation not permitted')\nos.pidfd_open = no", "seccomp"),
    ],
)
def test_a_kernel_without_pidfd_is_named(before: str, said: str) -> None:
    events, _, _ = boot(f"{before}\n{FIRST_STAGE}")

    assert failure(events).category == "kernel"
    assert said in failure(events).message


def test_without_memfd_the_archive_lies_in_a_nameless_file() -> None:
    events, _, _ = boot(f"import os; del os.memfd_create; {FIRST_STAGE}")

    assert [event.kind for event in events] == ["result"]


FULL = """
import os
del os.memfd_create
open_file = os.open
def open_until_full(path, *rest):
    if path == os.devnull:
        return open_file(path, *rest)
    raise OSError(28, "No space left on device")
os.open = open_until_full
"""


def test_no_room_for_the_archive_is_a_full_disk() -> None:
    events, _, _ = boot(FULL + FIRST_STAGE)

    assert failure(events).category == "disk_full"


def test_output_before_the_boot_code_is_stray() -> None:
    events, decoder, _ = boot(f"print('Welcome', flush=True); {FIRST_STAGE}")

    assert [event.kind for event in events] == ["result"]
    assert decoder.stray.lines() == ["Welcome"]


def test_an_operator_who_leaves_early_is_no_error() -> None:
    whole = compose(TOKEN, "ping", wire.PingRequest())
    process = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FIRST_STAGE], input=whole[: len(whole) // 2], capture_output=True, check=False
    )

    assert (process.returncode, process.stdout) == (0, b"")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (b"{", "can't be understood"),
        (b'{"verb":"dance","body":{}}', "no verb 'dance'"),
        (b'{"verb":"ping","body":{"x":1}}', "unknown field 'x'"),
        (b'{"verb":"ping","body":{},"protocol":2}', "protocol 2 was asked for, this agent speaks 1"),
        (b'["ping"]', "expected an object"),
    ],
)
def test_a_request_that_does_not_fit(request_: bytes, message: str) -> None:
    with pytest.raises(AgentRefusal) as raised:
        main.parse_request(request_)

    assert raised.value.failure.category == "request"
    assert message in raised.value.failure.message


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (OSError(28, "No space left on device", "/var/lib/x"), "disk_full"),
        (OSError(122, "Disk quota exceeded"), "disk_full"),
        (OSError(30, "Read-only file system", "/var/lib/x"), "rights"),
        (AgentRefusal("locked", "someone is here"), "locked"),
        (ModuleNotFoundError("no", name="ctypes"), "python"),
        (ModuleNotFoundError("no", name="orchestrator.agent.survey"), "traceback"),
        (ValueError("bug"), "traceback"),
        (SystemExit(3), "traceback"),
    ],
)
def test_describe(error: BaseException, category: str) -> None:
    described = main.describe(_raised(error))

    assert described.category == category
    assert bool(described.evidence) == (category == "traceback")


def test_the_archive_is_the_same_each_time_and_holds_only_the_agent() -> None:
    first = archive._pack(str(Path(archive.__file__).parent))

    assert first == archive.agent_archive()
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert {"orchestrator/__init__.py", "orchestrator/agent/__init__.py", "orchestrator/agent/main.py"} <= set(names)
    assert all(name == "orchestrator/__init__.py" or name.startswith("orchestrator/agent/") for name in names)
    assert len(first) < 200_000


def test_a_running_agent_can_hand_on_its_own_archive(tmp_path: Path) -> None:
    package = tmp_path / "agent.zip"
    package.write_bytes(archive.agent_archive())
    code = f"import sys; sys.path.insert(0, {str(package)!r}); from orchestrator.agent.archive import agent_archive as whole"
    code += "; sys.stdout.buffer.write(whole())"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True)

    assert done.stdout == package.read_bytes()


@pytest.mark.parametrize("name", sorted(main.VERBS))
def test_each_verb_exists(name: str) -> None:
    verb: Any = main.VERBS[name]

    assert callable(main.resolve(verb))
    assert hasattr(wire, verb.request)


def test_undecodable_names_do_not_break_an_event() -> None:
    reader, writer = os.pipe()
    main.Output(writer, TOKEN).emit("log", {"text": "caf\udce9 \u00e9"})
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        line = stream.read()

    assert json.loads(line.partition(b" ")[2])["data"]["text"] == "caf? \u00e9"
