"""Whole verbs over a scripted agent: what is printed, kept and returned, and that no secret gets out."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import wire
from orchestrator.agent.wire_host import DoctorReport, KnobOutcome, KnobResult, KnobSetting, Persistence, TuneReport
from orchestrator.cli import edge, program
from orchestrator.config import Inventory
from orchestrator.errors import ConnectionLostError, LockedError
from tests.rig.documents import checked
from tests.unit.flows.fake_agent import FakeAgent, Step, answer, state
from tests.unit.flows.samples import CANARY, DRIFT, OLD, done, healthy_agent, preflight, relaunch_script, staging, survey, write_inventory

RELAUNCH = ("relaunch", "--backend", "flashinfer_cutedsl", "--yes")
FAILURE = wire.Failure("backend_unsupported", "this backend does not work here", ["OpError: sm_120a"], "choose another", "exited 1")


@dataclass(frozen=True)
class Done:
    """How one verb ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What was printed, which fits its schema."""
        return checked(self.out)


@dataclass(frozen=True)
class Box:
    """A box with a scripted agent, an inventory of it, and the program."""

    folder: Path
    run: Callable[..., Done]

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*"))

    def all_kept(self) -> str:
        """Every file under the folder, except the inventory."""
        files = (path for name in ("runs", "cache") for path in (self.folder / name).rglob("*") if path.is_file())
        return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Box:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ORCHESTRATOR_INVENTORY", str(write_inventory(tmp_path / "inventory")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    @contextmanager
    def open_place(*_: Any, **__: Any) -> Iterator[None]:
        yield

    def run(agent: FakeAgent, *words: str) -> Done:
        monkeypatch.setattr("orchestrator.remote.place.open_place", open_place)
        monkeypatch.setattr("orchestrator.remote.agent_client.AgentClient", lambda place: agent)
        made = program.make_program()
        monkeypatch.setattr(edge, "front_end", made)
        capsys.readouterr()
        try:
            made.run(["orchestrator", *words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return Box(tmp_path, run)


def restored() -> wire.OrderResult:
    return done(
        state=wire.State.RESTORED,
        exit_code=6,
        summary="it failed",
        service="the previous server serves again",
        measured=None,
        failure=FAILURE,
    )


def test_a_relaunch_shows_the_plan_the_states_and_both_timings_and_ends_with_the_run_folder(box: Box) -> None:
    ended = box.run(healthy_agent(), *RELAUNCH)
    assert ended.code == 0
    lines = ended.out.splitlines()
    for words in (
        "--moe-runner-backend",
        "kill -TERM 4242",
        "CHECKED",
        "weights",
        "time per output token, ms",
        "flashinfer_cutedsl serves",
    ):
        assert words in ended.out
    row = next(line for line in lines if "tokens per second" in line)
    assert row.split()[-1] == "1.25"
    (folder,) = box.runs
    assert lines[-1] == f"kept in {folder}"
    kept = {"run.json", "plan.json", "events.jsonl", "result.json", "timings.json", "server.log", "journal.jsonl"}
    assert {path.name for path in folder.iterdir()} == kept


def test_as_json_there_is_one_document_and_progress_goes_to_standard_error(box: Box) -> None:
    ended = box.run(healthy_agent(), *RELAUNCH, "--json")
    document = ended.document
    assert (document["schema"], document["verb"]) == ("1", "relaunch")
    assert document["exit_code"] == 0
    assert document["result"]["state"] == "DONE"
    assert document["plan"]["server"]["main"]["pid"] == 4242
    assert Path(document["run"]) == box.runs[0]
    assert "CHECKED" in ended.err


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (done(), 0),
        (restored(), 6),
        (done(state=wire.State.DOWN, exit_code=7, service="down", measured=None, failure=FAILURE), 7),
        (done(state=wire.State.REFUSED, exit_code=3, baseline=None, measured=None), 3),
        (done(state=wire.State.REFUSED, exit_code=5, baseline=None, measured=None), 5),
    ],
)
def test_the_exit_code_is_the_orders(box: Box, result: wire.OrderResult, code: int) -> None:
    assert box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).code == code
    as_json = box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH, "--json")
    assert as_json.code == as_json.document["exit_code"] == code


def test_a_rollback_shows_why_with_the_lines_and_what_serves_now(box: Box) -> None:
    out = box.run(healthy_agent(follow=[relaunch_script(restored())]), *RELAUNCH).out
    for words in ("this backend does not work here", "OpError: sm_120a", "choose another", "the previous server serves again"):
        assert words in out


@pytest.mark.parametrize(
    ("lost", "dark", "words"),
    [(0, 8.0, "no requests lost"), (1, 8.0, "; 1 request lost"), (3, 8.0, "; 3 requests lost"), (None, 8.0, "not known"), (None, None, "")],
)
def test_what_the_stop_cost_is_told(box: Box, lost: int | None, dark: float | None, words: str) -> None:
    result = done(lost_requests=lost, dark_seconds=dark)
    (line,) = [line for line in box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out.splitlines() if "service: " in line]
    assert line.partition("; dark for 8.0 s")[2].endswith(words) if words != "not known" else "how many requests were lost" in line
    assert ("lost" in line) == bool(words)


def test_a_service_that_is_down_is_told_for_how_long_so_far(box: Box) -> None:
    result = done(state=wire.State.DOWN, exit_code=7, service="down", dark_seconds=95.0, measured=None)
    out = box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out
    assert "service: down; dark for 1 min 35 s so far" in out
    assert "what serves now" not in out


def test_a_plan_tells_how_it_is_switched_and_for_how_long_it_will_be_dark(box: Box) -> None:
    agent = healthy_agent(preflight=[answer(preflight(staging=staging()))])
    out = box.run(agent, "relaunch", "--backend", "flashinfer_cutedsl", "--plan").out
    for words in (
        "  staged: SGLang can wait at a gate",
        "which answers new requests until its",
        "  dark for about 44 s (41 to 46 s), by 2 staged switches to",
        "  pass    staging: 100.0 GiB of memory are available",
        "  warn    kernel_caches: caches of compiled kernels are cold",
        "triton was never verified here",
    ):
        assert words in out


def test_a_sequential_plan_says_why(box: Box) -> None:
    sequential = staging(staged=False, reason="GPU 1 has 4.4 GiB free", verdicts=[], estimate=None)
    agent = healthy_agent(preflight=[answer(preflight(staging=sequential))])
    out = box.run(agent, "relaunch", "--backend", "flashinfer_cutedsl", "--plan", "--sequential").out
    assert "  sequential: GPU 1 has 4.4 GiB free" in out
    assert "  how long it will be dark is not known: no earlier load here is like it" in out
    (asked,) = agent.requests("preflight")
    assert asked.sequential


def test_the_document_tells_of_the_switch(box: Box) -> None:
    result = done(dark_seconds=41.5, staged=True, estimate=staging().estimate)
    agent = healthy_agent(preflight=[answer(preflight(staging=staging()))], follow=[relaunch_script(result)])
    document = box.run(agent, *RELAUNCH, "--json").document
    assert document["plan"]["staging"]["staged"] is True
    assert document["plan"]["staging"]["estimate"]["seconds"] == 44.04
    assert document["result"]["staged"] is True
    assert document["result"]["estimate"]["basis"] == "2 staged switches to flashinfer_cutedsl, caches cold"


@pytest.mark.parametrize(("staged", "how"), [(True, "was started beside the server before it"), (False, "was started after the stop")])
def test_what_was_expected_is_told_beside_what_was_measured(box: Box, staged: bool, how: str) -> None:
    result = done(dark_seconds=41.6, staged=staged, estimate=staging().estimate if staged else None)
    out = " ".join(box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out.split())
    assert how in out
    assert ("expected: dark for about 44 s (41 to 46 s), by 2 staged switches" in out) == staged
    assert ("measured: 41.6 s" in out) == staged


def test_what_a_staged_switch_saved_is_told_with_the_phases_that_were_dark(box: Box) -> None:
    result = done(dark_seconds=41.6, staged=True, saved_seconds=18.24, dark_phases={"weights": 12.04, "graph_capture": 20.1})
    out = " ".join(box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out.split())
    assert "started beside the server before it, which answered for the 18 s up to its gate" in out
    assert "dark in: weights 12 s, graph capture 20 s" in out


def test_a_rollback_is_not_measured_against_what_was_expected_of_the_switch(box: Box) -> None:
    result = done(state=wire.State.RESTORED, exit_code=6, measured=None, dark_seconds=90.0, estimate=staging().estimate)
    out = box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out
    assert "dark for 1 min 30 s" in out
    assert "expected:" not in out


def test_a_safe_stop_is_not_called_a_failure_of_the_server(box: Box) -> None:
    failure = wire.Failure("cancelled", "stopped safely: asked by kim@laptop")
    result = done(state=wire.State.RESTORED, exit_code=6, measured=None, failure=failure)
    out = box.run(healthy_agent(follow=[relaunch_script(result)]), *RELAUNCH).out
    assert "it did not go on: stopped safely: asked by kim@laptop [cancelled]" in out
    assert "new server failed" not in out


def test_a_skipped_timing_says_why(box: Box) -> None:
    skipped = done(baseline=wire.DecodeTiming(skipped="2 others use it"))
    assert "the old server was not timed: 2 others use it" in box.run(healthy_agent(follow=[relaunch_script(skipped)]), *RELAUNCH).out


def test_drift_is_exit_3_and_the_document_still_holds_the_plan(box: Box) -> None:
    agent = healthy_agent(preflight=[answer(preflight(differences=[DRIFT]))])
    ended = box.run(agent, *RELAUNCH, "--json")
    assert ended.code == 3
    assert ended.document["plan"]["differences"][0]["origin"] == "drift"
    assert "--mem-fraction-static" in ended.document["error"]["evidence"][0]
    assert agent.requests("submit") == []
    assert box.runs == []


def test_plan_stops_there_and_keeps_no_run(box: Box) -> None:
    agent = healthy_agent()
    ended = box.run(agent, "relaunch", "--backend", "flashinfer_cutedsl", "--plan")
    assert ended.code == 0
    assert "kill -TERM 4242" in ended.out
    assert agent.requests("submit") == []
    assert box.runs == []


def test_the_last_line_of_a_plan_is_its_verdict(box: Box) -> None:
    words = ("--backend", "flashinfer_cutedsl", "--reason", "it is slow", "--no-measure", "--plan")
    ready = "ready: the same without --plan does it: fab"
    last = box.run(healthy_agent(), "relaunch", *words).out.splitlines()[-1]
    assert last == f"{ready} relaunch --host gpu1 --service glm5 --backend flashinfer_cutedsl --no-measure --reason 'it is slow'"
    assert box.run(healthy_agent(), "teardown", "--plan").out.splitlines()[-1] == f"{ready} teardown --host gpu1 --service glm5"
    gone = box.run(healthy_agent(survey=[answer(survey(server=None))]), "teardown", "--plan")
    assert gone.out.splitlines()[-1] == "nothing to do: nothing of glm5 runs"


def test_the_verdict_of_a_plan_that_would_be_kept_away_is_no(box: Box) -> None:
    lock = wire.PersonLock("ann@laptop", "new firmware", 1764400000.0)
    held = box.run(healthy_agent(survey=[answer(survey(lock=lock))]), "relaunch", "--backend", "flashinfer_cutedsl", "--plan")
    assert "would be refused: glm5 is locked by ann@laptop" in " ".join(held.out.split())
    assert "ready:" not in held.out
    red = preflight(verdicts=[wire.Verdict("port", wire.Outcome.REFUSE, "port 30000 is taken", next_step="ss -ltnp")])
    refused = box.run(healthy_agent(preflight=[answer(red)]), "relaunch", "--backend", "flashinfer_cutedsl", "--plan")
    assert refused.code == 3
    assert refused.err.splitlines() == ["would be refused: port: port 30000 is taken", "    port: port 30000 is taken", "next: ss -ltnp"]


def test_a_preflight_is_a_relaunchs_first_step_with_its_exit_codes(box: Box) -> None:
    good = box.run(healthy_agent(), "preflight", "--backend", "flashinfer_cutedsl")
    assert good.code == 0
    assert "nothing was changed, and nothing speaks against" in good.out
    assert box.runs == []
    red = wire.Verdict("gpu_memory", wire.Outcome.REFUSE, "the weights can't fit")
    bad = box.run(healthy_agent(preflight=[answer(preflight(verdicts=[red]))]), "preflight", "--backend", "flashinfer_cutedsl")
    assert bad.code == 3
    assert "the weights can't fit" in bad.err
    forced = box.run(
        healthy_agent(preflight=[answer(preflight(verdicts=[red]))]), "preflight", "--backend", "flashinfer_cutedsl", "--force"
    )
    assert forced.code == 0
    assert "overruled by the operator" in forced.out


def test_without_yes_and_without_a_terminal_it_is_wrong_usage(box: Box) -> None:
    agent = healthy_agent()
    ended = box.run(agent, "relaunch", "--backend", "auto")
    assert ended.code == 2
    assert "--yes" in ended.err
    assert agent.requests("submit") == []
    assert box.runs == []


@pytest.mark.parametrize(
    ("error", "code"), [(LockedError("order X is at work", next_step="fab status"), 5), (ConnectionLostError("gone"), 4)]
)
def test_an_error_is_a_sentence_evidence_and_a_next_step(box: Box, error: BaseException, code: int) -> None:
    ended = box.run(healthy_agent(submit=[[error]]), *RELAUNCH)
    assert ended.code == code
    assert "next: fab status" in ended.err
    assert "Traceback" not in ended.err


def test_ctrl_c_says_what_goes_on_there(box: Box) -> None:
    script: list[Step] = [state(1, "CHECKED"), KeyboardInterrupt()]
    ended = box.run(healthy_agent(follow=[script]), *RELAUNCH)
    assert ended.code == 130
    assert "goes on in gpu1/101" in ended.err
    ended = box.run(healthy_agent(survey=[[KeyboardInterrupt()]]), *RELAUNCH)
    assert ended.code == 130
    assert "nothing was touched" in ended.err


class Signalled(FakeAgent):
    """An agent that sends this process a signal while it is asked `verb`."""

    def __init__(self, number: int, verb: str) -> None:
        self.__dict__.update(healthy_agent().__dict__)
        self._number, self._verb = number, verb

    def call(self, verb: str, request: Any, timeout: float | None = None) -> Iterator[wire.Event]:
        if verb == self._verb:
            signal.raise_signal(self._number)
        return super().call(verb, request, timeout)


@pytest.fixture
def heeded() -> Iterator[None]:
    """Signals as a program in a terminal finds them: under nohup the tests, and then the program too, ignore SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("verb", ["survey", "follow"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_says_what_ctrl_c_says_with_the_code_of_a_shell(box: Box, number: int, code: int, verb: str) -> None:
    ended = box.run(Signalled(number, verb), *RELAUNCH, "--json")
    assert ended.code == ended.document["error"]["exit_code"] == code
    if verb == "survey":
        assert "nothing was touched" in ended.err
        assert box.runs == []
    else:
        assert "goes on in gpu1/101" in ended.err


def test_nohup_is_respected(box: Box) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert box.run(Signalled(signal.SIGHUP, "survey"), *RELAUNCH).code == 0


def test_ctrl_c_after_a_refusal_does_not_change_how_it_ended(box: Box) -> None:
    agent = healthy_agent(preflight=[answer(preflight(differences=[DRIFT]))])
    assert box.run(agent, *RELAUNCH).code == 3
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_change_whose_reader_leaves_is_watched_to_its_exit_code(box: Box, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    assert box.run(healthy_agent(follow=[relaunch_script(restored())]), *RELAUNCH, *form).code == 6


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_output_that_can_not_be_written_is_said_once_and_a_change_is_watched_to_its_end(
    box: Box, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", Full())
    ended = box.run(healthy_agent(), "status", *form)
    assert (ended.code, ended.err.count("standard output can't be written: No space left on device")) == (1, 1)
    assert "Traceback" not in ended.err
    monkeypatch.setattr("sys.stdout", Full())
    ended = box.run(healthy_agent(follow=[relaunch_script(restored())]), *RELAUNCH, *form)
    assert (ended.code, ended.err.count("standard output can't be written: No space left on device")) == (6, 1)


def test_closed_streams_are_no_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert box.run(healthy_agent(), "status").code == 0


@pytest.mark.parametrize("words", [(*RELAUNCH, "--plan"), ("status",)])
def test_a_screen_names_the_inventory_and_how_it_was_chosen(box: Box, words: tuple[str, ...]) -> None:
    out = box.run(healthy_agent(), *words).out
    label = Inventory(box.folder / "inventory", chosen_by="$ORCHESTRATOR_INVENTORY").label
    assert f"inventory {label}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("verb", "words", "where"), [("submit", RELAUNCH, "runs"), ("survey", RELAUNCH, "cache"), ("survey", ("status",), "cache")]
)
def test_what_was_not_foreseen_is_a_sentence_and_its_traceback_a_file(box: Box, verb: str, words: tuple[str, ...], where: str) -> None:
    ended = box.run(healthy_agent(**{verb: [[ZeroDivisionError("by nought")]]}), *words)
    assert ended.code == 1
    assert "ZeroDivisionError: by nought" in ended.err
    assert "Traceback" not in ended.err
    (path,) = [Path(line.split("traceback: ")[1]) for line in ended.err.splitlines() if "traceback: " in line]
    assert path.is_relative_to(box.folder / where)
    assert "Traceback" in path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o077 == 0


def test_no_secret_is_shown_or_kept_wherever_it_comes_up(box: Box) -> None:
    leaky = done(summary=f"key {CANARY}", failure=wire.Failure("x", CANARY, [f"--api-key={CANARY}"], CANARY))
    script: list[Step] = [
        state(1, "CHECKED", f"with {CANARY}"),
        wire.Event(wire.EventKind.LOG, {"text": CANARY}),
        wire.Event(wire.EventKind.COLLECTED, wire.to_json(wire.Collected({"server.log": f"key {CANARY}\n"}))),
        *relaunch_script(leaky),
    ]
    leaks: list[dict[str, Any]] = [
        {"follow": [script]},
        {"preflight": [answer(preflight(differences=[dataclasses.replace(DRIFT, old=CANARY)]))]},
        {"preflight": [[ValueError(f"unexpected {CANARY}")]]},
        {"submit": [[LockedError(CANARY, evidence=[CANARY], next_step=CANARY)]]},
    ]
    for scripts in leaks:
        for form in ((), ("--json",)):
            ended = box.run(healthy_agent(**scripts), *RELAUNCH, *form)
            assert CANARY not in ended.out + ended.err
    kept = box.all_kept()
    assert "********" in kept
    assert CANARY not in kept


def test_status_is_one_screen(box: Box) -> None:
    order = wire.OrderStatus("O1", "relaunch", "LOADING", True, 1764400000.0, "kim@laptop")
    report = survey(order=order, others=[dataclasses.replace(OLD, port=31000)])
    ended = box.run(healthy_agent(survey=[answer(report)]), "status")
    assert ended.code == 0
    for words in (
        "glm5 in gpu1/101, SGLang 0.5.23",
        "serving",
        "process 4242 on port 30000",
        "tmux",
        "kim@laptop: LOADING, at work",
        "87.9/95.6",
        "31000",
    ):
        assert words in ended.out
    assert len(ended.out.splitlines()) <= 24


ANEW = "-> fab prep --unpersist --host gpu1 && fab prep --persist --profile blackwell-pcie --host gpu1"
UNIT = Persistence("blackwell-pcie", "orchestrator-prep.service", enabled=True, state="active")


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (None, ["boot    nothing is applied on gpu1"]),
        (UNIT, ["boot    blackwell-pcie on gpu1: applied at this boot by orchestrator-prep.service"]),
        (
            dataclasses.replace(UNIT, state="failed", said=["kernel.numa_balancing: 1 was read back"]),
            ["FAILED at this boot", "kernel.numa_balancing: 1 was read back", "-> fab prep --check --profile blackwell-pcie --host gpu1"],
        ),
        (
            dataclasses.replace(UNIT, enabled=False),
            ["not enabled", ANEW],
        ),
        (
            dataclasses.replace(UNIT, problem="the unit was changed"),
            ["the unit was changed", ANEW],
        ),
    ],
)
def test_status_tells_what_tunes_the_host_at_boot(box: Box, unit: Persistence | None, words: list[str]) -> None:
    agent = healthy_agent(tune=[answer(TuneReport([], [], unit))])
    out = " ".join(box.run(agent, "status").out.split())
    for word in words:
        assert " ".join(word.split()) in out
    boot = box.run(agent, "status", "--json").document["boot"]
    assert (boot["host"], boot["problem"]) == ("gpu1", None)
    assert boot["persistence"] == (None if unit is None else wire.to_json(unit))


def test_status_is_whole_without_its_host(box: Box) -> None:
    ended = box.run(healthy_agent(tune=[[ConnectionLostError("gpu1: gone")]]), "status")
    assert ended.code == 0
    assert "what tunes gpu1 is not known: gpu1: gone" in ended.out


def test_status_as_json_is_the_survey(box: Box) -> None:
    document = box.run(healthy_agent(), "status", "--json").document
    assert document["report"]["health"] == "serving"
    assert (document["host"], document["place"], document["service"]) == ("gpu1", "gpu1/101", "glm5")


def test_logs_are_the_servers_lines_and_nothing_else(box: Box) -> None:
    script = [wire.Event(wire.EventKind.LOG, {"text": f"line {n}"}) for n in (1, 2)]
    agent = healthy_agent(logs=[[*script, *answer(wire.LogEnd("L1", "/var/lib/x"))]])
    ended = box.run(agent, "logs", "--lines", "2")
    assert ended.out == "line 1\nline 2\n"
    assert agent.requests("logs")[0].lines == 2
    assert box.run(agent, "logs", "--json").document["lines"] == ["line 1", "line 2"]


def test_doctor_tells_whether_a_relaunch_would_be_refused(box: Box) -> None:
    assert box.run(healthy_agent(), "doctor").code == 0
    verdict = wire.Verdict("gpu", wire.Outcome.REFUSE, "cuInit 999", ["nvidia-uvm is missing"])
    ended = box.run(healthy_agent(preflight=[answer(preflight(verdicts=[verdict]))]), "doctor")
    assert ended.code == 3
    assert "nvidia-uvm is missing" in ended.out


def test_a_diagnosis_is_told_by_place_with_its_sources_and_commands(box: Box) -> None:
    knob = KnobResult(KnobSetting("sysctl", "kernel.numa_balancing", "0"), KnobOutcome.WOULD_CHANGE, {"": "1"}, {"": "1"})
    fine = wire.Verdict("kernel_version", wire.Outcome.PASS, "6.8.12-4-pve " + "as expected " * 8, source="/proc/sys/kernel/osrelease")
    red = wire.Verdict("device_nodes", wire.Outcome.REFUSE, "/dev/nvidia-uvm: it is missing", ["seen"], "nvidia-modprobe -u -c0", "/dev")
    report = DoctorReport([fine, red], [wire.Fact("booted", 1764400000.0, "clock")], [knob])
    ended = box.run(healthy_agent(doctor=[answer(report)]), "doctor")
    assert ended.code == 3
    lines = ended.out.splitlines()
    assert "  refuse  device_nodes: /dev/nvidia-uvm: it is missing  [/dev]" in lines
    assert "          -> nvidia-modprobe -u -c0" in lines
    assert any(line.endswith("[/proc/sys/kernel/osrelease]") for line in lines)
    headings = [line for line in lines if line and not line.startswith(" ")]
    assert [line.split(",")[0] for line in headings[-8:]] == [
        "host gpu1",
        "container gpu1/101",
        "host and container together",
        "service glm5 in gpu1/101",
        "refuse: device_nodes",
        "pass: 4 checks",
        "a relaunch would be refused",
        "next: nvidia-modprobe -u -c0",
    ]
    assert [line for line in lines if len(line) > 80] == []
    document = box.run(healthy_agent(doctor=[answer(report)]), "doctor", "--json").document
    assert document["exit_code"] == 3
    assert document["report"]["host"]["report"]["knobs"][0]["after"] == {"": "1"}
    assert [section["heading"].split()[0] for section in document["report"]["sections"]] == ["host", "container", "host", "service"]


def test_the_status_of_a_host_without_a_service_is_what_tunes_it_at_boot(box: Box) -> None:
    (service,) = (box.folder / "inventory" / "services").glob("*.yml")
    service.unlink()
    unit = Persistence("fast", "orchestrator-prep.service", enabled=True, state="active")
    agent = healthy_agent(tune=[answer(TuneReport([], [], unit))])
    ended = box.run(agent, "status", "--host", "gpu1")
    assert ended.code == 0
    assert "boot    fast on gpu1: applied at this boot by orchestrator-prep.service" in ended.out
    assert box.run(agent, "status", "--json").document["boot"]["persistence"]["state"] == "active"


def test_a_container_that_can_not_be_reached_is_exit_4_with_what_its_host_says(box: Box) -> None:
    lost = ConnectionLostError("gpu1/101: gone", next_step="fab status")
    ended = box.run(healthy_agent(survey=[[lost]]), "doctor")
    assert ended.code == 4
    assert "refuse  reach: gpu1/101: gone  [ssh]" in ended.out
    assert "-> fab status --host gpu1 --service glm5" in ended.out
    assert "host gpu1" in ended.out


def test_a_teardown_of_nothing_is_done_already(box: Box) -> None:
    ended = box.run(healthy_agent(survey=[answer(survey(server=None))]), "teardown", "--yes")
    assert ended.code == 0
    assert "nothing to stop" in ended.out


def test_a_run_that_can_not_be_kept_does_not_fail_the_relaunch(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = box.folder / "file"
    in_the_way.write_text("", encoding="utf-8")
    monkeypatch.setenv("ORCHESTRATOR_RUNS", str(in_the_way))
    ended = box.run(healthy_agent(), *RELAUNCH)
    assert ended.code == 0
    assert "can't be kept" in ended.err
    assert "kept in" not in ended.out.splitlines()[-1]


def test_the_reason_is_shown_by_plan_and_status(box: Box) -> None:
    planned = box.run(healthy_agent(), "relaunch", "--backend", "flashinfer_cutedsl", "--plan", "--reason", "night shift")
    assert "  why   night shift" in planned.out.splitlines()
    order = wire.OrderStatus("O1", "relaunch", "DONE", False, 1764400000.0, "kim@laptop", "night shift")
    agent = healthy_agent(survey=[answer(survey(order=order))])
    assert "reason: night shift" in box.run(agent, "status").out
    assert box.run(agent, "status", "--json").document["report"]["order"]["reason"] == "night shift"


def test_what_a_login_left_is_one_paragraph_beside_the_drift(box: Box) -> None:
    left = [wire.Difference("environment", f"LEFT_{number:02}", "x", None, "inherited") for number in range(25)]
    out = box.run(healthy_agent(preflight=[answer(preflight(differences=[DRIFT, *left]))]), *RELAUNCH).out
    assert "25 inherited variables that the service does not set: LEFT_00, LEFT_01" in out
    (row,) = [line for line in out.splitlines() if "drift: by" in line]
    assert "--mem-fraction-static" in row


def test_a_missing_secret_is_wrong_configuration_for_doctor_and_relaunch(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CANARY_KEY")
    agent = healthy_agent()
    for words in (("doctor",), RELAUNCH):
        ended = box.run(agent, *words)
        assert ended.code == 2
        assert "secret api-key" in ended.err
        assert "next: export CANARY_KEY=" in ended.err


@pytest.mark.parametrize("words", [RELAUNCH, ("doctor",)])
def test_what_the_box_advises_names_the_host(box: Box, words: tuple[str, ...]) -> None:
    locked = LockedError("order X is at work", next_step="fab status")
    agent = healthy_agent(preflight=[[locked]])
    ended = box.run(agent, *words)
    assert ended.code == 5
    assert "next: fab status --host gpu1 --service glm5" in ended.err


def test_what_happens_to_the_launch_that_is_followed_is_told_beside_the_log(box: Box) -> None:
    note = wire.Event(wire.EventKind.PROGRESS, wire.to_json(wire.Progress("LOGS", "ended", 0.0, "launch L1 has ended")))
    ended = box.run(healthy_agent(logs=[[note, *answer(wire.LogEnd("L1", "/x"))]]), "logs", "--follow", "--launch", "L1")
    assert (ended.code, ended.out, ended.err) == (0, "", "launch L1 has ended\n")
