"""The reference of the configuration (``docs/configuration.md``), made from its models. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from orchestrator.agent.load_limits import COLD_LOAD, WARM_LOAD
from orchestrator.config import hooks, models, playbook, playbook_words, routers, sweep, tuning
from orchestrator.config.sections import SECTIONS
from orchestrator.reference.model_fields import Described, fields_of, models_below, title_of
from orchestrator.reference.pages import EXAMPLES, first_paragraph
from orchestrator.reference.pages import title_of as title_of_example

SECTION_MODELS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "host": (models.Host,),
    "container": (models.Container,),
    "service": (models.Service,),
    "nodes": (models.NodeModel,),
    "policy": (models.PolicyModel, models.PhaseLimitsModel),
    "expectations": (models.ExpectationModel,),
    "floor": (models.FloorModel,),
    "secrets": (),
    "hooks": tuple(models_below(hooks.HooksModel)),
    "webhook": (hooks.WebhookModel,),
    "backend": tuple(models_below(models.Backend)),
    "tuning": tuple(models_below(tuning.TuningProfile)),
    "router": tuple(models_below(routers.Router)),
    "sweep": tuple(models_below(sweep.SweepModel)),
    "playbook": tuple(models_below(playbook.Playbook)),
}
"""Section -> the models that it is about, and no other section is."""

_HEADER = """\
# Configuration

What may stand in the inventory and in playbooks, field by field. Made from the models by `make docs`: change those, not this page.
`fab docs SECTION` prints a commented example of each section, and every mistake is told as `file:line`, with the section to look at.

YAML here is kept free of its traps: `true` and `false` are the only booleans, what readers of YAML take for different things (`off`,
`22:22`, `0755`, `1e-3`) must be put in quotes, and there are no anchors, aliases and merge keys. Keys that are not listed are mistakes.
A name is 1 to 63 letters, digits, `.`, `_` or `-`. Where no default is named, nothing is set.
"""


def configuration_page() -> str:
    """The whole page."""
    contents = "\n".join(f"- [{name}](#{name}): {title_of_example(_example(name))}" for name in SECTIONS)
    return f"{_HEADER}\n{contents}\n" + "".join(f"\n{_section(name)}" for name in SECTIONS)


def _example(name: str) -> str:
    return (EXAMPLES / f"{name}.yml").read_text(encoding="utf-8")


def _section(name: str) -> str:
    text = f"## {name}\n\nIn `{_file_of(name)}`; an example: `fab docs {name}`.\n"
    parts = SECTION_MODELS[name]
    for model in parts:
        heading = f"\n### {title_of(model)}\n" if len(parts) > 1 else ""
        text += f"{heading}\n{_linked(_table(fields_of(model)))}"
    return text + "".join(f"\n{line}\n" for line in _more(name))


def _linked(text: str) -> str:
    """A model that is alone in its section has the section's heading."""
    for section, parts in SECTION_MODELS.items():
        if len(parts) == 1:
            text = text.replace(f"](#{title_of(parts[0]).lower()})", f"](#{section})")
    return text


def _file_of(name: str) -> str:
    """The first words of an example."""
    return re.split("[:, ]", first_paragraph(_example(name)), maxsplit=1)[0]


def _table(fields: list[Described]) -> str:
    rows = [f"| `{field.key}` | {_cell(field.kind)} | {_shown(field.default)} | {_cell(field.meaning)} |" for field in fields]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def _shown(default: str | None) -> str:
    if default is None:
        return "required"
    return f"`{_cell(default)}`" if default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _more(name: str) -> Iterator[str]:
    """What the models do not say of a section."""
    if name == "host":
        yield "Beside `hosts:` there may be `groups:`: names for several hosts, each a list of hosts and of groups that stand above it."
    if name == "policy":
        yield f"A whole load may take {WARM_LOAD:g} s by default, and {COLD_LOAD:g} s while the caches of compiled kernels are cold."
    if name == "secrets":
        yield (
            "SGLang's argument (`api-key`) and where its value is found on the operator's machine: `env:NAME`, `file:PATH`, or "
            "`{command: [PROGRAM, ARGUMENT, ...]}`, which prints it. A secret itself is never written there."
        )
    if name == "hooks":
        yield "An argument list alone stands for a mapping with it as `command`. A host has the same key, for all of its services."
        yield "What a command is told, and when it is run: [hooks and notices](hooks.md)."
    if name == "webhook":
        yield "A host has the same key. What is sent, and by whom: [hooks and notices](hooks.md#notices)."
    if name == "tuning":
        yield f"Kinds of knobs (`KNOB_KINDS`): {', '.join(f'`{kind}`' for kind in tuning.KNOB_KINDS)}."
    if name == "playbook":
        yield (
            "Facts: " + "; ".join(f"`{fact}` ({', '.join(values or ['any text'])})" for fact, values in playbook_words.FACTS.items()) + "."
        )
        yield "Checks: " + "; ".join(f"`{check}`: {word.about}" for check, word in playbook_words.CHECKS.items()) + "."
        yield f"Verdicts of steps: {', '.join(f'`{verdict}`' for verdict in playbook_words.VERDICTS)}."
        outcomes = ", ".join(f"`{outcome}`" for outcome in playbook_words.OUTCOMES)
        yield f"A finding is {outcomes}; which there are: `fab docs findings`."
