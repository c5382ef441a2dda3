"""A runbook on paper: the program's commands, and beside each what does the same by hand. Pure but for the inventory's look-ups."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.runbook_text import check_words, command_line
from orchestrator.config.playbook import InputReference, Playbook, RunReference, Step, Value
from orchestrator.config.playbook_checks import Verbs
from orchestrator.errors import UsageError
from orchestrator.flows.by_hand import Typed, check_by_hand, verb_by_hand
from orchestrator.flows.runbook import in_words

if TYPE_CHECKING:
    from orchestrator.cli.runbook_hands import Subject
    from orchestrator.flows.target import Target

_WHERE = {"host": "on the host", "place": "where SGLang runs", "here": "at your own machine"}
_FILL_IN = "FILL_IN"


def markdown_lines(playbook: Playbook, verbs: Verbs, inputs: Mapping[str, str], subject: Subject | None) -> list[str]:
    """The whole runbook as Markdown. `subject` fills in addresses and names from the inventory; without it they stand open."""
    lines = [f"# {playbook.title}", "", f"Runbook `{playbook.name}`. {playbook.when}", ""]
    lines += _with_the_program(playbook, subject)
    lines += ["## Before you begin by hand", "", *_preamble(playbook, inputs, subject)]
    for number, step in enumerate(playbook.steps, 1):
        lines += _step_lines(playbook, step, number, verbs, subject)
    return lines


def _with_the_program(playbook: Playbook, subject: Subject | None) -> Iterator[str]:
    target = "" if subject is None else "".join(f" --{name} {value}" for name, value in subject.flags(("host", "service")).items())
    sets = "".join(f" --set {name}=..." for name, item in playbook.inputs.items() if item.default is None)
    yield from ["With the program, which asks before each step:", ""]
    yield from ["```sh", f"fab runbook.run {playbook.name}{sets}{target}", "```", ""]
    yield from ["Each step below has its own command too. Where the program can't run, type what is under *By hand*.", ""]
    if playbook.inputs:
        yield from ["| input | default | |", "|---|---|---|"]
        for name, item in playbook.inputs.items():
            yield f"| `{name}` | {'to be set' if item.default is None else f'`{item.default}`'} | {item.about} |"
        yield ""


def _preamble(playbook: Playbook, inputs: Mapping[str, str], subject: Subject | None) -> Iterator[str]:
    """Two shells, and the variables that the commands use."""
    target = _target(subject)
    host, place = _logins(target)
    yield from ["Open two shells as root, one on the host and one where SGLang runs:", "", "```sh"]
    yield from ["# on the host", host, "# where SGLang runs", place, "```", "", "Paste this in both:", "", "```sh"]
    yield "export SYSTEMD_PAGER=cat   # a pager would take the rest of what is pasted for its own commands"
    yield from _variables(target)
    for name, item in playbook.inputs.items():
        value = inputs.get(name, item.default)
        yield f"{_variable(name)}={shlex.quote(value) if value is not None else _FILL_IN}   # {item.about}"
    yield from ["```", ""]


def _target(subject: Subject | None) -> Target | None:
    try:
        return subject.target(None) if subject is not None else None
    except UsageError:
        return None


def _variables(target: Target | None) -> list[str]:
    if target is None:
        return [
            f"SERVICE={_FILL_IN}   # this and the next three are in its file, inventory/services/",
            *(f"{name}={_FILL_IN}" for name in ("PORT", "PYTHON", "MODEL")),
            'STATE="/var/lib/orchestrator/$SERVICE"',
            f"CT={_FILL_IN}   # the container: id: or name: in inventory/hosts.yml",
        ]
    service, container = target.service, target.host.container
    values = {
        "SERVICE": service.name,
        "PORT": str(service.port),
        "PYTHON": service.python,
        "MODEL": service.model,
        "STATE": f"{target.state_root}/{service.name}",
        "CT": container.reference if container is not None else "",
    }
    return [f"{name}={shlex.quote(value)}" for name, value in values.items()]


def _logins(target: Target | None) -> tuple[str, str]:
    """How a person gets to the host, and to where SGLang runs."""
    if target is None:
        return f"ssh root@{_FILL_IN}", f"ssh root@{_FILL_IN}   # or on the host: pct enter $CT, lxc-attach -n $CT, incus exec $CT bash"
    host = _ssh(target.host.user, target.host.address, target.host.port, target.host.jump)
    container = target.host.container
    if container is None or not target.service.in_container:
        return host, host
    if container.reached_by == "ssh":
        return host, _ssh(container.user, container.address or "", container.port, container.jump)
    enter = {"pct": "pct enter {}", "lxc-attach": "lxc-attach -n {}", "incus": "incus exec {} bash"}[container.reached_by]
    return host, f"{host} -t {enter.format(container.reference)}"


def _ssh(user: str, address: str, port: int, jump: str | None) -> str:
    via = f" -J {jump}" if jump else ""
    return f"ssh{via}{'' if port == 22 else f' -p {port}'} {user}@{address}"


def _step_lines(playbook: Playbook, step: Step, number: int, verbs: Verbs, subject: Subject | None) -> Iterator[str]:
    inputs = {name: f"`${_variable(name)}`" for name in playbook.inputs}
    yield from [f"## {number}. {step.id}", "", step.why, ""]
    for stop in step.stop_if:
        ends = "there is nothing more to do" if stop.ends == "done" else "stop here"
        yield f"- If {in_words(stop, inputs)}: {ends}. {stop.because}"
    if step.only_if:
        yield f"- Only if {' and '.join(in_words(condition, inputs) for condition in step.only_if)}; otherwise go to the next step."
    if step.stop_if or step.only_if:
        yield ""
    yield from _what(step, verbs, subject)
    yield from [f"**Look at:** {step.look_at}", "", f"**When it fails:** {step.when_it_fails}", ""]
    if step.go_on_after:
        words = " or ".join(f"`{word}`" for word in step.go_on_after)
        yield from [f"Go on also when it ends with {words}.", ""]


def _what(step: Step, verbs: Verbs, subject: Subject | None) -> Iterator[str]:
    if step.manual is not None:
        yield from [step.manual, ""]
        yield from _blocks([Typed(command.at, command.run) for command in step.by_hand])
        return
    arguments = {name: _word(value) for name, value in step.arguments.items()}
    if step.verb is not None:
        known = {} if subject is None else subject.flags(("host", "service"))
        flags = {**{name: value for name, value in known.items() if name in verbs[step.verb].flags}, **arguments}
        yield from ["```sh", command_line(verbs[step.verb], flags, _quoted), "```", ""]
        typed = verb_by_hand(step.verb, arguments)
    else:
        assert step.check is not None
        yield from [f"The program's {check_words(step, {})}.", ""]
        typed = check_by_hand(step.check, arguments)
    yield from ["*By hand*", ""]
    yield from _blocks(typed)


def _blocks(typed: list[Typed]) -> Iterator[str]:
    """Commands in blocks that are pasted one after another; a new place is named."""
    place = None
    for item in typed:
        if item.at != place:
            yield from [f"{_WHERE[item.at][0].upper()}{_WHERE[item.at][1:]}:", ""]
            place = item.at
        for lines in _pastes(item.lines):
            yield from ["```sh", *lines, "```", ""]


def _pastes(lines: Sequence[str]) -> list[list[str]]:
    """Lines as what is pasted at once: a comment of its own begins one, as it says what to decide or to look at before that."""
    pastes: list[list[str]] = []
    for line in lines:
        begins = line.startswith("#") and (not pastes or not pastes[-1][-1].startswith("#"))
        if begins or not pastes:
            pastes.append([])
        pastes[-1].append(line)
    *whole, last = pastes
    if whole and all(line.startswith("#") for line in last):
        return [*whole[:-1], [*whole[-1], *last]]
    return pastes


def _word(value: Value) -> str | bool:
    """An argument in a shell line: an input as its variable."""
    if isinstance(value, InputReference):
        return f"${_variable(value.name)}"
    if isinstance(value, RunReference):
        return f"RUN_OF_{value.step}"
    return value if isinstance(value, bool) else str(value)


def _variable(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")


def _quoted(word: str) -> str:
    """A word of a shell line; a variable stays one."""
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)
