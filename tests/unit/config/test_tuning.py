"""Tuning profiles: what a value may be, and what is asked of each place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.agent.knobs import KNOBS
from orchestrator.agent.wire_host import KnobSetting, PlaceKind
from orchestrator.config import Inventory, load_inventory
from orchestrator.config.tuning import KNOB_KINDS, Expect, Knob
from orchestrator.errors import ConfigError

WriteInventory = Callable[[Mapping[str, str | None]], Path]

PROFILE = """\
name: fast
summary: When it must be fast.
expect: {kernel: "6.8.*-pve"}
knobs:
  - {knob: pcie_max_read_request, value: 4096, why: reads of host memory}
  - {knob: sysctl, name: net.core.somaxconn, place: container, value: 4096, persist: false}
  - {knob: module_parameter, name: nvidia_uvm.uvm_disable_hmm, value: "Y"}
  - {knob: gpu_clocks, value: "1500,2400"}
  - {knob: cpu_governor}
"""


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("cpu_governor", ["performance", "schedutil"], ["2", "a b", "Performance", "../x", "a\u0301"]),
        ("cpu_energy_preference", ["performance", "balance_power", 0, 255, "128"], ["default", 256, -1, "PERFORMANCE", "0x80"]),
        ("cpu_resume_latency", [0, 99, "n/a", 2147483646], [-1, 2147483647, "N/A", "1.5", "99us"]),
        ("tuned_profile", ["hpc-compute", "a b", "my.profile_2"], ["-x", "a  b", "a;b", "$x"]),
        ("transparent_hugepage", ["always", "madvise", "never"], ["[never]", "Never", 0]),
        ("pcie_max_read_request", [128, 256, 512, 1024, 2048, 4096, "4096"], [0, 64, 127, 4097, 8192, -128, "4096 B"]),
        ("gpu_persistence_mode", ["Enabled", "Disabled"], ["enabled", "On", 1]),
        ("gpu_power_limit", [1, 450, "600"], [0, -5, 600000, "450W", "450.0"]),
        ("gpu_clocks", ["1500,2400", "2400,2400"], ["2400,1500", "1500", "1500,", "0,2400", "1500, 2400", "1,2,3", 2400]),
        ("module_parameter", ["Y", 0, "a=b c"], [True, "", "a\nb"]),
        ("sysctl", [0, -1, "4096 87380 6291456", "|/usr/bin/core %p"], [False, "", " 1", "1 ", "a\tb", "a\x7f", 0.5, [1], None]),
    ],
)
def test_a_value_is_checked_by_its_kind_and_kept_as_text(kind: str, good: list[object], bad: list[object]) -> None:
    name = {"sysctl": {"name": "kernel.x"}, "module_parameter": {"name": "m.p"}}.get(kind, {})
    for value in good:
        assert Knob.model_validate({"knob": kind, **name, "value": value}).value == str(value)
    for value in bad:
        with pytest.raises(ValidationError) as caught:
            Knob.model_validate({"knob": kind, **name, "value": value})
        assert [item["loc"] for item in caught.value.errors()] == [("value",)], value


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("kernel.numa_balancing", True),
        ("net.ipv4.conf.enp1s0-2.rp_filter", True),
        ("vm/swappiness", False),
        ("-vm.swappiness", False),
        ("net.ipv4.conf.*.rp_filter", False),
        ("vm. swappiness", False),
        ("vm.swappiness\n", False),
        ("..", False),
        ("kernel", False),
        ("kernel.", False),
    ],
)
def test_a_sysctl_key_is_one_key_and_never_a_path_or_a_pattern(name: str, is_one: bool) -> None:
    try:
        Knob.model_validate({"knob": "sysctl", "name": name})
    except ValidationError:
        assert not is_one
    else:
        assert is_one


@pytest.mark.parametrize("name", ["net.core.somaxconn", "kernel.shmmax", "kernel.sem", "fs.mqueue.msg_max", "user.max_user_namespaces"])
def test_what_the_kernel_keeps_apart_can_be_a_containers(name: str) -> None:
    assert Knob.model_validate({"knob": "sysctl", "name": name, "place": "container", "value": 1}).place == "container"


@pytest.fixture
def inventory(write_inventory: WriteInventory) -> Inventory:
    return load_inventory(write_inventory({"tuning/fast.yml": PROFILE}))


def test_settings_are_the_places_own_in_the_files_order(inventory: Inventory) -> None:
    profile = inventory.tuning("fast")
    assert profile.settings("host") == [
        KnobSetting("pcie_max_read_request", value="4096", why="reads of host memory"),
        KnobSetting("module_parameter", "nvidia_uvm.uvm_disable_hmm", "Y", persist=False),
        KnobSetting("gpu_clocks", value="1500,2400"),
        KnobSetting("cpu_governor", persist=False),
    ]
    assert profile.settings("container") == [KnobSetting("sysctl", "net.core.somaxconn", "4096", persist=False, place=PlaceKind.CONTAINER)]


def test_what_a_profile_expects(inventory: Inventory, write_inventory: WriteInventory) -> None:
    assert inventory.tuning("fast").expect == Expect(kernel="6.8.*-pve")
    silent = write_inventory({"tuning/fast.yml": PROFILE.replace('expect: {kernel: "6.8.*-pve"}\n', "")})
    assert load_inventory(silent).tuning("fast").expect == Expect()


def test_an_inventory_needs_no_tuning_folder(write_inventory: WriteInventory) -> None:
    assert load_inventory(write_inventory({})).tunings == {}


def test_a_tuning_folder_that_is_none_is_a_mistake(write_inventory: WriteInventory) -> None:
    directory = write_inventory({"tuning": "not a folder\n"})
    with pytest.raises(ConfigError) as caught:
        load_inventory(directory)
    assert caught.value.evidence == [f"{directory}/tuning:1: (file): can't be listed: Not a directory; it must be a folder of .yml files"]
    (directory / "tuning").unlink()
    (directory / "tuning").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="1 mistake"):
        load_inventory(directory)


def test_the_kinds_are_those_that_the_agent_knows() -> None:
    assert set(KNOB_KINDS) == set(KNOBS)


def test_every_kind_says_what_its_name_looks_like() -> None:
    assert {name for name, kind in KNOB_KINDS.items() if kind.name is not None} == {"sysctl", "module_parameter"}
    assert all(bool(kind.example) == (kind.name is not None) for kind in KNOB_KINDS.values())
