"""The frame of a diagnosis: groups at once, one bound, whatever is broken. And the rule that every finding says where and what next."""

from __future__ import annotations

import json
import stat
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.agent import doctor as frame
from orchestrator.agent import wire, wire_host
from orchestrator.agent.clock import Deadline
from orchestrator.agent.command import Output
from orchestrator.agent.doctor import GROUPS, Group, doctor, examine
from orchestrator.agent.doctor_context import Commands, Context, DeviceNode, at_once
from orchestrator.agent.service_python import Completed, ServicePython
from orchestrator.agent.wire import Outcome, Verdict
from tests.unit.agent.doctor_machine import HEALTHY, LIBRARY, NO_SMI, SMI, VERSION, Machine, complete, good_nodes, nothing_of_nvidia

OWN = [group for group in GROUPS if group.name in ("driver", "device_nodes", "cuda")]


def text_or(*known: str) -> st.SearchStrategy[str | None]:
    return st.none() | st.sampled_from(known) | st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=30)


FILES = st.fixed_dictionaries(
    {
        path: text_or(text, "", "garbage", "580", "195 nvidia\n238 nvidia-uvm", "0 100000 65536", "Device Minor: 1")
        for path, text in {**HEALTHY, "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Device Minor: 0"}.items()
    }
)
MODES = st.sampled_from([stat.S_IFCHR | 0o666, stat.S_IFCHR, stat.S_IFREG, stat.S_IFDIR | 0o755, stat.S_IFIFO, stat.S_IFBLK | 0o600])
PATHS = [*good_nodes(3), "/dev/nvidia-uvm-tools", "/dev/nvidia-caps", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidiaX"]


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, DeviceNode]:
    found = {}
    for path in draw(st.sets(st.sampled_from(PATHS))):
        mode = draw(MODES)
        number = (draw(st.sampled_from([1, 195, 238, 511])), draw(st.sampled_from([0, 1, 2, 255])))
        device = number if stat.S_ISCHR(mode) else None
        found[path] = DeviceNode(path, mode, device, draw(st.sampled_from([0, 7])), draw(st.floats(0, 4e9)))
    return found


SMI_ANSWERS = st.sampled_from(
    [
        SMI,
        NO_SMI,
        Output(0, "No devices found.\n", ""),
        Output(0, "", ""),
        Output(4, "Failed to initialize NVML: Insufficient Permissions", ""),
        Output(9, "couldn't communicate with the NVIDIA driver", ""),
        Output(18, "", "Failed to initialize NVML: Driver/library version mismatch"),
        Output(-11, "", ""),
        Output(None, "", "nvidia-smi did not end within 20 s"),
    ]
)
CODES = [0, 1, 3, 34, 36, 46, 100, 101, 802, 803, 804, 999, 12345]
CUDA_ANSWERS = st.sampled_from(
    [Completed(0, f"status {code}\ncount_status 0\ncount {count}\n") for code in CODES for count in (0, 2)]
    + [
        Completed(0, "missing ctypes\n"),
        Completed(0, "library libcuda.so.1: cannot open shared object file\n"),
        Completed(-11, "", "Segmentation fault"),
        Completed(0, "status garbage\n"),
        Completed(None, problem="did not answer within 20 s and was killed"),
        Completed(None, problem="can't start /opt/venv/bin/python: [Errno 2] No such file or directory"),
    ]
)
REQUESTS = st.fixed_dictionaries(
    {
        "service": st.sampled_from([None, "svc", "never-started"]),
        "cuda": st.booleans(),
        "expected_gpus": st.sampled_from([None, 0, 2, 8]),
        "kernel": st.sampled_from([None, "6.8.*", "[", "*"]),
        "driver": st.sampled_from([None, "580.*", "575.*"]),
        "user": st.sampled_from([None, "nobody", "no-such-user"]),
        "environment": st.dictionaries(
            st.sampled_from(["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME", "PATH"]), st.sampled_from(["", "-1", LIBRARY, ":/x::"])
        ),
    }
)
PROBLEMS = st.sampled_from([None, None, "did not answer within 20 s and was killed", "only root can start a server as nobody"])
OPENINGS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([0, 1, 2, 5, 6, 13, 16, 19]))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    files=FILES,
    nodes=nodes(),
    gpus=st.sampled_from([0, 2]),
    smi=SMI_ANSWERS,
    cuda=CUDA_ANSWERS,
    openings=OPENINGS,
    problem=PROBLEMS,
    link=st.sampled_from([None, f"libcuda.so.{VERSION}", "libcuda.so.575.1", "nowhere", "libcuda.so.1"]),
    container=st.sampled_from([None, "lxc"]),
    request=REQUESTS,
)
def test_no_broken_machine_is_too_broken(
    files: dict[str, str | None],
    nodes: dict[str, DeviceNode],
    gpus: int,
    smi: Output,
    cuda: Completed,
    openings: dict[str, int],
    problem: str | None,
    link: str | None,
    container: str | None,
    request: dict[str, Any],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(
            Path(folder),
            files={path: text for path, text in files.items() if text is not None},
            links={} if link is None else {f"{LIBRARY}/libcuda.so.1": link},
            nodes=nodes,
            gpus=gpus,
            smi=smi,
            cuda=cuda,
            openings=openings,
            opening_problem=problem,
            container=container,
        )
        report = examine(machine.context(**request), OWN)
    assert [verdict for verdict in report.verdicts if not complete(verdict)] == []
    assert [verdict for verdict in report.verdicts if verdict.source.startswith("agent, ")] == []
    assert wire.from_json(wire_host.DoctorReport, json.loads(json.dumps(wire.to_json(report)))) == report
    modules = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
    kernel_knows = gpus or nodes or any(files[path] is not None for path in modules)
    if not kernel_knows and smi is SMI:
        assert [verdict for verdict in report.verdicts if verdict.outcome == Outcome.REFUSE] == []


@pytest.mark.parametrize(("expected", "outcome"), [(None, Outcome.WARN), (0, Outcome.PASS)])
def test_a_place_without_nvidia_is_one_line(tmp_path: Path, expected: int | None, outcome: str) -> None:
    groups = [*OWN, *(group for group in GROUPS if group.name == "gpus")]
    report = examine(nothing_of_nvidia(tmp_path).context(expected_gpus=expected), groups)
    assert [(verdict.check, verdict.outcome) for verdict in report.verdicts if verdict.check != "expected_gpus"] == [("driver", outcome)]


def test_the_facts_that_host_and_container_are_compared_by(tmp_path: Path) -> None:
    report = examine(Machine(tmp_path).context(), [])
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["driver_module"] == facts["driver_library"] == VERSION
    assert facts["kernel"] == "6.8.12-4-pve"
    assert facts["container"] == "lxc"
    assert facts["gpus"] == ["0000:01:00.0", "0000:02:00.0"]
    assert facts["device_nodes"]["/dev/nvidia-uvm"] == {"major": 238, "minor": 0, "changed": 0.0}
    assert isinstance(facts["started"], float)
    assert all(fact.source for fact in report.facts)


def group(monkeypatch: pytest.MonkeyPatch, name: str, check: Any) -> Group:
    module = types.ModuleType(f"orchestrator.agent.{name}")
    module.__dict__["check"] = check
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Group(name, name, "check")


def test_a_group_that_fails_or_hangs_does_not_take_the_others_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(frame, "SECONDS", 0.2)
    monkeypatch.setattr(frame, "_END_SECONDS", 0.1)
    good = Verdict("good", Outcome.PASS, "fine", source="here")

    def fails(_context: Context) -> list[Verdict]:
        raise ZeroDivisionError("by zero")

    groups = [
        group(monkeypatch, "failing_group", fails),
        group(monkeypatch, "hanging_group", lambda _context: ended.wait(30)),
        group(monkeypatch, "good_group", lambda _context: [good]),
    ]
    failed, hung, fine = examine(Machine(tmp_path).context(), groups).verdicts
    ended.set()
    assert (failed.outcome, hung.outcome, fine) == (Outcome.UNKNOWN, Outcome.UNKNOWN, good)
    assert "ZeroDivisionError: by zero" in failed.detail
    assert failed.evidence[0].startswith("test_doctor.py:")
    assert "did not end within 0.3 s" in hung.detail
    assert complete(failed)
    assert complete(hung)


def test_knobs_are_read_by_the_code_that_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[wire_host.TuneRequest] = []
    setting = wire_host.KnobSetting("sysctl", "kernel.numa_balancing", "0")
    result = wire_host.KnobResult(setting, wire_host.KnobOutcome.SAME)

    def tune(request: wire_host.TuneRequest, _emit: Any) -> wire_host.TuneReport:
        asked.append(request)
        return wire_host.TuneReport([result], [])

    module = types.ModuleType("orchestrator.agent.tuning")
    module.__dict__["tune"] = tune
    monkeypatch.setitem(sys.modules, module.__name__, module)
    report = examine(Machine(tmp_path).context(settings=[setting]), [])
    assert report.knobs == [result]
    assert (asked[0].write, asked[0].settings, asked[0].place) == (False, [setting], "container")


def test_a_command_is_run_once_and_never_again_once_it_hung() -> None:
    runs: list[list[str]] = []

    def run(argv: Any, _seconds: float) -> Output:
        runs.append(list(argv))
        return Output(0, "fine", "") if argv[0] == "quick" else Output(None, "", f"{argv[0]} did not end within 1 s")

    commands = Commands(ServicePython("python3"), Deadline(10), run)
    answers = at_once({str(number): lambda: commands.run(["quick", "-L"], 1.0).text for number in range(8)}, Deadline(10))
    assert set(answers.values()) == {"fine"}
    commands.run(["hung", "-L"], 1.0)
    assert "was not asked again: hung did not end" in commands.run(["hung", "-q"], 1.0).errors
    assert runs == [["quick", "-L"], ["hung", "-L"]]


def test_the_verb_answers_on_this_very_machine(tmp_path: Path) -> None:
    report = doctor(wire_host.DoctorRequest("host", str(tmp_path), cuda=True), lambda *_: None)
    assert [verdict for verdict in report.verdicts if not complete(verdict)] == []
