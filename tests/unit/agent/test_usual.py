"""What the phases of a load usually take, by loads that are made up and by what a box keeps of them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.agent import wire
from orchestrator.agent.footprints import keep_footprint
from orchestrator.agent.kernel_caches import COLD_FACT
from orchestrator.agent.state_folder import StateFolder
from orchestrator.agent.steps import Observed, Staged
from orchestrator.agent.usual import LoadPhases, read_loads, usual_phases
from orchestrator.agent.wire import UsualPhase

CUTLASS, TRTLLM = "flashinfer_cutlass", "flashinfer_trtllm"


def load(backend: str = CUTLASS, *, cold: bool | None = False, **phases: float) -> LoadPhases:
    return LoadPhases(backend, cold, phases)


def test_the_middle_and_the_longest_of_like_loads() -> None:
    loads = [load(weights=40.0), load(weights=90.0), load(weights=41.0), load(cold=True, weights=45.0, autotune=700.0)]
    assert usual_phases(loads, CUTLASS, cold=False) == {"weights": UsualPhase(41.0, 90.0, 3)}
    assert usual_phases(loads, CUTLASS, cold=True) == {"weights": UsualPhase(45.0, 45.0, 1), "autotune": UsualPhase(700.0, 700.0, 1)}


def test_what_depends_on_the_backend_is_not_known_from_others() -> None:
    loads = [load(TRTLLM, imports=20.0, weights=40.0, autotune=300.0, graph_capture=5.0)]
    assert usual_phases(loads, CUTLASS, cold=True) == {"imports": UsualPhase(20.0, 20.0, 1), "weights": UsualPhase(40.0, 40.0, 1)}


def test_a_load_of_which_nobody_knows_whether_caches_were_cold_tells_nothing_of_kernels() -> None:
    loads = [load(cold=None, weights=40.0, graph_capture=90.0)]
    assert usual_phases(loads, CUTLASS, cold=False) == {"weights": UsualPhase(40.0, 40.0, 1)}


def test_only_the_newest_count() -> None:
    loads = [load(weights=1000.0), *(load(weights=40.0 + number) for number in range(10))]
    assert usual_phases(loads, CUTLASS, cold=False) == {"weights": UsualPhase(44.5, 49.0, 10)}


def test_what_the_box_keeps_is_read(tmp_path: Path) -> None:
    folder = StateFolder(str(tmp_path), "svc")
    folder.create()
    phases = {"imports": 20.0, "distributed": 14.0, "weights": 12.0, "warm_up": 3.0}

    def verified(launch_id: str, phases: dict[str, float], cold: list[str], gate: dict[str, float] | None = None) -> None:
        launch = wire.Launch(launch_id, "svc", CUTLASS, "/py", ["--port", "1"], "127.0.0.1", 1)
        folder.write_launch(launch)
        facts = [wire.Fact(f"phase.{name}", seconds, "server log") for name, seconds in phases.items()]
        folder.mark_verified(launch_id, Observed(1000, [*facts, wire.Fact(COLD_FACT, cold, "folders")]))
        if gate is not None:
            keep_footprint(folder, launch_id, Staged(launch, 30.0, phases=gate), [])

    verified("20260101T000000", phases, [])
    verified(
        "20260102T000000", {**phases, "imports": 0.1, "distributed": 0.0, "gate": 7.0}, ["missing"], {"imports": 22.0, "distributed": 8.0}
    )
    folder.write_launch(wire.Launch("20260103T000000", "svc", CUTLASS, "/py", [], "127.0.0.1", 1))
    (folder.launches / "20260104T000000").mkdir()

    assert read_loads(folder) == [
        LoadPhases(CUTLASS, False, phases),
        LoadPhases(CUTLASS, True, {"imports": 22.0, "distributed": 8.0, "weights": 12.0, "warm_up": 3.0}),
    ]
