"""init on machines that answer from a script: what is asked, chosen and put together; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import paramiko
import pytest
import yaml

from orchestrator.agent.wire_discovery import DiscoverReport
from orchestrator.config import Inventory, load_inventory
from orchestrator.errors import (
    ConfigError,
    ConnectError,
    ContainerError,
    HostKeyError,
    OrchestratorError,
    RefusedError,
    RightsError,
    UsageError,
)
from orchestrator.flows.init import draft
from orchestrator.flows.init_draft import Answers, Draft, Surroundings
from orchestrator.flows.init_files import put_in_place
from tests.unit.flows.discovered import RTX, RUNS, RUNS_TOO, SGLANG, STOPPED, FakeMachine, adopted, gpus, report, server
from tests.unit.flows.fake_agent import Heard
from tests.unit.flows.samples import write_inventory

KEY = paramiko.ECDSAKey.generate()
Places = dict[str, DiscoverReport | OrchestratorError]


@dataclass
class Somebody:
    """Answers by flag; where there is none, as nobody would."""

    answers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def text(self, flag: str, question: str, default: str | None = None, *, optional: bool = False) -> str | None:
        self.asked.append(flag)
        if flag not in self.answers and default is None and not optional:
            raise UsageError(question, next_step=f"say it with --{flag}")
        return self.answers.get(flag, default)

    def choose(self, flag: str, question: str, options: Sequence[tuple[str, str]]) -> str:
        self.asked.append(flag)
        if flag not in self.answers:
            raise UsageError(question, evidence=[value for value, _ in options], next_step=f"--{flag}")
        return self.answers[flag]


@dataclass
class World:
    """An operator's home, and the machine that is looked at."""

    directory: Path
    heard: Heard = field(default_factory=Heard)
    somebody: Somebody = field(default_factory=Somebody)
    machine: FakeMachine = field(default_factory=lambda: FakeMachine({}))

    def draft(self, places: Places, answers: Answers | None = None, *, accept: bool = True) -> Draft:
        self.machine.places = places
        existing = load_inventory(self.directory) if (self.directory / "hosts.yml").exists() else Inventory(self.directory)
        around = Surroundings(self.directory, existing, self.heard, self.somebody, self.machine.open, self.machine.connect)
        return draft(answers or Answers("root@gpu1.example"), around, lambda offer: accept)

    def written(self, made: Draft) -> Inventory:
        put_in_place(self.directory, made.files)
        return load_inventory(self.directory)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id_ed25519").touch()
    monkeypatch.setattr("orchestrator.remote.trust.fetch_host_keys", lambda *_: [KEY])
    found = server()
    return World(tmp_path / "inventory", machine=FakeMachine({}, adopts=adopted(found)))


def test_root_on_a_host_whose_container_serves(world: World) -> None:
    places: Places = {"host": report(RUNS, RUNS_TOO, STOPPED), "101": report(servers=[server()], gpus=RTX), "102": report()}
    made = world.draft(places)
    assert world.machine.opened == ["host", "101", "102"]
    assert not world.directory.exists(), "nothing is written yet"
    inventory = world.written(made)
    host = inventory.host("gpu1")
    assert (host.user, host.become, host.gpus, host.tuning) == ("root", "none", 8, "gpu1")
    assert host.container is not None
    assert (host.container.reached_by, host.container.id) == ("pct", 101)
    service = inventory.service()
    assert (service.name, service.place, service.port, service.model) == ("glm-5-nvfp4", "container", 30000, "/models/GLM-5-NVFP4")
    assert inventory.tuning("gpu1").expect.kernel == "6.8.*"
    assert any(knob.value == "performance" for knob in inventory.tuning("gpu1").knobs), "after blackwell-pcie"
    assert "flashinfer_cutedsl" in inventory.backends
    assert made.target is not None
    assert made.adoptable
    assert (world.directory / "known_hosts").read_text().splitlines()[-1].startswith("gpu1.example ")
    assert "fab init" in (world.directory / "services/glm-5-nvfp4.yml").read_text().splitlines()[0]


def test_ssh_into_the_container_itself(world: World) -> None:
    made = world.draft({"host": report(servers=[server()], gpus=gpus(8), container="lxc")})
    inventory = world.written(made)
    assert inventory.host("gpu1").container is None
    assert inventory.service().place == "host"
    assert "itself a container (lxc)" in (world.directory / "hosts.yml").read_text()


def test_a_user_with_sudo_is_raised_before_anything_is_listed(world: World) -> None:
    places: Places = {"host": report(user_id=1000), "host by sudo": report(RUNS), "101": report(servers=[server()])}
    made = world.draft(places, Answers("operator@gpu1"))
    assert world.machine.opened == ["host", "host by sudo", "101"]
    host = world.written(made).host("gpu1")
    assert (host.user, host.become) == ("operator", "sudo")


def test_a_user_without_sudo_is_told_what_is_not_seen(world: World) -> None:
    refused = RightsError("gpu1: sudo -n is refused to operator")
    made = world.draft({"host": report(user_id=1000, servers=[server()]), "host by sudo": refused}, Answers("operator@gpu1"))
    assert world.written(made).host("gpu1").become == "none"
    assert any("sudo -n is refused" in remark for remark in made.remarks)
    with pytest.raises(RightsError):
        world.draft({"host": report(user_id=1000), "host by sudo": refused}, Answers("operator@gpu2", become="sudo"))


def test_no_sudo_is_tried_where_none_is_wanted(world: World) -> None:
    world.draft({"host": report(user_id=1000, servers=[server()])}, Answers("operator@gpu1", become="none"))
    assert world.machine.opened == ["host"]


def test_two_containers_that_serve_are_asked_about_and_a_flag_answers(world: World) -> None:
    places: Places = {"host": report(RUNS, RUNS_TOO), "101": report(servers=[server()]), "102": report(servers=[server()])}
    with pytest.raises(UsageError) as refused:
        world.draft(places)
    assert refused.value.evidence == ["none", "101", "102"]
    world.machine.opened.clear()
    made = world.draft(places, Answers("root@gpu1", container="spare"))
    assert world.machine.opened == ["host", "102"], "no other container is looked into"
    assert made.host.container is not None
    assert made.host.container.id == 102
    world.somebody.answers = {"container": "101"}
    chosen = world.draft(places).host.container
    assert chosen is not None
    assert chosen.id == 101


def test_a_container_that_does_not_answer_is_told_and_not_chosen(world: World) -> None:
    broken = ContainerError("gpu1/101: lxc-attach could not enter container 101")
    made = world.draft({"host": report(RUNS, RUNS_TOO), "101": broken, "102": report(servers=[server()])})
    assert made.host.container is not None
    assert made.host.container.id == 102
    assert any("could not enter" in str(seen) for seen in made.seen)
    with pytest.raises(RefusedError, match="could not enter"):
        world.draft({"host": report(RUNS), "101": broken}, Answers("root@gpu1", container="101"))


def test_several_servers_are_told_apart_by_their_port(world: World) -> None:
    places: Places = {"host": report(servers=[server(30000), server(30001)])}
    with pytest.raises(UsageError, match="which of the SGLang servers"):
        world.draft(places)
    world.machine.adopts = adopted(server(30001))
    made = world.draft(places, Answers("root@gpu1", port=30001))
    assert made.target is not None
    assert made.target.service.port == 30001


def test_where_nothing_serves_a_service_is_written_only_as_somebody_says(world: World) -> None:
    places: Places = {"host": report(RUNS), "101": report(installations=[SGLANG], gpus=gpus(8))}
    without = world.draft(places)
    assert without.target is None
    assert any("no service is written" in remark for remark in without.remarks)
    made = world.draft(places, Answers("root@gpu1", model="/models/tiny"))
    service = world.written(made).service()
    assert (service.python, service.model, service.arguments) == (SGLANG.python, "/models/tiny", {"--tp-size": 8})
    assert made.server is None
    with pytest.raises(UsageError):
        world.draft({"host": report()}, Answers("root@gpu2", model="/models/tiny"))


def test_a_server_of_ours_is_written_from_its_record_under_its_name(world: World) -> None:
    found = server(service="glm5")
    world.machine.adopts = adopted(found)
    made = world.draft({"host": report(servers=[found])})
    assert not made.adoptable
    service = world.written(made).service()
    assert (service.name, service.backend) == ("glm5", "triton")
    assert service.arguments == {"--tp-size": 8}, "without the backend's own flags"


def test_a_server_that_can_not_be_taken_over_leaves_the_rest(world: World) -> None:
    world.machine.adopts = RefusedError("process 4242 is managed by docker, which is not supported")
    made = world.draft({"host": report(servers=[server()])})
    assert made.target is None
    assert any("docker" in remark and "fab adopt --host gpu1" in remark for remark in made.remarks)
    assert list(world.written(made).hosts) == ["gpu1"]


def test_an_inventory_gets_new_entries_and_loses_nothing(world: World) -> None:
    write_inventory(world.directory)
    before = {path: path.read_text() for path in world.directory.rglob("*.yml")}
    made = world.draft({"host": report(servers=[server()])}, Answers("root@gpu9"))
    inventory = world.written(made)
    assert list(inventory.hosts) == ["gpu1", "gpu9"]
    assert all(path.read_text().startswith(text) for path, text in before.items())
    assert all(path.read_text() == text for path, text in before.items() if path.name != "hosts.yml")
    assert any("backend profiles that are there already" in remark for remark in made.remarks)


def test_an_entry_that_can_not_be_added_is_to_be_pasted_with_its_service(world: World) -> None:
    write_inventory(world.directory)
    (world.directory / "hosts.yml").write_text("hosts: {gpu1: {address: 127.0.0.1, container: {reached_by: pct, id: 101}}}\n")
    made = world.draft({"host": report(servers=[server()])}, Answers("root@gpu9"))
    assert list(yaml.safe_load(made.paste)) == ["gpu9"]
    assert "gpu9" in made.unfinished
    names = {file.name.partition("/")[0] for file in made.files}
    assert names == {"known_hosts", "backends", "tuning"}
    world.written(made)
    (world.directory / "hosts.yml").write_text("hosts:\n  gpu1: {address: 127.0.0.1, container: {reached_by: pct, id: 101}}\n" + made.paste)
    (world.directory / "services/glm.yml").write_text(made.unfinished)
    assert list(load_inventory(world.directory).hosts) == ["gpu1", "gpu9"]


def test_a_second_run_finds_its_own_entries_and_writes_nothing(world: World) -> None:
    places: Places = {"host": report(RUNS), "101": report(servers=[server()], gpus=gpus(8))}
    world.written(world.draft(places))
    again = world.draft(places)
    assert again.files == []
    assert again.target is not None
    assert again.target.service.name == "glm-5-nvfp4"
    with pytest.raises(UsageError, match=r"is gpu1 in hosts\.yml already"):
        world.draft(places, Answers("root@gpu1.example", name="other"))


def test_an_entry_that_is_there_is_used_as_it_is(world: World) -> None:
    world.written(world.draft({"host": report(RUNS), "101": report()}))
    places: Places = {"host": report(RUNS, RUNS_TOO), "101": report(servers=[server()]), "102": report(servers=[server()])}
    world.machine.opened.clear()
    made = world.draft(places, Answers("root@gpu1.example", container="101"))
    assert world.machine.opened == ["host", "101"]
    assert [file.name for file in made.files] == ["services/glm-5-nvfp4.yml"]
    assert any("stays as it is" in remark for remark in made.remarks)
    with pytest.raises(UsageError, match="with container 101"):
        world.draft(places, Answers("root@gpu1.example", container="102"))


def test_what_would_not_load_with_what_is_there_names_the_real_files(world: World) -> None:
    (world.directory / "services").mkdir(parents=True)
    (world.directory / "services/old.yml").write_text("name: old\nhost: gone\npython: /p\nmodel: m\n")
    with pytest.raises(ConfigError) as refused:
        world.draft({"host": report(servers=[server()])})
    assert any(line.startswith(f"{world.directory}/services/old.yml:2") for line in refused.value.evidence), refused.value.evidence
    assert not (world.directory / "hosts.yml").exists()


def test_names_that_are_taken_are_refused(world: World) -> None:
    write_inventory(world.directory)
    places: Places = {"host": report(servers=[server()])}
    for answers in (Answers("root@gpu9", name="gpu1"), Answers("root@gpu9", service="glm5")):
        with pytest.raises(UsageError, match="already"):
            world.draft(places, answers)


def test_names_are_asked_with_their_defaults(world: World) -> None:
    world.somebody.answers = {"name": "box", "service": "prod"}
    made = world.draft({"host": report(servers=[server()])})
    assert world.somebody.asked == ["name", "service"]
    assert (made.host.name, made.target.service.name if made.target else None) == ("box", "prod")


def test_the_way_through_a_jump_host_becomes_an_entry_of_its_own(world: World) -> None:
    (Path.home() / ".ssh/config").write_text("Host gpu\n HostName 192.0.2.7\n User root\n ProxyJump me@bastion.example\n")
    inventory = world.written(world.draft({"host": report(servers=[server()])}, Answers("gpu")))
    assert list(inventory.hosts) == ["bastion", "gpu"]
    assert inventory.host("gpu").jump == "bastion"
    assert inventory.host("bastion").user == "me"
    pinned = [line for line in (world.directory / "known_hosts").read_text().splitlines() if not line.startswith("#")]
    assert [line.split()[0] for line in pinned] == ["bastion.example", "192.0.2.7"]
    again = world.draft({"host": report(servers=[server()])}, Answers("root@192.0.2.8", name="other"))
    assert [file.name for file in again.files if file.name == "hosts.yml"] == ["hosts.yml"]


def test_a_key_that_is_not_accepted_ends_it(world: World) -> None:
    with pytest.raises(RefusedError, match="was not accepted"):
        world.draft({"host": report()}, accept=False)
    assert world.machine.opened == []
    assert not world.directory.exists()


def test_only_a_key_that_was_compared_is_pinned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = paramiko.ECDSAKey.generate()
    monkeypatch.setattr("orchestrator.remote.trust.fetch_host_keys", lambda *_: [KEY, other])
    places: Places = {"host": report(servers=[server()])}
    with pytest.raises(HostKeyError, match="no key with a fingerprint that was given"):
        world.draft(places, Answers("root@gpu1", fingerprints=["SHA256:else"]))
    made = world.draft(places, Answers("root@gpu1", fingerprints=[KEY.fingerprint]))
    (pinned,) = [file for file in made.files if file.name == "known_hosts"]
    assert KEY.get_base64() in pinned.text
    assert other.get_base64() not in pinned.text


def test_what_is_advised_before_there_is_an_entry_speaks_of_none(world: World) -> None:
    keyless = ConnectError("gpu1: there is no key", next_step="ssh-add, or name a key: identity_files: [~/.ssh/KEY] of gpu1 in hosts.yml")
    with pytest.raises(ConnectError) as refused:
        world.draft({"host": keyless})
    assert str(refused.value.next_step).startswith("fab init root@gpu1.example --identity")
    changed = HostKeyError("CHANGED", next_step="find out why; if the host was reinstalled: fab trust gpu1 --replace")
    with pytest.raises(HostKeyError) as other:
        world.draft({"host": changed})
    assert "ssh-keygen -R 'gpu1.example'" in str(other.value.next_step)


def test_a_tuning_profile_can_be_named(world: World) -> None:
    places: Places = {"host": report(servers=[server()], gpus=RTX)}
    (profile,) = [file for file in world.draft(places, Answers("root@gpu1", tuning="observe")).files if file.name.startswith("tuning/")]
    assert all("value" not in knob for knob in yaml.safe_load(profile.text)["knobs"])
    with pytest.raises(UsageError, match="no tuning profile 'fast'"):
        world.draft(places, Answers("root@gpu1", tuning="fast"))
    world.written(world.draft(places))
    other = world.draft(places, replace(Answers("root@gpu2"), tuning="gpu1", service="second"))
    assert other.host.tuning == "gpu1", "one that the inventory has"
