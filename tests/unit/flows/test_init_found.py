"""From what was found on a machine to what an inventory says of it."""

from __future__ import annotations

import pytest

from orchestrator.agent.wire_discovery import FoundContainer, Tool
from orchestrator.errors import UsageError
from orchestrator.flows import init_found
from orchestrator.flows.init_found import Seen
from tests.unit.flows.discovered import RTX, RUNS, RUNS_TOO, SGLANG, STOPPED, gpus, report, server


def test_containers_that_run_are_looked_into_or_the_one_that_was_named() -> None:
    found = report(RUNS, RUNS_TOO, STOPPED)
    assert init_found.containers_to_ask(found, None) == [RUNS, RUNS_TOO]
    assert init_found.containers_to_ask(found, "spare") == [RUNS_TOO], "by what people call it"
    assert init_found.containers_to_ask(found, "101") == [RUNS]
    assert init_found.containers_to_ask(found, "none") == []


@pytest.mark.parametrize(("wanted", "problem"), [("old", "does not run"), ("104", "there is no container 104")])
def test_a_container_that_can_not_be_looked_into_is_told(wanted: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        init_found.containers_to_ask(report(RUNS, STOPPED), wanted)


def test_where_sglang_serves_counts_before_where_it_could() -> None:
    serves = Seen(RUNS, report(servers=[server()]))
    could = Seen(RUNS_TOO, report(installations=[SGLANG], gpus=gpus(8)))
    machine = Seen(None, report(RUNS, RUNS_TOO, gpus=gpus(8)))
    assert init_found.likeliest([machine, could, serves]) == serves
    assert init_found.likeliest([machine, could]) == could
    assert init_found.likeliest([machine]) == machine


def test_a_machine_that_sees_the_same_gpus_as_its_one_container_means_the_container() -> None:
    inside = Seen(RUNS, report(gpus=gpus(8)))
    assert init_found.likeliest([Seen(None, report(RUNS, gpus=gpus(8))), inside]) == inside


def test_a_server_on_the_machine_itself_counts_before_an_idle_container() -> None:
    machine = Seen(None, report(RUNS, servers=[server()]))
    assert init_found.likeliest([machine, Seen(RUNS, report(gpus=gpus(8)))]) == machine


def test_two_that_are_as_likely_are_nobodys_to_choose() -> None:
    both = [Seen(RUNS, report(servers=[server()])), Seen(RUNS_TOO, report(servers=[server()]))]
    assert init_found.likeliest([Seen(None, report(RUNS, RUNS_TOO)), *both]) is None
    assert init_found.likeliest([Seen(RUNS, None, "not entered")]) is None


@pytest.mark.parametrize(
    ("container", "how"),
    [
        (RUNS, ("pct", 101, None, "sglang")),
        (FoundContainer(Tool.LXC, "414198223", running=True), ("lxc-attach", 414198223, None, "")),
        (FoundContainer(Tool.LXC, "sglang", running=True), ("lxc-attach", None, "sglang", "")),
        (FoundContainer(Tool.LXC, "0101", running=True), ("lxc-attach", None, "0101", "")),
        (FoundContainer(Tool.INCUS, "101", running=True), ("incus", None, "101", "")),
    ],
)
def test_how_a_container_is_said(container: FoundContainer, how: tuple[str, int | None, str | None, str]) -> None:
    entry = init_found.container_entry(container)
    assert (entry.reached_by, entry.id, entry.name, entry.title) == how


def test_the_server_that_is_meant() -> None:
    both = [server(30000), server(30001)]
    assert init_found.chosen_server([], 30000) is None
    assert init_found.chosen_server(both[:1], None) == both[0]
    assert init_found.chosen_server(both, None) is None
    assert init_found.chosen_server(both, 30001) == both[1]
    with pytest.raises(UsageError, match="but on 30000, 30001"):
        init_found.chosen_server(both, 30002)


def test_a_number_of_gpus_is_written_only_where_machine_and_container_agree() -> None:
    assert init_found.agreed_gpus(report(gpus=gpus(8)), report(gpus=gpus(8)))[0] == 8
    assert init_found.agreed_gpus(report(), report(gpus=gpus(4)))[0] == 4, "a host may well be without nvidia-smi"
    count, why = init_found.agreed_gpus(report(gpus=gpus(8)), report(gpus=gpus(4)))
    assert count is None
    assert "8" in why
    assert "4" in why
    assert init_found.agreed_gpus(report(), None)[0] is None


def test_the_tuning_profile_to_begin_with_is_by_the_gpus() -> None:
    assert init_found.tuning_base(report(), report(gpus=RTX)) == "blackwell-pcie"
    assert init_found.tuning_base(report(gpus=gpus(8)), None) == "observe", "B200 has NVLink"
    assert init_found.tuning_base(report(gpus=[*RTX[:4], *gpus(4)]), None) == "observe"
    assert init_found.tuning_base(report(), None) == "observe"


@pytest.mark.parametrize(
    ("alias", "told", "taken", "name"),
    [
        ("gpu1.example", "pve7", [], "gpu1"),
        ("192.0.2.1", "pve7.example", [], "pve7"),
        ("2001:db8::1", "pve7", [], "pve7"),
        ("my box", "pve7", [], "my-box"),
        ("gpu1", "pve7", ["gpu1", "gpu1-2"], "gpu1-3"),
        ("192.0.2.1", "---", [], "gpu"),
    ],
)
def test_names(alias: str, told: str, taken: list[str], name: str) -> None:
    assert init_found.host_name(alias, told, taken) == name
