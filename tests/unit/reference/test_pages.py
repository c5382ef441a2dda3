"""The pages that are made are made of what is there, and none is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from orchestrator import errors
from orchestrator.agent.failure_classes import Category
from orchestrator.agent.failure_signatures import SIGNATURES
from orchestrator.cli.verbs import verb_flags
from orchestrator.config.playbook_words import EXIT_VERDICTS, FINDINGS
from orchestrator.folders import playbook_paths
from orchestrator.reference import pages
from orchestrator.reference.__main__ import made_pages
from orchestrator.reference.failure_page import alternatives, classes, failure_page, read_cases, read_written
from orchestrator.reference.model_fields import as_markdown, fields_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CASES = ROOT / "tests" / "data" / "failures"
AGENT = sorted((ROOT / "orchestrator" / "agent").glob("*.py"))


def test_the_pages_that_are_made_are_not_stale() -> None:
    wanted = made_pages(CASES)
    found = {f"failures/{path.name}" for path in (DOCS / "failures").iterdir()} | {"configuration.md"}
    stale = [
        name
        for name in sorted({*wanted, *found})
        if name not in wanted or name not in found or (DOCS / name).read_text(encoding="utf-8") != wanted[name]
    ]
    assert not stale, f"docs is stale ({', '.join(stale)}): run `make docs`"


def test_every_class_has_a_page_by_its_name() -> None:
    own = {value for name, value in vars(Category).items() if not name.startswith("_")}
    assert own <= {name for name, topic in pages.topics().items() if topic.kind == "failure"}


def test_every_refusal_of_the_agent_has_a_page_by_its_name() -> None:
    """A relaunch that the box refuses in its midst shows such a category in brackets."""
    refused = {
        call.args[0].value
        for path in AGENT
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("AgentRefusal", "AgentFailure")
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    assert {"refused", "locked", "rights"} <= refused
    assert refused <= set(classes())


def test_no_failure_is_made_with_a_class_that_has_no_page() -> None:
    """Neither by a literal beside the table of classes."""
    literal = {
        call.args[0].value
        for path in AGENT
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("wire.Failure", "Failure")
        if call.args and isinstance(call.args[0], ast.Constant)
    }
    assert literal == set()


@pytest.mark.parametrize("name", classes())
def test_a_page_says_all_that_somebody_needs(name: str) -> None:
    written = read_written(name)
    assert all([written.title, written.means, written.look_at, written.do, written.again])
    page = failure_page(name, [])
    for signature in SIGNATURES:
        if signature.category == name:
            assert signature.summary in page
            assert all(part in page for part in alternatives(signature.pattern.pattern))


def test_a_page_shows_lines_of_real_servers_first() -> None:
    cases = read_cases(CASES)["killed"]
    page = failure_page("killed", cases)
    assert "From a server, SGLang 0.5.17 on an H200:" in page
    assert "\n    Subprocess scheduler_0 (pid=19475) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n" in page


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a|b", ["a", "b"]),
        ("a(?:b|c)|d", ["a(?:b|c)", "d"]),
        (r"a[|]b\|c|\(d", [r"a[|]b\|c", r"\(d"]),
        ("alone", ["alone"]),
    ],
)
def test_a_pattern_is_cut_where_any_part_may_match(pattern: str, parts: list[str]) -> None:
    assert alternatives(pattern) == parts


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda item: item.category)
def test_the_parts_are_regular_expressions_themselves(signature: object) -> None:
    pattern = getattr(signature, "pattern").pattern  # noqa: B009  # typed as what parametrize gives
    assert "|".join(alternatives(pattern)) == pattern
    for part in alternatives(pattern):
        re.compile(part)


def test_exit_codes_has_each_code_of_the_program() -> None:
    page = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    headings = {
        int(code): word for codes, word in re.findall(r"^## ([\d, ]+): (\w+)$", page, flags=re.MULTILINE) for code in codes.split(",")
    }
    assert headings == dict(EXIT_VERDICTS)
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.OrchestratorError)]
    assert {kind.exit_code for kind in kinds} <= set(headings)


def test_findings_are_checks_that_the_program_makes() -> None:
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    named = {name for names in re.findall(r"^- ([a-z_, ]+):", page, flags=re.MULTILINE) for name in names.split(", ")}
    sources = [*AGENT, *sorted((ROOT / "orchestrator" / "flows").glob("*.py"))]
    known = {text for path in sources for text in re.findall(r'"([a-z_]+)"', path.read_text(encoding="utf-8"))}
    assert set(FINDINGS) <= named <= known


def test_every_link_of_the_configuration_leads_to_a_heading() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    headings = {heading.lower() for heading in re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)}
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links <= headings
    assert "expectations" in links


def test_a_field_without_a_meaning_is_a_mistake() -> None:
    with pytest.raises(LookupError, match="says nothing of count"):
        fields_of(Mute)


class Mute(BaseModel):
    """A model that does not say what its field means."""

    count: int = Field(ge=1)


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("By the phase's name (:class:`phases.Phase`).", "By the phase's name."),
        ("A key of :data:`KNOB_KINDS`.", "A key of `KNOB_KINDS`."),
        ("For a whole load; None: the default.", "For a whole load; left out: the default."),
        ("``a``\n    or ``b``", "`a` or `b`"),
    ],
)
def test_a_docstring_as_markdown(docstring: str, shown: str) -> None:
    assert as_markdown(docstring) == shown


def test_what_must_not_be_empty_is_told_of_a_list_and_of_its_items() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert "list: (text, not empty), not empty" in page
    assert "not empty, not empty" not in page


def test_a_key_leads_to_its_section() -> None:
    assert pages.sections_with("headroom") == ["policy"]
    assert pages.sections_with("reached_by") == ["container"]
    assert pages.sections_with("nothing_like_it") == []


def test_a_name_that_is_none_leads_to_those_that_resemble_it() -> None:
    names = list(pages.topics())
    assert pages.resembling("out of memory", names)[0] == "out_of_memory"
    assert "exit-codes" in pages.resembling("exit", names)


def test_the_title_of_an_example_is_its_first_sentence_without_the_file() -> None:
    titles = {name: topic.title for name, topic in pages.topics().items() if topic.kind == "section"}
    assert titles["policy"] == "the deadlines and thresholds of a relaunch, launch and teardown"
    assert titles["sweep"] == "what `fab sweep --file NAME` tries"
    assert all(titles.values())


def commands_named() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours that a page, an example, or what is written of a class tells somebody to type, with where."""
    texts = [*pages.topics().values()]
    for topic in texts:
        for quoted in re.findall(r"`fab ([^`]+)`", " ".join(topic.text.split())):
            yield topic.name, quoted.split(";")[0].split()


def test_every_command_that_is_named_exists() -> None:
    verbs = verb_flags()
    runbooks = playbook_paths(None)
    named = list(commands_named())
    assert len(named) > 50
    for where, (verb, *words) in named:
        if verb == "runbook":
            assert words[0] in {*runbooks, "NAME"}, (where, words)
            continue
        assert verb in verbs, (where, verb)
        flags = verbs[verb].switches | verbs[verb].values
        for word in words:
            assert not word.startswith("--") or word[2:] in flags, (where, verb, word)
        if verb == "docs" and words:
            assert words[0] in {*pages.topics(), "SECTION", "CLASS"}, (where, words)
