"""What `hosts` and `tunings` show of tuning profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.documents import checked
from tests.unit.cli.test_front_ends import REPOSITORY, FrontEnd, make_front_end

PROFILE = """\
name: quick
summary: When it must be quick.
expect: {driver: "580.*"}
knobs:
  - {knob: cpu_governor, value: performance, why: wakes up at once}
  - {knob: sysctl, name: net.core.somaxconn, value: 4096, place: container, persist: false, why: many clients}
  - {knob: transparent_hugepage}
"""


@pytest.fixture
def orchestrator(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    """The program beside an inventory whose first host has a tuning profile, and whose second has none."""
    front_end = make_front_end("orchestrator", tmp_path, capsys, monkeypatch)
    inventory = tmp_path / "inventory"
    (inventory / "tuning").mkdir()
    (inventory / "tuning" / "quick.yml").write_text(PROFILE, encoding="utf-8")
    hosts = inventory / "hosts.yml"
    hosts.write_text(hosts.read_text(encoding="utf-8").replace("    port: 1\n", "    port: 1\n    tuning: quick\n", 1), encoding="utf-8")
    return front_end


def _rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith("  ")]


def test_hosts_shows_the_tuning_profile_of_each(orchestrator: FrontEnd) -> None:
    shown = orchestrator.run("hosts").stdout
    column = {row[0]: row[-2] for row in _rows(shown)}
    assert (column["gpu1"], column["gpu2"]) == ("quick", "-")
    document = checked(orchestrator.run("hosts", "--json").stdout)
    assert [item["tuning"] for item in document["hosts"]] == ["quick", None]


def test_tunings_shows_each_knob_with_its_value_and_whether_it_persists(orchestrator: FrontEnd) -> None:
    shown = orchestrator.run("tunings").stdout
    assert "When it must be quick." in shown
    assert "made for driver 580.*" in shown
    rows = _rows(shown)
    assert ["cpu_governor", "performance", "yes"] in rows
    assert ["sysctl", "net.core.somaxconn,", "in", "the", "container", "4096", "-"] in rows
    assert ["transparent_hugepage", "only", "read", "-"] in rows
    assert "wakes up" not in shown


def test_one_profile_is_shown_with_its_reasons(orchestrator: FrontEnd) -> None:
    shown = orchestrator.run("tunings", "--profile", "quick").stdout
    assert ["cpu_governor", "performance", "yes", "wakes", "up", "at", "once"] in _rows(shown)


def test_tunings_as_json(orchestrator: FrontEnd) -> None:
    (profile,) = checked(orchestrator.run("tunings", "--json").stdout)["tunings"]
    assert (profile["name"], profile["expect"]) == ("quick", {"kernel": None, "driver": "580.*"})
    assert [(knob["knob"], knob["value"], knob["persist"]) for knob in profile["knobs"]] == [
        ("cpu_governor", "performance", True),
        ("sysctl", "4096", False),
        ("transparent_hugepage", None, False),
    ]


def test_a_profile_that_does_not_exist_is_wrong_usage(orchestrator: FrontEnd) -> None:
    done = orchestrator.run("tunings", "--profile", "qick")
    assert done.returncode == 2
    assert "there is no tuning profile 'qick'; did you mean quick?" in done.said


@pytest.mark.parametrize("verb", ["hosts", "tunings"])
def test_a_mistake_in_a_profile_is_named_by_file_and_line(orchestrator: FrontEnd, verb: str) -> None:
    path = orchestrator.folder / "inventory" / "tuning" / "quick.yml"
    path.write_text(PROFILE.replace("knob: cpu_governor", "knob: cpu_govenor"), encoding="utf-8")
    done = orchestrator.run(verb)
    assert done.returncode == 2
    assert "quick.yml:5: knobs[0].knob: there is no knob 'cpu_govenor'; did you mean cpu_governor?" in done.said


def test_an_inventory_without_profiles_says_how_to_write_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = make_front_end("orchestrator", tmp_path, capsys, monkeypatch).run("tunings")
    assert done.returncode == 0
    assert "tuning/NAME.yml" in " ".join(done.stdout.split())


@pytest.mark.parametrize("words", [("tunings",), ("tunings", "--profile", "blackwell-pcie"), ("hosts",)], ids=" ".join)
def test_the_shipped_profiles_fit_in_80_columns(orchestrator: FrontEnd, words: tuple[str, ...]) -> None:
    shown = orchestrator.run(*words, "--inventory", str(REPOSITORY / "inventory")).stdout
    assert "blackwell-pcie" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
