"""``fab prep`` on hosts where something is wrong: every one is a finding, none a traceback, and all that can be set is set."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lxc.prepared import KNOBS, PROFILE, SET, Prepared, prepared
from tests.rig.bare_host import PLAIN_USER, SUDOER, BareHost
from tests.rig.commands import wait_for
from tests.rig.container import Container
from tests.rig.inventory import BY_LXC_ATTACH, BY_SSH, login, write_inventory
from tests.rig.knob_tree import CPUS, NUMA_BALANCING, KnobTree
from tests.rig.operator import Running
from tests.rig.pci_tree import DEVICE_CONTROL, GPUS
from tests.rig.workspace import Workspace

pytestmark = pytest.mark.lxc

NUMA = "kernel.numa_balancing"


@pytest.fixture
def box(workspace: Workspace, tmp_path: Path) -> Iterator[Prepared]:
    """A host without a container."""
    with prepared(workspace, tmp_path) as made:
        yield made


def test_a_value_that_does_not_stick_is_a_failure_and_the_rest_is_set(box: Prepared) -> None:
    box.host.behave({NUMA_BALANCING: "stays"})

    done = box.prep().expect(1)

    lost = done.result(NUMA)
    assert (lost["outcome"], lost["before"], lost["after"]) == ("failed", {"": "1"}, {"": "1"})
    assert lost["detail"]
    assert done.counts["failed"] == 1
    assert box.host.knobs.text("/proc/sys/vm/swappiness") == "10"
    assert {box.host.knobs.word(gpu, DEVICE_CONTROL) for gpu in GPUS} == {0x5930}


@pytest.mark.parametrize(("word", "said"), [("EPERM", "ermitted"), ("EACCES", "denied"), ("EROFS", "ead-only"), ("EINVAL", "nvalid")])
def test_a_refused_write_is_told_with_the_kernels_words(box: Prepared, word: str, said: str) -> None:
    box.host.behave({NUMA_BALANCING: word})

    done = box.prep().expect(1)

    assert done.result(NUMA)["outcome"] == "failed"
    assert said in done.result(NUMA)["detail"]
    assert done.counts["failed"] == 1


def test_a_read_only_host_is_left_as_it_is(box: Prepared) -> None:
    for _, target in box.host.knobs.mounts():
        box.host.enter("mount", "-o", "remount,bind,ro", target)
    before = box.host.knobs.contents()

    done = box.prep().expect(1)

    assert box.host.knobs.contents() == before
    assert done.result(NUMA)["outcome"] == "failed"
    assert "ead-only" in done.result(NUMA)["detail"]
    assert "changed" not in done.counts


def test_nothing_is_written_where_originals_cannot_be_kept(box: Prepared) -> None:
    box.host.enter("mount", "-o", "remount,bind,ro", "/var/lib")
    before = box.host.knobs.fingerprint()

    done = box.prep()

    assert done.code == 1
    assert "ead-only" in done.answer.errors + json.dumps(done.answer.document)
    assert box.host.knobs.fingerprint() == before


def test_knobs_that_a_machine_does_not_have(workspace: Workspace, tmp_path: Path) -> None:
    tree = KnobTree.write(workspace.folder("prep-without-knobs") / "knobs")
    for path in (f"{CPUS}/cpufreq", NUMA_BALANCING, "/sys/module/nvidia_uvm", "/usr/local/sbin/nvidia-smi"):
        tree.remove(path)
    for function in tree.path("/sys/bus/pci/devices").iterdir():
        function.unlink()
    host = BareHost.start(workspace, "prep-without-knobs", knobs=tree)
    # The machine below has a numa_balancing of its own.
    host.enter("sh", "-c", "mount -t tmpfs -o ro tmpfs /proc/sys/kernel")
    with prepared(workspace, tmp_path, host=host) as box:
        done = box.prep().expect(0)

        absent = {name for name, outcome in done.outcomes.items() if outcome == "unavailable"}
        assert absent == {
            "cpu_governor", "cpu_energy_preference", NUMA, "gpu_persistence_mode", "gpu_power_limit", "pcie_max_read_request",
            "nvidia_uvm.uvm_disable_hmm",
        }  # fmt: skip
        assert done.outcomes["vm.swappiness"] == "changed"


def test_a_gpu_off_the_bus_is_named_and_left_alone(box: Prepared) -> None:
    gone = GPUS[2]
    box.host.knobs.fall_off_the_bus(gone)

    done = box.prep()
    shown = box.operator.show("prep", "--host", "box", "--check").stdout

    result = done.result("pcie_max_read_request")
    assert f"{gone}: " in result["detail"]
    assert "off the bus" in result["detail"]
    assert gone not in result["after"]
    assert box.host.knobs.config(gone).read_bytes() == b"\xff" * 4096
    assert {box.host.knobs.word(gpu, DEVICE_CONTROL) for gpu in GPUS if gpu != gone} == {0x5930}
    assert result["outcome"] == "unknown"
    assert gone in shown


@pytest.mark.parametrize("word", ["hangs", "read-hangs"])
def test_a_gpu_that_does_not_answer_costs_seconds_and_nothing_else(box: Prepared, word: str) -> None:
    silent = GPUS[2]
    real = box.host.knobs.config(silent).resolve().relative_to(box.host.knobs.folder.resolve())
    box.host.behave({f"/{real}": word})
    begun = time.monotonic()

    done = box.prep()

    assert time.monotonic() - begun < 60
    result = done.result("pcie_max_read_request")
    assert silent in result["detail"]
    assert {box.host.knobs.word(gpu, DEVICE_CONTROL) for gpu in GPUS if gpu != silent} == {0x5930}
    assert box.host.knobs.text(NUMA_BALANCING) == "0"


def test_an_unreachable_host_is_read_through_its_container(workspace: Workspace, container: Container, tmp_path: Path) -> None:
    with prepared(workspace, tmp_path, container=container) as box:
        swappiness = int(Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8"))
        box.use([{"knob": "sysctl", "name": "vm.swappiness", "value": swappiness + 1}, {"knob": "sysctl", "name": "vm.max_map_count"}])
        box.host.stop()

        done = box.prep(host=BY_SSH).expect(4)
        alone = box.prep(host=BY_LXC_ATTACH).expect(4)

    result = done.result("vm.swappiness")
    assert (result["outcome"], result["before"]) == ("not_settable", {"": str(swappiness)})
    assert result["commands"] == [f"sysctl -w vm.swappiness={swappiness + 1}"]
    assert done.outcomes["vm.max_map_count"] == "observed"
    assert done.hosts[0]["error"]["message"]
    assert alone.results == []
    assert int(Path("/proc/sys/vm/swappiness").read_text(encoding="utf-8")) == swappiness


def test_somebody_who_is_not_root_is_told_what_to_do(box: Prepared) -> None:
    before = box.host.knobs.fingerprint()
    _log_in_as(box, PLAIN_USER)

    done = box.prep().expect(8)

    result = done.result(NUMA)
    assert (result["outcome"], result["after"]) == ("not_settable", {"": "1"})
    assert result["commands"] == ["sysctl -w kernel.numa_balancing=0"]
    assert "sudo" in result["detail"]
    assert "changed" not in done.counts
    assert "failed" not in done.counts
    assert box.host.knobs.fingerprint() == before
    assert not box.host.path("/var/lib/orchestrator").exists()


def test_sudo_is_all_that_it_takes(box: Prepared) -> None:
    _log_in_as(box, SUDOER, become="sudo")
    box.prep().expect(0)
    assert box.host.knobs.text(NUMA_BALANCING) == "0"


def test_sudo_that_asks_for_a_password_is_a_place_that_cannot_be_entered(box: Prepared) -> None:
    _log_in_as(box, PLAIN_USER, become="sudo")
    done = box.prep().expect(4)
    assert "sudo" in json.dumps(done.hosts[0]["error"])


def test_a_second_prep_finds_the_lock(box: Prepared) -> None:
    with _in_mid_write(box, "--reason", "the first") as first:
        second = box.prep("--reason", "the second")
        box.host.behave({})
        first.process.wait(timeout=60)

    second.expect(5)
    assert "the first" in json.dumps(second.answer.document["hosts"][0]["error"])
    assert first.process.returncode == 0
    assert box.host.knobs.text(NUMA_BALANCING) == "0"
    assert box.prep("--check").expect(0).counts["same"] == SET


def test_a_look_needs_no_lock(box: Prepared) -> None:
    with _in_mid_write(box) as first:
        box.prep("--check").expect(8)
        box.host.behave({})
        first.process.wait(timeout=60)


def test_an_operator_who_is_killed_leaves_a_host_that_is_done(box: Prepared) -> None:
    with _in_mid_write(box) as call:
        call.kill()
        agent = _holder(box)
        box.host.behave({})
        wait_for("the agent to end", lambda: not Path(f"/proc/{agent}").exists(), 30.0)

    assert box.prep().expect(0).counts == {"same": SET, "observed": 1}
    box.prep("--revert").expect(0)
    assert box.host.knobs.text(NUMA_BALANCING) == "1"


def test_an_agent_that_is_killed_in_mid_write_leaves_its_originals(box: Prepared) -> None:
    before = box.host.knobs.contents()
    with _in_mid_write(box) as call:
        os.kill(_holder(box), signal.SIGKILL)
        box.host.behave({})
        call.process.wait(timeout=60)
        assert call.process.returncode == 4

    originals = json.loads(box.kept("originals.json").read_text(encoding="utf-8"))
    assert {"vm.swappiness", NUMA} <= {original["name"] for original in originals}
    box.prep().expect(0)
    box.prep("--revert").expect(0)
    assert box.host.knobs.contents() == before


def test_originals_that_cannot_be_read_stop_a_write(box: Prepared) -> None:
    box.prep().expect(0)
    box.host.enter("sh", "-c", "echo nonsense >/var/lib/orchestrator/.host/originals.json")
    box.host.knobs.put(NUMA_BALANCING, "1")

    done = box.prep()

    assert done.code == 1
    assert "originals.json" in json.dumps(done.answer.document) + done.answer.errors
    assert box.host.knobs.text(NUMA_BALANCING) == "1"


def _log_in_as(box: Prepared, user: str, **keys: Any) -> None:
    entry = {**login(box.host.login(user)), "tuning": PROFILE, **keys}
    write_inventory(box.inventory, {"box": entry}, box.host.ssh.known_hosts_line)
    box.use(KNOBS)


@contextmanager
def _in_mid_write(box: Prepared, *flags: str) -> Iterator[Running]:
    """A prep whose agent waits in the write of NUMA balancing: originals are kept, the lock is held."""
    box.host.behave({NUMA_BALANCING: "waits"})
    try:
        with box.operator.watching("prep", "--host", "box", *flags) as call:
            wait_for("the write", lambda: box.host.has_somebody_waiting, 30.0)
            yield call
    finally:
        box.host.behave({})


def _holder(box: Prepared) -> int:
    return int(json.loads(box.kept("lock").read_text(encoding="utf-8"))["pid"])
