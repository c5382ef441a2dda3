"""The text of hosts.yml and of a tuning profile: it loads, means what was found, and leaves somebody's lines alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import load_inventory
from orchestrator.config.inventory_writer import ContainerEntry, HostEntry, host_text, tuning_text, with_entries
from orchestrator.config.yaml_writer import comment_line
from orchestrator.folders import shipped_profiles

ENTRY = HostEntry(
    name="gpu9",
    address="192.0.2.9",
    user="operator",
    port=2222,
    become="sudo",
    identity_files=["~/.ssh/id_gpu"],
    jump="bastion",
    gpus=8,
    gpus_comment="how many there must be: 8 NVIDIA B200",
    tuning="gpu9",
    container=ContainerEntry("pct", id=101, title="sglang"),
    about="gpu9: a machine. Written by fab init.",
)
BASTION = HostEntry("bastion", "bastion.example", "me")


def loaded(tmp_path: Path, text: str) -> dict[str, object]:
    """The hosts of an inventory with this hosts.yml, by the program's own loader."""
    for name in ("services", "backends", "tuning"):
        (tmp_path / name).mkdir(exist_ok=True)
    for base in ("observe", "blackwell-pcie"):
        (tmp_path / "tuning" / f"{base}.yml").write_text((shipped_profiles() / "tuning" / f"{base}.yml").read_text())
    profile = tuning_text("observe", (shipped_profiles() / "tuning/observe.yml").read_text(), "gpu9", "a test", "6.8.12-9-pve", "580.1.2")
    (tmp_path / "tuning" / "gpu9.yml").write_text(profile)
    (tmp_path / "hosts.yml").write_text(text)
    return dict(load_inventory(tmp_path).hosts)


def test_a_new_file_loads_and_means_what_was_found(tmp_path: Path) -> None:
    text = with_entries(None, [BASTION, ENTRY])
    assert text is not None
    host = loaded(tmp_path, text)["gpu9"]
    assert host.model_dump(exclude_defaults=True, exclude={"identity_files"}) == {  # type: ignore[attr-defined]
        "name": "gpu9",
        "address": "192.0.2.9",
        "port": 2222,
        "user": "operator",
        "become": "sudo",
        "jump": "bastion",
        "gpus": 8,
        "tuning": "gpu9",
        "container": {"reached_by": "pct", "id": 101},
    }
    keys = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert all("#" in line or line.endswith(":") for line in keys), "every value says what it is"


def test_entries_are_added_at_the_end_and_no_line_is_touched(tmp_path: Path) -> None:
    shipped = (shipped_profiles() / "hosts.yml").read_text()
    text = with_entries(shipped, [BASTION, ENTRY])
    assert text is not None
    hosts, comment, groups = shipped.partition("\n# Names for several machines")
    assert text.startswith(hosts)
    assert text.endswith(comment + groups)
    assert set(loaded(tmp_path, text)) == {"gpu1", "gpu2", "bastion", "gpu9"}


def test_groups_may_stand_above_the_hosts() -> None:
    there = "groups:\n  all-of-them: [gpu1]\nhosts:\n  gpu1: {address: gpu1.example}\n"
    text = with_entries(there, [ENTRY])
    assert text is not None
    assert text.startswith(there)
    assert list(yaml.safe_load(text)["hosts"]) == ["gpu1", "gpu9"]


@pytest.mark.parametrize("indentation", [1, 2, 4])
def test_entries_are_indented_as_those_that_are_there(indentation: int) -> None:
    there = f"hosts:\n{' ' * indentation}gpu1: # first\n{' ' * 2 * indentation}address: gpu1.example"
    text = with_entries(there, [ENTRY])
    assert text is not None
    assert list(yaml.safe_load(text)["hosts"]) == ["gpu1", "gpu9"]


@pytest.mark.parametrize(
    "text", ["hosts: {}\n", "hosts: {gpu1: {address: a}}\n", "hosts:\n  gpu9: {address: a}\n", "other: 1\n", "hosts: [\n"]
)
def test_a_file_that_can_not_just_get_more_lines_is_left_alone(text: str) -> None:
    assert with_entries(text, [ENTRY]) is None


def test_a_container_by_name_and_one_without_gpus_say_so() -> None:
    entry = dataclasses.replace(ENTRY, gpus=None, gpus_comment="none was seen", container=ContainerEntry("lxc-attach", name="0815"))
    text = host_text(entry)
    assert yaml.safe_load(text)["gpu9"]["container"] == {"reached_by": "lxc-attach", "name": "0815", "state_root": "/var/lib/orchestrator"}
    assert "# gpus: left out: none was seen" in text


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_whatever_a_machine_calls_itself_stays_in_its_comment(text: str) -> None:
    entry = dataclasses.replace(ENTRY, about=text or "?", gpus_comment=text, container=ContainerEntry("pct", id=101, title=text))
    assert yaml.safe_load(host_text(entry)) == yaml.safe_load(host_text(ENTRY))
    assert len(comment_line(text).splitlines()) == 1


@pytest.mark.parametrize("base", ["observe", "blackwell-pcie"])
def test_a_tuning_profile_has_the_knobs_of_its_base(tmp_path: Path, base: str) -> None:
    shipped = (shipped_profiles() / "tuning" / f"{base}.yml").read_text()
    text = tuning_text(base, shipped, "gpu9", "8 GPUs: a test", "6.8.12-9-pve", "580.159.04")
    made, original = yaml.safe_load(text), yaml.safe_load(shipped)
    assert made["knobs"] == original["knobs"]
    assert (made["name"], made["summary"], made["expect"]) == ("gpu9", "8 GPUs: a test", {"kernel": "6.8.*", "driver": "580.*"})
    assert text.endswith(shipped.partition("\nknobs:\n")[2]), "with what is said of each"
    without = yaml.safe_load(tuning_text(base, shipped, "gpu9", "a test", "odd", None))
    assert "expect" not in without
