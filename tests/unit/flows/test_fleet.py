"""One question to many services and hosts, over scripted places."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import Inventory, load_inventory
from orchestrator.errors import WORST_FIRST, ConnectError, OrchestratorError, UsageError, worst
from orchestrator.flows.fleet import Answered, Fleet, Question, Subject, Ways, subjects_of
from tests.unit.flows.samples import write_inventory


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    """gpu1 with the service glm5, gpu2 with tiny, and one without."""
    folder = write_inventory(tmp_path / "two", second_host=True)
    with (folder / "hosts.yml").open("a", encoding="utf-8") as stream:
        stream.write("  plain:\n    address: 127.0.0.3\ngroups:\n  both: [gpu2, gpu1]\n")
    return load_inventory(folder)


def ask(subjects: list[Subject], answers: dict[str, str | BaseException], seconds: float = 60) -> list[Answered[str]]:
    def answer(subject: Subject, ways: Ways) -> str:
        found = answers[subject.label]
        if isinstance(found, BaseException):
            raise found
        return found

    heard: list[int] = []
    done = Fleet(subjects, Question("status", answer, seconds), Ways()).ask(lambda index, _: heard.append(index), 4)
    assert sorted(heard) == list(range(len(subjects)))
    return done


def test_every_service_of_the_hosts_and_those_that_have_none(inventory: Inventory) -> None:
    found = subjects_of(inventory, [item.host for item in inventory.hosts_named("plain,both")])
    assert [subject.label for subject in found] == ["plain", "gpu2 tiny", "gpu1 glm5"]


def test_a_service_among_them_alone(inventory: Inventory) -> None:
    hosts = [item.host for item in inventory.hosts_named("both")]
    assert [subject.label for subject in subjects_of(inventory, hosts, "tiny")] == ["gpu2 tiny"]
    with pytest.raises(UsageError, match="service tiny is on host gpu2, which is none of those named"):
        subjects_of(inventory, [inventory.host("gpu1")], "tiny")


def test_each_has_its_own_answer_or_error(inventory: Inventory) -> None:
    subjects = subjects_of(inventory, [item.host for item in inventory.hosts_named("all")])
    refused = ConnectError("gpu2: refused", next_step="look")
    one, two, three = ask(subjects, {"gpu1 glm5": "well", "gpu2 tiny": refused, "plain": ValueError("a bug")})
    assert (one.answer, one.error) == ("well", None)
    assert (two.answer, two.error) == (None, refused)
    assert type(three.error) is OrchestratorError
    assert three.error.message == "plain: failed in a way that was not foreseen: ValueError: a bug"
    assert isinstance(three.error.__cause__, ValueError)


def test_several_hosts_are_no_host(inventory: Inventory) -> None:
    for text in ("gpu1,gpu2", "both", "all"):
        with pytest.raises(UsageError, match=f"one host at a time, and '{text}' names several") as caught:
            inventory.host(text)
        assert str(caught.value.next_step).startswith("fab services ")


def test_the_worst_code_of_several() -> None:
    for position, code in enumerate(WORST_FIRST):
        assert worst(list(reversed(WORST_FIRST[position:]))) == code
    assert worst([0, 77, 4]) == 77
