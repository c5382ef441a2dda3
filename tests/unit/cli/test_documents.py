"""What ``--json`` promises: every verb has it, one document whatever happens, one envelope, and a schema that is true."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fabric.main  # type: ignore[import-untyped]
import pytest

from orchestrator import errors
from orchestrator.agent import wire
from orchestrator.cli.documents import docstrings
from orchestrator.cli.documents.envelope import SCHEMA, Envelope, Problem, document, plain, refusal
from orchestrator.cli.documents.schema import schema
from orchestrator.cli.documents.table import ANSWERS, WITHOUT
from orchestrator.cli.verbs import verb_flags
from orchestrator.results.statistics import Contrast
from tests.rig.documents import SCHEMA_FILE, checked, first_mistake
from tests.unit.cli.test_front_ends import FRONT_ENDS, REPOSITORY, FrontEnd, front_end
from tests.unit.cli.test_verbs import RELAUNCH, Box, box
from tests.unit.flows.fake_agent import answer
from tests.unit.flows.samples import healthy_agent, write_inventory
from tests.unit.flows.tuned import write_tuned

__all__ = ["box", "front_end"]

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OrchestratorError)]

PUBLISHED = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def test_every_verb_has_json_or_a_reason_not_to() -> None:
    with_json = {name for name, flags in verb_flags().items() if "json" in flags.switches}
    assert with_json == set(ANSWERS), "name the types of its answer in orchestrator/cli/documents/table.py"
    assert set(verb_flags()) - with_json == set(WITHOUT), "a verb without --json needs its reason in WITHOUT of that file"
    assert all(WITHOUT.values())


def test_the_schema_is_that_of_the_types() -> None:
    assert schema() == PUBLISHED, "docs/schema is stale: make schema"


def test_no_answer_has_a_field_of_the_envelope() -> None:
    taken = {field.name for field in dataclasses.fields(Envelope)}
    answers = {kind for kinds in ANSWERS.values() for kind in kinds}
    assert not [(kind, taken & names) for kind in answers if taken & (names := {field.name for field in dataclasses.fields(kind)})]


def test_every_error_has_a_category_of_its_own() -> None:
    categories = [vars(kind).get("category") for kind in CLASSES]
    assert None not in categories
    assert len(set(categories)) == len(categories)


OF_SEVERAL_KINDS = {
    "verb": "each has its own",
    "report": "what the box or the diagnosis has to say: of another kind for each verb",
    "plan": "what would be done: by an order, a sweep, a runbook; of show as it was kept",
    "steps": "of a sweep, a runbook, a decode step's account",
    "hosts": "of the inventory, of a preparation, of the lab",
    "files": "of a run with their sizes, of a new inventory with what was added",
}
"""Fields of answers whose one name stands for several types, each with why that is no accident."""


def test_fields_of_one_name_have_one_type() -> None:
    kinds: dict[str, set[str]] = {}
    for verb in ANSWERS:
        for item in PUBLISHED["$defs"][verb]["anyOf"]:
            for name, field in item.get("properties", {}).items():
                kinds.setdefault(name, set()).add(json.dumps(without_null(field), sort_keys=True))
    assert {name for name, found in kinds.items() if len(found) > 1} == set(OF_SEVERAL_KINDS)


def without_null(field: dict[str, Any]) -> Any:
    """A field's type, whether or not it may be null, and whatever is said of it."""
    found = {name: item for name, item in field.items() if name != "description"}
    if isinstance(found.get("type"), list):
        found["type"] = next(item for item in found["type"] if item != "null")
    either = [item for item in found.get("anyOf", []) if item != {"type": "null"}]
    return either[0] if len(either) == 1 else found


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.update(more=1),
        lambda found: found.pop("run"),
        lambda found: found.update(schema="2"),
        lambda found: found.update(verb="polish"),
        lambda found: found.update(exit_code="0"),
        lambda found: found["report"].pop("health"),
        lambda found: found["report"]["gpus"][0].update(name=None),
        lambda found: found.update(error={"message": "half"}),
    ],
)
def test_a_document_that_is_off_is_seen(box: Box, spoil: Callable[[dict[str, Any]], None]) -> None:
    found = box.run(healthy_agent(), "status", "--json").document
    assert first_mistake(found) is None
    spoil(found)
    assert first_mistake(found) is not None


def test_readers_may_meet_fields_that_the_schema_does_not_name(box: Box) -> None:
    from jsonschema import Draft202012Validator

    found = box.run(healthy_agent(), "status", "--json").document
    found["report"]["gpus"][0]["later"] = found["later"] = 1
    Draft202012Validator.check_schema(PUBLISHED)
    Draft202012Validator(PUBLISHED).validate(found)


@pytest.mark.parametrize(
    ("words", "verb", "code", "said"),
    [
        (["--json"], None, 2, "--json"),
        (["polish", "--json"], None, 2, "polish"),
        (["status", "--json", "--polish"], "status", 2, "--polish"),
        (["status", "--json", "gpu1"], "status", 2, "gpu1"),
        (["runbook", "--json"], "runbook.show", 2, "positional"),
        (["lock.acquire", "--json", "--host", "gpu1"], "lock.acquire", 2, "say why"),
        (["status", "--json", "--host", "gpu9"], "status", 2, "gpu9"),
        (["logs", "--json", "--follow", "--host", "gpu1"], "logs", 2, "--follow"),
        (["report", "--json", "--out", "-"], "report", 2, "standard output"),
        (["status", "--json", "--dry"], "status", 2, "--dry"),
        (["--echo", "status", "--json"], "status", 2, "--echo"),
        (["status", "--json", "--host", "gpu1", "--", "uptime"], "status", 2, "--"),
        (["status", "--json", "--host", "gpu1"], "status", 4, "refuses connections"),
        (["-H", "gpu1,gpu2", "prep", "--json"], "prep", 2, "profile"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_failure_is_one_document_whoever_refuses(front_end: FrontEnd, words: list[str], verb: str | None, code: int, said: str) -> None:
    done = front_end.run(*words)
    found = checked(done.stdout)
    assert (found["schema"], found["verb"], found["exit_code"], done.returncode) == (SCHEMA, verb, code, code)
    if found["error"] is not None:
        assert found["error"]["exit_code"] == code
    assert said in json.dumps(found)
    assert done.stderr


def test_without_json_nothing_of_it_is_printed(front_end: FrontEnd) -> None:
    for words in (["status", "--polish"], ["status", "--host", "gpu9"], ["status", "--", "--json"]):
        assert front_end.run(*words).stdout == ""


@pytest.mark.parametrize("words", [["status", "--json", "--help"], ["status", "--host", "--help", "--json"]])
def test_help_is_for_people_and_no_document(front_end: FrontEnd, words: list[str]) -> None:
    done = front_end.run(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage:")
    assert '"schema"' not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FRONT_ENDS))
def test_ctrl_c_is_one_document_of_a_real_process(tmp_path: Path, name: str) -> None:
    """Sent while it waits for a host that accepts connections and says nothing."""
    (tmp_path / "fabfile.py").write_text((REPOSITORY / "fabfile.py").read_text(encoding="utf-8"), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write_tuned(tmp_path / "inventory", {"gpu1": f"port: {silent.getsockname()[1]}"})
        process = subprocess.Popen(
            [sys.executable, *FRONT_ENDS[name], "status", "--json"],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    found = checked(out)
    assert (found["verb"], found["exit_code"], found["error"]["category"], process.returncode) == ("status", 130, "interrupted", 130), err


def test_ctrl_c_before_the_verb_is_a_document_too(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fabric.main.Fab, "execute", interrupt)
    done = front_end.run("status", "--json", "--host", "gpu1")
    assert checked(done.stdout)["error"]["category"] == "interrupted"
    assert done.returncode == 130


def test_ctrl_c_after_the_document_adds_none(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    execute = fabric.main.Fab.execute

    def late(program: Any) -> None:
        execute(program)
        raise KeyboardInterrupt

    monkeypatch.setattr(fabric.main.Fab, "execute", late)
    done = front_end.run("hosts", "--json")
    assert checked(done.stdout)["verb"] == "hosts"
    assert done.returncode == 130


@pytest.mark.parametrize(("words", "documents"), [("['hosts', '--json']", 1), ("['hosts']", 0)])
def test_ctrl_c_while_it_starts(words: str, documents: int) -> None:
    program = (
        f"import sys; sys.argv = ['orchestrator', *{words}]\n"
        "from orchestrator.cli import entry\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "entry._run = interrupted\n"
        "entry.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted\n"
    assert [checked(done.stdout)["exit_code"]] == [130] if documents else done.stdout == ""


def test_ctrl_c_where_it_is_the_usual_end_is_told_in_the_document_alone(box: Box) -> None:
    ended = box.run(healthy_agent(logs=[[KeyboardInterrupt()]]), "logs", "--json")
    assert (ended.code, ended.document["error"]["category"], ended.err) == (130, "interrupted", "")


def test_what_was_not_foreseen_is_a_document_with_its_own_category(box: Box) -> None:
    ended = box.run(healthy_agent(survey=[[ZeroDivisionError("by nought")]]), "status", "--json")
    assert (ended.code, ended.document["error"]["category"]) == (1, "unforeseen")
    assert "traceback: " in ended.document["error"]["evidence"][0]


def test_bad_news_is_an_answer_and_no_error(box: Box) -> None:
    from orchestrator.agent.wire_host import DoctorReport

    report = DoctorReport([wire.Verdict("cuda", wire.Outcome.REFUSE, "cuInit fails", next_step="look")], [])
    found = box.run(healthy_agent(doctor=[answer(report)]), "doctor", "--json").document
    assert (found["exit_code"], found["error"]) == (3, None)


def test_an_order_that_failed_has_its_result_and_no_error(box: Box) -> None:
    ended = box.run(healthy_agent(), *RELAUNCH, "--json")
    envelope = ["schema", "verb", "exit_code", "error", "run"]
    assert list(ended.document) == [*envelope, "host", "service", "plan", "result", "hooks", "notice", "see", "clients"]


@pytest.mark.parametrize("words", [["hosts"], ["services"], ["backends"], ["tunings"], ["runbook.list"]], ids=" ".join)
def test_the_shipped_inventory_fits(box: Box, words: list[str]) -> None:
    assert box.run(healthy_agent(), *words, "--json", "--inventory", str(REPOSITORY / "inventory")).document["error"] is None


def test_of_a_secret_there_is_its_name_alone(box: Box) -> None:
    (service,) = box.run(healthy_agent(), "services", "--json").document["services"]
    assert service["secrets"] == ["api-key"]


def test_of_a_webhook_there_is_that_it_is_named(box: Box, tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path / "told", second_host=True)
    for path, before, named in (
        (inventory / "hosts.yml", "    port: ", "    webhook: {url: env:CANARY_HOOK}\n    port: "),
        (inventory / "services" / "tiny.yml", "name: tiny\n", "name: tiny\nwebhook: {url: file:canary_hook}\n"),
    ):
        text = path.read_text(encoding="utf-8")
        assert before in text
        path.write_text(text.replace(before, named, 1), encoding="utf-8")
    found = {verb: box.run(healthy_agent(), verb, "--json", "--inventory", str(inventory)).document for verb in ("hosts", "services")}
    assert {item["name"]: item["webhook"] for verb, told in found.items() for item in told[verb]} == {
        "gpu1": True,
        "gpu2": False,
        "glm5": False,
        "tiny": True,
    }
    assert "canary_hook" not in json.dumps(found).lower()


@pytest.mark.parametrize("name", sorted(path.stem for path in (REPOSITORY / "playbooks").glob("*.yml")))
def test_the_shipped_runbooks_fit(box: Box, name: str) -> None:
    assert box.run(healthy_agent(), "runbook.show", name, "--json").document["playbook"]["name"] == name


def test_json_has_no_infinity_and_no_python() -> None:
    given = {"up": math.inf, "off": [math.nan, (1.5, Path("/a"))], "one": Problem("a", "b", [], None, 1)}
    one: dict[str, Any] = {"category": "a", "message": "b", "evidence": [], "next_step": None, "exit_code": 1, "see": []}
    assert plain(given) == {"up": None, "off": [None, [1.5, "/a"]], "one": one}


def test_the_envelope_comes_first() -> None:
    assert list(document(Envelope("1", "logs", 0), {"lines": []})) == ["schema", "verb", "exit_code", "error", "run", "lines"]
    checked(refusal(None, Problem.of(errors.UsageError("no"))))


def test_descriptions_are_read_off_the_source() -> None:
    about, fields = docstrings.of(Contrast)
    assert about == "The second side over the first."
    assert fields["low"] == fields["high"]
    assert fields["ratio"] == "above 1 where the second side takes longer."
    assert docstrings.of(wire.Verdict)[1]["source"].startswith("A path or a command")
    assert docstrings.values_of(wire.Manager, "kind") == ["own_unit", "own_session", "systemd_unit", "session", "unsupported"]
    assert docstrings.values_of(wire.Manager, "name") == []


PAGE = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"fab (?P<verb>[\w.]+)[^|\n]*--json \| jq (?:-\w+ )*(?:'(?P<quoted>[^']+)'|(?P<bare>\S+))", PAGE)


def test_the_page_names_every_category() -> None:
    told = set(re.findall(r"^\| `(\w+)` \| .* \| [\d, ]+ \|$", PAGE, re.MULTILINE))
    assert told == {kind.category for kind in CLASSES} | {"unforeseen"}


def test_the_examples_of_the_page_name_fields_that_are_there() -> None:
    assert len(EXAMPLES) >= 9
    for verb, quoted, bare in EXAMPLES:
        program = re.sub(r'"[^"]*"', "", quoted or bare)
        unknown = set(re.findall(r"\.([a-z_]\w*)", program)) - names_of(PUBLISHED["$defs"][verb])
        assert not unknown, (verb, program)


def names_of(part: Any, seen: frozenset[str] = frozenset()) -> set[str]:
    """The names of all fields in a part of the schema, at first or second hand."""
    if isinstance(part, list):
        return {name for item in part for name in names_of(item, seen)}
    if not isinstance(part, dict):
        return set()
    reference = part.get("$ref", "")
    if reference in seen:
        return set()
    named = names_of(PUBLISHED["$defs"][reference.rpartition("/")[2]], seen | {reference}) if reference else set()
    return named | set(part.get("properties", ())) | {name for item in part.values() for name in names_of(item, seen)}


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
def test_the_examples_of_the_page_run(box: Box) -> None:
    """Over the documents that the scripted box gives; the others over one that has failed."""
    documents = {
        "status": box.run(healthy_agent(), "status", "--json").out,
        "relaunch": box.run(healthy_agent(), *RELAUNCH, "--json").out,
        "history": box.run(healthy_agent(), "history", "--json").out,
    }
    failed = refusal("prep", Problem.of(errors.RefusedError("no", evidence=["why"])))
    for verb, quoted, bare in EXAMPLES:
        done = subprocess.run(
            ["jq", quoted or bare], input=documents.get(verb, failed), capture_output=True, text=True, timeout=30, check=False
        )
        assert verb not in documents or done.returncode == 0, (quoted, done.stderr)
        assert "compile error" not in done.stderr, (quoted, done.stderr)
