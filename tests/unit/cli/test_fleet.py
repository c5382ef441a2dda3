"""One question to many on the screen: rows, the summary, JSON lines, exit codes."""

from __future__ import annotations

import inspect
import io
import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from orchestrator.agent import wire
from orchestrator.agent.wire import Outcome, Verdict
from orchestrator.agent.wire_host import Persistence
from orchestrator.agent.wire_launches import BootReport
from orchestrator.cli.blocks import table_lines
from orchestrator.cli.edge import Call
from orchestrator.cli.fleet import View, ask_many, fleet_table, several
from orchestrator.cli.fleet_rows import Row, boot_row, error_row, first_of, lock_row, status_row
from orchestrator.cli.screen import JsonScreen, Screen
from orchestrator.cli.terminal import TerminalScreen
from orchestrator.cli.verbs import tasks
from orchestrator.config import Inventory, load_inventory
from orchestrator.config.inventory import TAKES_SEVERAL
from orchestrator.errors import ConnectError, InterruptedByOperatorError, LockedError, OrchestratorError, RefusedError, UsageError
from orchestrator.flows.fleet import Question, Subject, Ways, subjects_of
from orchestrator.flows.status import BootTuning
from orchestrator.results.redaction import Redactor
from tests.unit.flows.samples import survey, write_inventory
from tests.unit.flows.test_attach_flow import AT_WORK, CUT_OFF

BOOT = BootTuning("gpu1")
FAILED = Persistence("fast", "orchestrator-prep.service", enabled=True, state="failed")


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_inventory(tmp_path / "two", second_host=True)
    with (folder / "hosts.yml").open("a", encoding="utf-8") as stream:
        stream.write("  plain:\n    address: 127.0.0.3\ngroups:\n  both: [gpu1, gpu2]\n")
    return load_inventory(folder)


def everything(inventory: Inventory) -> list[Subject]:
    return subjects_of(inventory, list(inventory.hosts.values()))


class Desk:
    """A call whose screen is read afterwards."""

    def __init__(self, *, as_json: bool = False, terminal: bool = False) -> None:
        self.out, self.errors = io.StringIO(), io.StringIO()
        self._terminal = terminal
        self.call = Call("status", as_json=as_json, open_screen=self._open)

    def _open(self, redactor: Redactor) -> Screen:
        if self._terminal:
            return TerminalScreen(redactor, Console(file=self.out, width=80, force_terminal=True), Console(file=self.errors, width=80))
        return Screen(redactor, self.out, self.errors)

    def ask(self, inventory: Inventory, answers: Mapping[str, str | BaseException], codes: Mapping[str, int] | None = None) -> int:
        def answer(subject: Subject, ways: Ways) -> str:
            found = answers[subject.label]
            if isinstance(found, BaseException):
                raise found
            return found

        view = View[str](
            Question("status", answer, 60),
            ("word",),
            lambda subject, found: Row("well", [found], "good"),
            lambda subject, found: {"host": subject.host.name, "service": subject.service, "report": found},
            exit_code=lambda found: (codes or {}).get(found, 0),
        )
        return ask_many(self.call, inventory, everything(inventory), view, 4)


ALL_WELL = {"gpu1 glm5": "one", "gpu2 tiny": "two", "plain": "three"}


def test_all_is_well(inventory: Inventory) -> None:
    desk = Desk()
    assert desk.ask(inventory, ALL_WELL) == 0
    shown = desk.out.getvalue().splitlines()
    assert shown[-6:-1] == [
        "  host   service  is    word",
        "  gpu1   glm5     well  one",
        "  gpu2   tiny     well  two",
        "  plain  -        well  three",
        "",
    ]
    assert shown[-1] == "3 hosts: 3 well"
    assert not desk.errors.getvalue()


def test_what_fails_is_in_the_table_with_what_to_type_and_its_code_counts(inventory: Inventory) -> None:
    desk = Desk()
    refused = ConnectError("gpu2: 127.0.0.2:22 refuses connections", next_step="check port: of gpu2")
    assert desk.ask(inventory, {**ALL_WELL, "gpu2 tiny": refused}, {"one": 3}) == 4
    assert "  gpu2   tiny     not reached  -\n      127.0.0.2:22 refuses connections\n" in desk.out.getvalue()
    assert desk.out.getvalue().splitlines()[-1] == "3 hosts: 2 well, 1 not reached"
    assert desk.errors.getvalue() == "gpu2 tiny, next: check port: of gpu2\n"


def test_a_bug_for_one_is_kept_with_its_traceback_and_costs_no_other(inventory: Inventory, tmp_path: Path) -> None:
    desk = Desk()
    assert desk.ask(inventory, {**ALL_WELL, "plain": ValueError("a bug")}) == 1
    assert "3 hosts: 2 well, 1 failed" in desk.out.getvalue()
    (kept,) = (tmp_path / "cache" / "orchestrator").glob("traceback-*")
    assert "raise found\nValueError: a bug" in kept.read_text(encoding="utf-8")
    assert str(kept) in desk.errors.getvalue()


def test_json_is_a_line_each(inventory: Inventory, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    desk.call = Call("status", as_json=True, open_screen=JsonScreen)
    code = desk.ask(inventory, {**ALL_WELL, "gpu2 tiny": RefusedError("no", evidence=["e"], next_step="n")})
    assert desk.call.end(code) == 3
    documents = {document["host"]: document for document in map(json.loads, capsys.readouterr().out.splitlines())}
    envelope = {"schema": "1", "verb": "status", "run": None}
    problem = {"category": "refused", "message": "no", "evidence": ["e"], "next_step": "n", "exit_code": 3, "see": []}
    assert documents == {
        "gpu1": {**envelope, "exit_code": 0, "error": None, "host": "gpu1", "service": "glm5", "report": "one"},
        "plain": {**envelope, "exit_code": 0, "error": None, "host": "plain", "service": None, "report": "three"},
        "gpu2": {**envelope, "exit_code": 3, "error": problem, "host": "gpu2", "service": "tiny"},
    }


def test_ctrl_c_shows_what_is_known(inventory: Inventory) -> None:
    desk, let_go = Desk(), threading.Event()

    def answer(subject: Subject, ways: Ways) -> str:
        if subject.host.name == "gpu2":
            signal.raise_signal(signal.SIGINT)
            let_go.wait(60)
        return "one"

    view = View[str](Question("status", answer, 60), ("word",), lambda _, found: Row("well", [found]), lambda _, found: {})
    try:
        code = ask_many(desk.call, inventory, everything(inventory), view, 1)
    finally:
        let_go.set()
    assert code == 130
    assert desk.out.getvalue().splitlines()[-1] == "3 hosts: 2 interrupted, 1 well"
    assert "interrupted before it answered" in desk.out.getvalue()
    assert "interrupted before it was asked" in desk.out.getvalue()


def test_a_terminal_has_no_line_each_but_the_table(inventory: Inventory) -> None:
    desk = Desk(terminal=True)
    assert desk.ask(inventory, ALL_WELL) == 0
    assert "1/3  gpu" not in desk.out.getvalue()
    assert "3 hosts: 3 well" in desk.out.getvalue()


@pytest.mark.parametrize(
    ("host", "every", "found"),
    [
        (None, False, None),
        ("gpu1", False, None),
        ("gpu1/101", False, None),
        ("gpu1,plain", False, ["gpu1 glm5", "plain"]),
        ("both", False, ["gpu1 glm5", "gpu2 tiny"]),
        (None, True, ["gpu1 glm5", "gpu2 tiny", "plain"]),
        ("all", True, ["gpu1 glm5", "gpu2 tiny", "plain"]),
    ],
)
def test_when_several_are_meant(inventory: Inventory, host: str | None, every: bool, found: list[str] | None) -> None:
    subjects = several(Desk().call, inventory, host, None, all=every)
    assert (None if subjects is None else [subject.label for subject in subjects]) == found


def test_wrong_words_for_several(inventory: Inventory) -> None:
    call = Desk().call
    with pytest.raises(UsageError, match="--all and --host gpu1 name different hosts"):
        several(call, inventory, "gpu1", None, all=True)
    with pytest.raises(UsageError, match="there is no host 'gpu9'"):
        several(call, inventory, "gpu1,gpu9", None, all=False)
    with pytest.raises(UsageError, match="none of these hosts has a service"):
        several(call, inventory, "plain,plain", None, all=False, only_services=True)


def test_every_verb_that_says_so_takes_several_and_tells_of_forks() -> None:
    local = {"hosts", "services", "history"}
    for name in TAKES_SEVERAL:
        taken = set(inspect.signature(tasks()[name].plain).parameters)
        assert "host" in taken
        assert {"all", "forks"} <= taken or name in local


@pytest.mark.parametrize(
    ("error", "standing"),
    [
        (ConnectError("gpu1: no"), "not reached"),
        (LockedError("no"), "held by somebody else"),
        (RefusedError("no"), "refused"),
        (InterruptedByOperatorError("no"), "interrupted"),
        (OrchestratorError("no"), "failed"),
    ],
)
def test_the_row_of_an_error(error: OrchestratorError, standing: str) -> None:
    row = error_row(error, "gpu1")
    assert (row.standing, row.note, list(row.cells)) == (standing, "no", [])


@pytest.mark.parametrize(
    ("report", "boot", "standing", "note"),
    [
        (survey(), BOOT, "serving", ""),
        (survey(health="down", server=None), BOOT, "down", ""),
        (survey(lock=wire.PersonLock("ann@laptop", "firmware", 0.0)), BOOT, "serving", "locked by ann@laptop"),
        (survey(order=CUT_OFF), BOOT, "serving", "launch O7 is half-done"),
        (survey(verdicts=[Verdict("port", Outcome.REFUSE, "taken")]), BOOT, "serving", "port: taken"),
        (survey(), BootTuning("gpu1", FAILED), "serving", "at boot: orchestrator-prep.service has failed"),
        (None, BOOT, "no service", ""),
        (None, BootTuning("gpu1", FAILED), "no service", "at boot: orchestrator-prep.service has failed"),
    ],
)
def test_the_row_of_a_status(report: wire.SurveyReport | None, boot: BootTuning, standing: str, note: str) -> None:
    row = status_row(report, boot)
    assert row.standing == standing
    assert row.note.startswith(note)
    assert bool(row.note) == bool(note)
    assert len(row.cells) == 4


def test_the_gravest_verdict_comes_first() -> None:
    verdicts = [Verdict("a", Outcome.WARN, "so so"), Verdict("b", Outcome.REFUSE, "bad"), Verdict("c", Outcome.PASS, "good")]
    assert first_of(verdicts) == "b: bad"
    assert first_of(verdicts[2:]) == ""


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (wire.LockStatus(None, None, []), "free"),
        (wire.LockStatus(wire.PersonLock("ann@laptop", "firmware", 0.0), None, []), "locked"),
        (wire.LockStatus(None, AT_WORK, []), "at work"),
        (wire.LockStatus(None, CUT_OFF, []), "half-done"),
    ],
)
def test_the_row_of_a_lock(found: wire.LockStatus, standing: str) -> None:
    assert lock_row("glm5", found).standing == standing


def test_the_row_of_what_comes_back() -> None:
    assert boot_row(BootReport(None, [])).standing == "does not come back"


def test_a_table_without_services_has_no_such_column(inventory: Inventory) -> None:
    table: Any = fleet_table([(Subject(inventory.host("plain")), Row("no service", ["-"]))], ["word"], frozenset())
    assert table_lines(table) == ["  host   is          word", "  plain  no service  -"]
