"""The console script and plain ``fab``: hosts, Fabric's own flags, help and exit codes.

Most run in this process, through the same program objects; a few run the real commands, to show that these are the same.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fabric.main  # type: ignore[import-untyped]
import pytest

from orchestrator.cli import edge, program
from orchestrator.folders import shipped_profiles
from tests.rig.documents import checked
from tests.unit.flows.samples import write_inventory

pytestmark = pytest.mark.slow  # a program or a parser is started for most of these

REPOSITORY = Path(__file__).resolve().parents[3]
FRONT_ENDS = {"orchestrator": ["-m", "orchestrator"], "fab": ["-m", "fabric"]}


@dataclass(frozen=True)
class Done:
    """How one command line ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Standard error as one line, however it was wrapped."""
        return " ".join(self.stderr.split())


@dataclass(frozen=True)
class FrontEnd:
    """One of the two, in a folder with a fabfile and an inventory of two hosts, at which nothing listens."""

    name: str
    folder: Path
    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def run(self, *words: str) -> Done:
        """Run a command line in this process."""
        made = program.make_program() if self.name == "orchestrator" else fabric.main.make_program()
        self.monkeypatch.setattr(edge, "front_end", made)
        self.monkeypatch.chdir(self.folder)
        self.capture.readouterr()
        try:
            made.run([self.name, *words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = self.capture.readouterr()
        return Done(code, out, err)

    def start(self, *words: str, stdout: int = subprocess.PIPE) -> Done:
        """Run a command line as a process of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRATOR", "INVOKE", "FABRIC"))}
        done = subprocess.run(
            [sys.executable, *FRONT_ENDS[self.name], *words],
            cwd=self.folder,
            env={**kept, "HOME": str(self.folder), "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        return Done(done.returncode, done.stdout or "", done.stderr)


@pytest.fixture(params=sorted(FRONT_ENDS))
def front_end(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> FrontEnd:
    return make_front_end(str(request.param), tmp_path, capsys, monkeypatch)


@pytest.fixture
def orchestrator(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    return make_front_end("orchestrator", tmp_path, capsys, monkeypatch)


def make_front_end(name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    monkeypatch.delenv("ORCHESTRATOR_INVENTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "fabfile.py").write_text((REPOSITORY / "fabfile.py").read_text(encoding="utf-8"), encoding="utf-8")
    write_inventory(folder / "inventory", second_host=True)
    return FrontEnd(name, folder, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-H", "gpu1,gpu2", "attach"], 2, "one host at a time"),
        (["status", "--host", "gpu1", "--dry"], 2, "use --plan"),
        (["relaunch", "--help"], 0, "--accept-drift"),
        (["-H", "gpu1", "status"], 4, "gpu1: 127.0.0.1:1 refuses connections"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_as_a_process(front_end: FrontEnd, words: list[str], code: int, said: str) -> None:
    done = front_end.start(*words)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-H", "gpu1,gpu2", "attach"], "one host at a time"),
        (["attach", "-H", "gpu1,gpu2"], "one host at a time"),
        (["-H", "gpu1", "status", "--host", "gpu2"], "different hosts"),
        (["-H", "gpu9", "status"], "did you mean gpu"),
        (["-H", "root@gpu1", "status"], "no host 'root@gpu1'"),
        (["-H", "gpu1", "backends"], "not about a host"),
        (["status"], "which host?"),
        (["--dry", "status", "--host", "gpu1"], "use --plan"),
        (["status", "--host", "gpu1", "--dry"], "use --plan"),
        (["relaunch", "--host", "gpu1", "--backend", "--dry"], "use --plan"),
        (["trust", "--dry"], "use --plan"),
        (["relaunch", "--host", "gpu1"], "auto, flashinfer_cutedsl"),
        (["relaunch", "--host", "gpu1", "--backend", "flashinfer_cutedls"], "did you mean flashinfer_cutedsl?"),
        (["teardown", "--host", "gpu1", "--grace", "soon"], "--grace takes seconds"),
        (["logs", "--host", "gpu1", "--lines", "many"], "--lines takes a whole number"),
        (["hosts", "--inventory", "nowhere"], "nowhere (from --inventory) is not an inventory: there is no such folder"),
        (["hosts", "--inventory", "inventory/services"], "is not an inventory: it has no hosts.yml"),
        (["nonsense"], "next: "),
        (["status", "gpu1"], "status --host gpu1"),
        (["prep", "gpu1,gpu2"], "prep --host gpu1,gpu2"),
        (["prep", "--host", "gpu1", "--host", "gpu2"], "prep --host gpu1,gpu2"),
        (["status", "glm5"], "status --service glm5"),
        (["relaunch", "auto", "--host", "gpu1"], "relaunch --backend auto --host gpu1"),
        (["status", "auto"], "status --help"),
        (["relanch"], "Did you mean relaunch?"),
        (["lock-status"], "lock.status --help"),
        (["status", "--nonsense"], "status --help"),
        (["relaunch", "--backed", "auto"], "Did you mean --backend?"),
        (["--host", "gpu1", "status"], "It goes after the verb: status --host"),
        (["status", "--", "reboot"], "nothing can follow --"),
        (["-t", "3", "status"], "--connect-timeout has no effect here"),
        (["status", "-T", "3"], "the deadlines in the service's policy"),
        (["status", "-i", "/keys/x"], "use identity_files: of the host"),
        (["--prompt-for-sudo-password", "status"], "use become: sudo"),
        (["--prompt-for-login-password", "status"], "no passwords are used"),
        (["-e", "relaunch"], "use --plan"),
        (["-p", "status"], "--pty has no effect"),
        (["backends", "--sglang", "new"], "--sglang"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_2_with_a_sentence(front_end: FrontEnd, words: list[str], said: str) -> None:
    done = front_end.run(*words)
    assert "Traceback" not in done.stderr
    assert said in done.said
    assert done.stdout == ""
    assert done.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--help"],
        ["relaunch", "--help"],
        ["relaunch", "--backend", "--help"],
        ["trust", "--help"],
        ["--help", "teardown"],
        ["lab.up", "-h"],
        ["compare", "--help"],
        ["compare", "-h"],
        ["report", "--help"],
    ],
    ids=" ".join,
)
def test_help_is_shown_wherever_it_is_asked_for(front_end: FrontEnd, words: list[str]) -> None:
    done = front_end.run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    verb = next(word for word in words if not word.startswith("-"))
    assert re.match(rf"Usage: \S+ {verb} .*\[--options\]\n\n", done.stdout)
    assert "\nOptions:\n" in done.stdout


@pytest.mark.parametrize("words", [["-H", "gpu1", "status"], ["status", "--host", "gpu1"]], ids=" ".join)
def test_a_host_that_does_not_answer_is_exit_4(front_end: FrontEnd, words: list[str]) -> None:
    done = front_end.run(*words)
    assert "gpu1: 127.0.0.1:1 refuses connections" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 4


def test_errors_are_documents_too(front_end: FrontEnd) -> None:
    done = front_end.run("status", "--json", "--host", "gpu9")
    document = checked(done.stdout)
    assert (document["schema"], document["verb"]) == ("1", "status")
    assert document["error"]["exit_code"] == done.returncode == 2
    assert document["error"]["evidence"] == ["hosts: gpu1, gpu2", "inventory: inventory (found here)"]


def test_an_inventory_that_only_the_variable_names_is_said_to_come_from_there(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_INVENTORY", "/nope")
    done = front_end.run("hosts")
    assert "/nope (from $ORCHESTRATOR_INVENTORY) is not an inventory: there is no such folder" in done.said
    assert "next: unset ORCHESTRATOR_INVENTORY" in done.stderr
    monkeypatch.setenv("ORCHESTRATOR_INVENTORY", str(front_end.folder / "inventory"))
    assert "inventory: inventory ($ORCHESTRATOR_INVENTORY)" in front_end.run("status", "--host", "gpu9").said


def test_an_identity_file_that_is_not_here_is_a_warning_of_hosts(front_end: FrontEnd) -> None:
    path = front_end.folder / "inventory" / "hosts.yml"
    path.write_text(path.read_text(encoding="utf-8").replace("port: 1\n", "port: 1\n    identity_files: [/absent/key]\n"), encoding="utf-8")
    done = front_end.run("hosts")
    assert done.returncode == 0
    assert "gpu1: identity file /absent/key does not exist" in done.stderr


def test_a_mistake_in_the_inventory_is_named_by_file_and_line(front_end: FrontEnd) -> None:
    service = front_end.folder / "inventory" / "services" / "glm5.yml"
    service.write_text(service.read_text(encoding="utf-8").replace("port: 30000", "port: many"), encoding="utf-8")
    done = front_end.run("hosts")
    assert "services/glm5.yml:6: port:" in done.said
    assert done.returncode == 2


@pytest.mark.parametrize("verb", ["backends", "tunings"])
def test_without_an_inventory_the_shipped_profiles_are_shown_and_where_they_lie(orchestrator: FrontEnd, verb: str) -> None:
    elsewhere = dataclasses.replace(orchestrator, folder=orchestrator.folder / "elsewhere")
    (orchestrator.folder / "inventory").rename(orchestrator.folder / "kept")
    elsewhere.folder.mkdir()
    shown = elsewhere.run(verb)
    assert (shown.returncode, shown.stderr) == (0, "")
    said = " ".join(shown.stdout.split())
    assert "no inventory here: these come with the program and lie in" in said
    assert {"backends": "flashinfer_cutlass", "tunings": "observe"}[verb] in said
    assert checked(elsewhere.run(verb, "--json").stdout)["inventory"] == str(shipped_profiles())
    assert elsewhere.run(verb, "--inventory", "nowhere").returncode == 2
    assert elsewhere.run("hosts").returncode == 2
    assert "come with the program" not in elsewhere.run(verb, "--inventory", str(orchestrator.folder / "kept")).stdout


@pytest.mark.parametrize("verb", ["hosts", "services", "backends"])
def test_the_inventory_is_listed_as_text_and_as_json(front_end: FrontEnd, verb: str) -> None:
    text = front_end.run(verb)
    document = checked(front_end.run(verb, "--json").stdout)
    names = [item["name"] for item in document[verb]]
    assert names
    assert all(name in text.stdout for name in names)


def test_backends_shows_the_newest_variant_and_the_others_on_request(orchestrator: FrontEnd) -> None:
    profile = orchestrator.folder / "inventory" / "backends" / "auto.yml"
    text = profile.read_text(encoding="utf-8")
    older = text.partition("variants:\n")[2].replace(">=0.5.11", ">=0.5.6,<0.5.11")
    profile.write_text(text.replace("variants:\n", f"variants:\n{older}"), encoding="utf-8")
    assert "<0.5.11" not in orchestrator.run("backends").stdout
    assert "<0.5.11" in orchestrator.run("backends", "--all").stdout
    assert "<0.5.11" in orchestrator.run("backends", "--sglang", "0.5.9").stdout
    assert all(
        len(line) <= 80 for line in orchestrator.run("backends", "--all", "--inventory", str(REPOSITORY / "inventory")).stdout.splitlines()
    )


def test_the_inventory_is_found_from_below_it(front_end: FrontEnd) -> None:
    below = front_end.folder / "a" / "b"
    below.mkdir(parents=True)
    assert dataclasses.replace(front_end, folder=below).run("hosts").returncode == 0


def test_a_reader_who_leaves_early_is_no_traceback(front_end: FrontEnd) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = front_end.start("hosts", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["relaunch", "--backend", "--yes"],
        ["-H", "gpu1", "--", "reboot"],
        ["status", "--", "reboot"],
        ["-t", "soon", "status"],
        ["trust"],
    ],
    ids=" ".join,
)
def test_our_own_program_ends_a_command_line_it_can_not_parse_with_exit_2(orchestrator: FrontEnd, words: list[str]) -> None:
    done = orchestrator.run(*words)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_help_names_no_flag_that_would_have_no_effect(orchestrator: FrontEnd) -> None:
    shown = orchestrator.run("--help").stdout
    assert "--hosts" in shown
    assert "relaunch" in shown
    for flag in edge.INEFFECTIVE:
        assert f"--{flag}" not in shown


def test_ctrl_c_while_it_imports_is_130_without_a_traceback(orchestrator: FrontEnd) -> None:
    (orchestrator.folder / "fabric.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    code = f"import sys; sys.path.insert(0, {str(orchestrator.folder)!r}); from orchestrator.cli.entry import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_the_version_is_ours(orchestrator: FrontEnd) -> None:
    from orchestrator import __version__

    assert orchestrator.run("--version").stdout.startswith(f"orchestrator {__version__}\n")
