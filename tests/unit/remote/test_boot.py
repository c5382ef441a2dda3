"""The agent as it is sent: booted by Pythons of several kinds, on this machine and without SSH."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import archive, doctor, knobs, main, wire
from orchestrator.agent.boot import unpack
from orchestrator.agent.refusal import AgentRefusal
from orchestrator.agent.wire_launches import LaunchesRequest
from orchestrator.remote import shipment
from orchestrator.remote.agent_client import compose
from orchestrator.remote.frames import FrameDecoder
from orchestrator.remote.shipment import FIRST_STAGE, GREETING, Package, compile_archive, package_for

TOKEN = "00112233445566778899aabbccddeeff"
PYENV = Path("/root/.pyenv/versions")
OWN_GREETING = f"{sys.implementation.cache_tag} final"


def boot(first_stage: str, python: str = sys.executable) -> tuple[list[wire.Event], FrameDecoder, str]:
    """Run the agent with a ping; the events, the decoder with its stray output, and standard error."""
    process = subprocess.Popen(
        [python, "-I", "-S", "-c", first_stage], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdin.write(compose(TOKEN, "ping", wire.PingRequest()).first)
        process.stdin.flush()
        # Standard input stays open until the answer is in, as over SSH: its end would end the agent.
        output = process.stdout.read()
        decoder = FrameDecoder(TOKEN, GREETING)
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
    assert decoder.greeting == f"{sys.implementation.cache_tag} final"
    assert errors == ""


def test_an_agent_compiled_for_this_python_runs_without_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert all(text is None for _, text in unpack(compile_archive(package_for("ping", None).first).first).values())
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", FIRST_STAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(compose(TOKEN, "ping", wire.PingRequest(), OWN_GREETING).first)
        process.stdin.flush()
        events = FrameDecoder(TOKEN, GREETING).feed(process.stdout.read())
    assert [event.kind for event in events] == ["result"]


@pytest.mark.parametrize(
    ("verb", "request_of", "kinds"),
    [
        ("launches", lambda folder: LaunchesRequest("glm", folder, 1), ["result"]),
        # That many GPUs are not here, which is told by a module that a survey does without where all is well.
        ("survey", lambda folder: wire.SurveyRequest("glm", folder, sys.executable, 1, expected_gpus=999), ["modules", "result"]),
    ],
)
def test_what_an_answer_needs_beyond_the_usual_is_asked_for(
    verb: str, request_of: Callable[[str], object], kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sent = compose(TOKEN, verb, request_of(str(tmp_path)), OWN_GREETING)
    decoder = FrameDecoder(TOKEN, GREETING)
    events: list[wire.Event] = []
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", FIRST_STAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(sent.first)
        process.stdin.flush()
        for line in process.stdout:
            found = decoder.feed(line)
            events += found
            if [event.kind for event in found] == ["modules"]:
                process.stdin.write(sent.rest)
                process.stdin.flush()

    assert [event.kind for event in events] == kinds


def test_what_goes_on_without_a_reader_is_sent_whole() -> None:
    assert package_for("lock", OWN_GREETING).rest == b""
    assert package_for("survey", OWN_GREETING).rest != b""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which compiled agents are kept; nothing is known of them from before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shipment._compiled.cache_clear()
    yield tmp_path / "orchestrator" / "agent"
    shipment._compiled.cache_clear()


def ship_anew() -> Package:
    """What another process would send."""
    shipment._compiled.cache_clear()
    return package_for("ping", OWN_GREETING)


def test_what_was_compiled_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = package_for("ping", OWN_GREETING)
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600

    monkeypatch.setattr(shipment, "compile_archive", lambda source, roots: Package(b"compiled again"))
    assert ship_anew() == made
    assert package_for("ping", "cpython-39 final") == package_for("ping", None) != made
    assert package_for("persist", OWN_GREETING) == package_for("persist", None)


def writable_by_others(kept: Path) -> None:
    kept.chmod(0o666)


def cut_short(kept: Path) -> None:
    os.truncate(kept, 5000)


def emptied(kept: Path) -> None:
    os.truncate(kept, 0)


def a_folder(kept: Path) -> None:
    kept.unlink()
    kept.mkdir()


def a_pipe(kept: Path) -> None:
    kept.unlink()
    os.mkfifo(kept, 0o600)


def a_link(kept: Path) -> None:
    kept.rename(kept.with_name("elsewhere"))
    kept.symlink_to("elsewhere")


@pytest.mark.parametrize("spoil", [writable_by_others, cut_short, emptied, a_folder, a_pipe, a_link])
def test_what_was_kept_and_is_not_whole_or_not_ones_own_is_made_anew(
    spoil: Callable[[Path], None], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package_for("ping", OWN_GREETING)
    (kept,) = cache.iterdir()
    spoil(kept)

    monkeypatch.setattr(shipment, "compile_archive", lambda source, roots: Package(b"compiled again"))

    assert ship_anew() == Package(b"compiled again")
    assert not list(cache.glob(".*")), "no half-made files are left"


def test_where_nothing_can_be_kept_it_is_compiled_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    whole = names(ship_anew())
    for named in ("relative/folder", str(tmp_path / "file")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        assert names(ship_anew()) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _nobody)
    assert names(ship_anew()) == whole


def names(package: Package) -> list[str]:
    """What a compiled package holds. The code in it is not the same bytes each time: marshal notes how often an object was in use."""
    return list(unpack(package.first))


def _nobody() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_ping_with_another_python(version: str) -> None:
    events, _, errors = boot(FIRST_STAGE, installed(version))

    assert [event.kind for event in events] == ["result"]
    assert errors == ""


TWO_THREADS = """\
import sys, threading
sys.path.insert(0, sys.argv[1])
import orchestrator.agent
half, asked, problems = threading.Event(), threading.Event(), []

def ask():
    try:
        from orchestrator.agent.slow import LAST
    except ImportError as error:
        problems.append(str(error))

def ask_again():
    ask()
    asked.set()

first, second = threading.Thread(target=ask), threading.Thread(target=ask_again)
first.start()
half.wait()
second.start()
first.join(), second.join()
sys.exit("; ".join(problems) or 0)
"""
SLOW = """\
import __main__
__main__.half.set()
__main__.asked.wait(0.5)
LAST = 1
"""
"""A module that another thread asks for while it is half imported. It waits for that one to be wrong; who is right waits for it."""


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.13"])
def test_no_thread_gets_a_module_that_another_has_half_imported(version: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.zip"
    path.write_bytes(package_for("ping", None).first)
    with zipfile.ZipFile(path, "a") as added:
        added.writestr("orchestrator/agent/slow.py", SLOW)

    done = subprocess.run([installed(version), "-I", "-S", "-c", TWO_THREADS, str(path)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


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


@pytest.mark.parametrize("module", ["json", "contextlib", "typing", "threading"])
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
    whole = compose(TOKEN, "ping", wire.PingRequest()).first
    process = subprocess.run(
        [sys.executable, "-I", "-S", "-c", FIRST_STAGE], input=whole[: len(whole) // 2], capture_output=True, check=False
    )

    assert process.returncode == 0
    assert GREETING.fullmatch(process.stdout.rstrip())


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
    first = archive._pack(str(Path(archive.__file__).parent), set())

    assert first == archive.agent_archive()
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert {"orchestrator/__init__.py", "orchestrator/agent/__init__.py", "orchestrator/agent/main.py"} <= set(names)
    assert all(name == "orchestrator/__init__.py" or name.startswith("orchestrator/agent/") for name in names)


def agent_imports(name: str) -> set[str]:
    """The agent's modules that a module imports, wherever in it."""
    package = Path(archive.__file__).parent
    found: set[str] = set()
    for node in ast.walk(ast.parse((package / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "orchestrator.agent":
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator.agent."):
            found.add(str(node.module).split(".")[2])
        elif isinstance(node, ast.Import):
            found |= {item.name.split(".")[2] for item in node.names if item.name.startswith("orchestrator.agent.")}
    return {item for item in found if (package / f"{item}.py").exists()}


@pytest.mark.parametrize("name", sorted(main.VERBS))
def test_what_is_sent_for_a_verb_holds_all_that_it_may_import(name: str) -> None:
    verb = main.VERBS[name]
    package = package_for(name, None).first
    held = {Path(item).stem for item in zipfile.ZipFile(io.BytesIO(package)).namelist()}

    assert {"main", verb.module, verb.types} <= held
    for module in sorted(held - {"__init__", "main"}):
        assert agent_imports(module) <= held, module


def test_tables_that_name_modules_bring_them() -> None:
    tune, diagnosis = (
        {Path(item).stem for item in zipfile.ZipFile(io.BytesIO(package_for(verb, None).first)).namelist()} for verb in ("tune", "doctor")
    )

    assert {entry.module for entry in knobs.KNOBS.values()} <= tune & diagnosis
    assert {group.module for group in doctor.GROUPS} <= diagnosis
    assert "at_boot" in tune
    assert "relaunch" not in tune


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
    assert hasattr(importlib.import_module(f"orchestrator.agent.{verb.types}"), verb.request)


def test_undecodable_names_do_not_break_an_event() -> None:
    reader, writer = os.pipe()
    main.Output(writer, TOKEN).emit("log", {"text": "caf\udce9 \u00e9"})
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        line = stream.read()

    assert json.loads(line.partition(b" ")[2])["data"]["text"] == "caf? \u00e9"
