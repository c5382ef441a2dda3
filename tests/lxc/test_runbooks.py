"""Every shipped runbook to its end on real parts: a host that boots, a container under systemd, ssh, the program as its own process.

SGLang and the GPUs are stand-ins (:mod:`tests.lxc.standin_box`), and so is what a person would do to hardware: in gpu-missing and
cuda-init-fails the "repair" changes what the container's made-up nvidia-smi and libcuda answer. Nothing here loads a kernel module, makes
device nodes or resets a GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from orchestrator.results.runbook_record import FILE
from tests.lxc.by_hand import Person
from tests.lxc.standin_box import MODEL, PYTHON, SERVICE, STATE, StandinBox, standin_box
from tests.rig.commands import wait_for
from tests.rig.inventory import BY_SSH
from tests.rig.keyboard import Reply
from tests.rig.knob_tree import CPUS, NUMA_BALANCING
from tests.rig.network import Bridge
from tests.rig.workspace import Workspace

pytestmark = [pytest.mark.lxc, pytest.mark.slow]

SUBJECT = ("--host", BY_SSH, "--service", SERVICE)
SHORT = ("--set", "batch=1")
HANDMADE, HAND_PORT = "handmade", 30092


@pytest.fixture(scope="module")
def box(workspace: Workspace, bridge: Bridge, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandinBox]:
    """One for all tests, and one operator: a timing that one runbook keeps is what another compares with."""
    with standin_box(workspace, bridge, tmp_path_factory.mktemp("runbooks")) as made:
        yield made


def run(box: StandinBox, name: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a runbook without asking; its document."""
    answer = box.operator.ask("runbook.run", name, "--yes", *SUBJECT, *words, timeout=300)
    document = answer.document
    assert answer.exit_code == code, (document.get("how"), document.get("because"), document.get("steps", [])[-1:], answer.errors)
    return document


def on_terminal(box: StandinBox, name: str, replies: Mapping[str, Reply], *words: str) -> dict[str, str]:
    """Run a runbook on a terminal; what was answered, by step."""
    code, shown = box.operator.answer("runbook.run", name, "--host", BY_SSH, *words, replies=replies)
    assert code == 0, shown
    assert f"{name}: done" in shown
    return {line["step"]: line["answer"] for line in recorded(box, name) if line["event"] == "answered"}


def recorded(box: StandinBox, name: str) -> list[dict[str, Any]]:
    """The lines of the newest run of a runbook."""
    newest = sorted(path for path in box.operator.runs.iterdir() if f"-runbook.run-{name}-" in path.name)[-1]
    return [json.loads(line) for line in (newest / FILE).read_text(encoding="utf-8").splitlines()]


def verdicts(document: Mapping[str, Any]) -> dict[str, str]:
    return {step["step"]: step["verdict"] for step in document["steps"]}


def report(box: StandinBox) -> dict[str, Any]:
    """What ``fab status`` says."""
    answer = box.operator.ask("status", *SUBJECT, timeout=60)
    found: dict[str, Any] = answer.expect(0).document["report"]
    return found


def serve(box: StandinBox, backend: str = "auto") -> int:
    """See to it that a verified launch of that backend serves; its main process."""
    server = report(box)["server"]
    if server is None or server["backend"] != backend or server["launch_id"] is None:
        words = ("launch",) if server is None else ("relaunch", "--no-measure", "--accept-drift")
        box.operator.ask(*words, "--backend", backend, "--force", "--yes", *SUBJECT, timeout=120).expect(0)
    main = box.main()
    assert main is not None
    return main


def test_adopt_a_server_that_somebody_started_leaves_it_as_it_is(box: StandinBox) -> None:
    box.container.shell(
        f"cd /root; nohup {PYTHON} -m sglang.launch_server --model-path {MODEL} --port {HAND_PORT} >by-hand.log 2>&1 </dev/null &"
    )
    wait_for("the server", lambda: box.main(HAND_PORT) is not None, 60.0, 0.3)
    before = box.main(HAND_PORT)
    written = box.operator.inventory / f"services/{HANDMADE}.yml"
    try:
        answered = on_terminal(box, "adopt-a-server", {}, "--set", f"name={HANDMADE}", "--set", f"port={HAND_PORT}")
        assert written.is_file()
        assert box.main(HAND_PORT) == before
        assert answered["whose"] == answered["secrets"] == "yes"
        assert "adopt" in answered, "the verb's own question is the step's one question"
    finally:
        box.container.shell(f"kill -KILL {' '.join(map(str, box.servers()))}", check=False)
        written.unlink(missing_ok=True)


def test_switch_backend_and_roll_back(box: StandinBox) -> None:
    serve(box)
    switched = run(box, "switch-backend", "--set", "backend=flashinfer_cutedsl", *SHORT)
    assert verdicts(switched) == {"look": "done", "check": "done", "switch": "done", "serves": "holds", "timing": "done"}
    assert report(box)["server"]["backend"] == "flashinfer_cutedsl"
    nothing = run(box, "switch-backend", "--set", "backend=flashinfer_cutedsl", *SHORT)
    assert (nothing["ended"], nothing["exit_code"], list(verdicts(nothing))) == ("done", 0, ["look"])

    back = run(box, "roll-back", *SHORT)
    assert verdicts(back)["back"] == "done"
    assert report(box)["server"]["backend"] == "auto"


def test_backend_bakeoff_ends_where_it_began(box: StandinBox) -> None:
    serve(box)
    bakeoff = run(box, "backend-bakeoff", "--set", "backends=auto,flashinfer_cutedsl", "--set", "rounds=1", *SHORT)
    assert verdicts(bakeoff)["serves"] == "holds"
    assert report(box)["server"]["backend"] == "auto"


def test_slow_decode_finds_the_knobs_that_a_reboot_took(box: StandinBox) -> None:
    serve(box)
    box.host.reboot()
    slow = run(box, "slow-decode", *SHORT, "--done", "under-load,decide")
    ended = verdicts(slow)
    assert (ended["drift"], ended["tune"], ended["decide"]) == ("does_not_hold", "done", "done")
    assert ended["before-and-after"] in ("done", "not_believed")
    assert box.host.tree.text(NUMA_BALANCING) == "0"


def test_after_reboot_nobody_is_needed_where_a_unit_is_armed(box: StandinBox) -> None:
    serve(box)
    box.reboot()
    assert box.host.tree.text(NUMA_BALANCING) == "1"
    ended = verdicts(run(box, "after-reboot", "--set", "within=120"))
    assert (ended["tune"], ended["bring-back"], ended["start"]) == ("done", "skipped", "skipped")
    assert (ended["serves"], ended["next-time"]) == ("holds", "holds")
    assert box.host.tree.text(NUMA_BALANCING) == "0"


def test_after_reboot_brings_back_what_nothing_starts(box: StandinBox) -> None:
    serve(box)
    box.operator.ask("boot", "--off", *SUBJECT, timeout=60).expect(0)
    box.reboot()
    ended = verdicts(run(box, "after-reboot"))
    assert (ended["wait"], ended["bring-back"], ended["start"], ended["serves"]) == ("skipped", "done", "skipped", "holds")
    assert ended["next-time"] == "holds"


def test_emergency_restart_of_a_server_that_hangs(box: StandinBox) -> None:
    hung = serve(box)
    box.container.shell(f"kill -STOP {' '.join(map(str, box.servers()))}")
    ended = verdicts(run(box, "emergency-restart", "--set", "grace=1"))
    assert (ended["gpus-fit"], ended["stop"], ended["bring-back"], ended["serves"]) == ("holds", "done", "done", "holds")
    assert box.main() not in (None, hung)


def test_gpu_missing_on_a_terminal(box: StandinBox) -> None:
    serve(box)
    box.describe_gpus(count=7)

    def repair() -> str:
        box.describe_gpus()
        return "y"

    try:
        on_terminal(box, "gpu-missing", {"repair": repair}, "--service", SERVICE)
    finally:
        box.describe_gpus()
    ended = {line["step"]: line["verdict"] for line in recorded(box, "gpu-missing") if line["event"] == "outcome"}
    assert (ended["diagnose"], ended["stop"], ended["there"], ended["bring-back"]) == ("refused", "done", "holds", "done")
    assert box.main() is not None


def test_cuda_init_fails_stops_at_a_cure_that_did_not_help_and_goes_on_after_one_that_did(box: StandinBox) -> None:
    serve(box)
    box.operator.ask("teardown", "--yes", *SUBJECT, timeout=60).expect(0)
    box.describe_gpus(cu_init=999)
    try:
        failed = run(box, "cuda-init-fails", "--done", "nodes,container,versions", code=3)
        assert verdicts(failed)["works"] == "does_not_hold"
    finally:
        box.describe_gpus()
    box.container.stop()
    box.container.boot()
    resumed = run(box, "cuda-init-fails", "--resume")
    assert list(verdicts(resumed)) == ["works", "nothing-else", "bring-back", "start", "serves"]
    assert verdicts(resumed)["serves"] == "holds"


def test_drain_for_maintenance_keeps_everybody_away_while_the_machine_is_rebooted(box: StandinBox) -> None:
    serve(box)
    left = run(box, "drain-for-maintenance", "--done", "router", code=130)
    assert list(verdicts(left))[-1] == "empty"
    box.reboot()
    assert box.operator.ask("launch", "--yes", *SUBJECT, timeout=60).exit_code == 5, "it is locked, over the reboot too"
    assert box.main() is None
    resumed = run(box, "drain-for-maintenance", "--resume", "--done", "work,router-again")
    ended = verdicts(resumed)
    assert (ended["work"], ended["tune"], ended["release"], ended["bring-back"]) == ("done", "done", "done", "done")
    assert ended["router-again"] == "done"
    assert report(box)["boot"]["armed"]


ON_PAPER = ("--host", BY_SSH, "--service", SERVICE)


def left_over(printed: str) -> list[str]:
    """The processes that a listing by ps names, but for shells."""
    rows = [line.split() for line in printed.splitlines()]
    return [row[0] for row in rows if len(row) > 3 and row[0].isdigit() and "bash" not in row[3]]


def test_emergency_restart_by_hand_of_a_server_that_hangs(box: StandinBox) -> None:
    hung = serve(box)
    box.container.shell(f"kill -STOP {' '.join(map(str, box.servers()))}")
    with Person(box, "emergency-restart", *ON_PAPER, "--set", "grace=2") as person:
        looked = person.do("look")
        assert f"server: {hung}\n" in looked
        assert "health 000" in looked
        assert "cuInit 0 GPUs 8" in person.do("gpus-fit")
        person.do("evidence")

        stuck = left_over(person.do("stop", "find it", "stop it"))
        assert str(hung) in stuck
        person.type("place", f"kill -KILL {' '.join(stuck)}")
        wait_for("the end of all", lambda: not box.servers(), 10.0, 0.2)
        assert "LISTEN" not in person.do("stop", "nothing is left")

        verified = person.type("place", 'cat "$STATE/verified"').split()[-1]
        person.do("bring-back", "which launch")
        person.do("bring-back", "choose one", "find it", fill={"FILL_IN": verified})
        assert "sglang.launch_server" in box.text("/root/before/cmdline"), "how the one that hung was started is still known"
        person.do("bring-back", "The one that was last")
        assert "healthy" in person.do("bring-back", "prove it")
        proven = person.do("serves")
    assert re.search(r'"text": ?"[^"]*\w', proven), proven
    found = report(box)
    assert (found["health"], found["server"]["launch_id"], found["boot"]["armed"]) == ("serving", verified, True)
    assert found["server"]["main"]["pid"] != hung


def test_roll_back_by_hand_without_the_unit(box: StandinBox) -> None:
    serve(box)
    before = report(box)["server"]["launch_id"]
    served = serve(box, "flashinfer_cutedsl")
    with Person(box, "roll-back", *ON_PAPER) as person:
        assert before in person.do("known")
        assert box.main() == served, "to see what there is stops nothing"
        person.do("back", "choose one", fill={"FILL_IN": before})
        assert left_over(person.do("back", "find it", "stop it")) == []
        assert "LISTEN" not in person.do("back", "nothing is left")
        assert not box.servers()
        script = person.do("back", "from its record")
        assert "--moe-runner-backend auto" in script
        assert "healthy" in person.do("back", "run it", "prove it")
        person.do("serves")
    found = report(box)
    assert (found["health"], found["server"]["launch_id"], found["server"]["backend"]) == ("serving", before, "auto")
    assert not found["boot"]["armed"]


def test_switch_backend_by_hand(box: StandinBox) -> None:
    served = serve(box)
    before = report(box)["server"]["launch_id"]
    with Person(box, "switch-backend", *ON_PAPER, "--set", "backend=flashinfer_cutedsl") as person:
        assert left_over(person.do("switch", "find it", "stop it")) == []
        person.do("switch", "write a script")
        assert before not in box.text("/root/before/start.sh"), "it would pass for the launch from before"
        change = "s/--moe-runner-backend auto/--moe-runner-backend flashinfer_cutedsl/"
        person.type("place", f"sed -i '{change}' /root/before/start.sh")
        assert "healthy" in person.do("switch", "start the new one", "prove it")
        assert "flashinfer_cutedsl" in person.do("serves")
    found = report(box)
    assert (found["health"], found["server"]["launch_id"]) == ("serving", None)
    assert box.main() not in (None, served)


def test_drain_for_maintenance_by_hand(box: StandinBox) -> None:
    served = serve(box)
    with Person(box, "drain-for-maintenance", *ON_PAPER, "--set", "why=new riser cards") as person:
        assert f"server: {served}\n" in person.do("look")
        verified = person.do("way-back").split()[0]
        assert left_over(person.do("stop", "find it", "stop it")) == []
        person.do("lock")
        assert "new riser cards" in box.text(f"{STATE}/{SERVICE}/BY-HAND")
        assert "LISTEN" not in person.do("empty")
    box.reboot()
    assert box.main() is None
    with Person(box, "drain-for-maintenance", *ON_PAPER) as person:
        assert "cuInit 0 GPUs 8" in person.do("diagnose")
        person.do("tune")
        assert box.host.tree.text(NUMA_BALANCING) == "0"
        assert box.host.tree.values(f"{CPUS}/cpufreq/policy*/scaling_governor") == {"performance"}
        person.do("release")
        assert box.text(f"{STATE}/{SERVICE}/BY-HAND") == ""
        person.do("bring-back", "which launch")
        person.do("bring-back", "choose one", "The one that was last", fill={"FILL_IN": verified})
        assert "healthy" in person.do("serves")
    found = report(box)
    assert (found["health"], found["server"]["launch_id"], found["boot"]["armed"]) == ("serving", verified, True)
