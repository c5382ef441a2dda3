"""The words of a preparation: knobs, hosts and what is left for a person, as blocks. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.agent.wire_host import (
    FactName,
    KnobOutcome,
    KnobResult,
    KnobSetting,
    Persistence,
    PersistenceAction,
    PlaceKind,
    TuneAction,
)
from orchestrator.cli.blocks import Block, Line, Table, Tone, indented
from orchestrator.flows.prep_outcome import HostPrep, PlaceTuning, PrepOptions, is_unproven

UNPROVEN = "unproven"
"""What stands in the place of an outcome where something is wanted of a knob that can't be read."""
WORDS = {
    KnobOutcome.SAME: "as wanted",
    KnobOutcome.CHANGED: "changed",
    KnobOutcome.WOULD_CHANGE: "would change",
    KnobOutcome.FAILED: "failed",
    KnobOutcome.NOT_SETTABLE: "not settable from here",
    KnobOutcome.TOLD: "to do by hand",
    UNPROVEN: "not proven",
    KnobOutcome.UNKNOWN: "unknown",
    KnobOutcome.UNAVAILABLE: "unavailable",
    KnobOutcome.OBSERVED: "only read",
}
"""What is said of each outcome, in the order in which a summary counts them."""
_REVERT_WORDS = {**WORDS, KnobOutcome.SAME: "as it was", KnobOutcome.CHANGED: "put back", KnobOutcome.WOULD_CHANGE: "would go back"}
_CHECK_WORDS = {**WORDS, KnobOutcome.WOULD_CHANGE: "drifted"}
_SHORT = {KnobOutcome.NOT_SETTABLE: "not settable", KnobOutcome.TOLD: "by hand"}
"""What is said in a table."""
_TONES: dict[str, Tone] = {
    KnobOutcome.CHANGED: "good",
    KnobOutcome.WOULD_CHANGE: "warn",
    KnobOutcome.FAILED: "bad",
    KnobOutcome.NOT_SETTABLE: "warn",
    KnobOutcome.TOLD: "warn",
    UNPROVEN: "warn",
    KnobOutcome.UNKNOWN: "warn",
    KnobOutcome.UNAVAILABLE: "warn",
}
_FOR_A_PERSON = (KnobOutcome.FAILED, KnobOutcome.NOT_SETTABLE, KnobOutcome.TOLD, UNPROVEN, KnobOutcome.UNKNOWN, KnobOutcome.UNAVAILABLE)
"""Outcomes that are explained below the table, the worst first."""

NO_ORIGINALS = "no originals are kept: nothing to put back"
_NAMED_ITEMS = 3
"""Items whose value differs from most others' are named up to this number."""


def kind_of(result: KnobResult) -> str:
    """A result's outcome, :data:`UNPROVEN` apart."""
    return UNPROVEN if is_unproven(result) else result.outcome


def knob_name(setting: KnobSetting) -> str:
    """What a knob is called on the screen: the key of a sysctl or a parameter, else its kind."""
    return setting.name or setting.kind


def values(items: Mapping[str, str]) -> str:
    """A knob's values short: ``powersave on 64 policies``; ``4096 on 7 GPUs, 512 on 0000:44:00.0``."""
    if not items:
        return "-"
    if set(items) == {""}:
        return items[""] or "(empty)"
    names: dict[str, list[str]] = {}
    for item, value in items.items():
        names.setdefault(value, []).append(item)
    most, *rest = sorted(names, key=lambda value: -len(names[value]))
    parts = [f"{most} on {_counted(names[most], name=len(items) == 1)}"]
    return ", ".join([*parts, *(f"{value} on {_counted(names[value], name=True)}" for value in rest)])


def _counted(items: Sequence[str], *, name: bool) -> str:
    if name and len(items) <= _NAMED_ITEMS:
        return " ".join(items)
    one, many = _noun(items[0])
    return f"{len(items)} {one if len(items) == 1 else many}"


def _noun(item: str) -> tuple[str, str]:
    if re.fullmatch(r"policy\d+", item):
        return "policy", "policies"
    if re.fullmatch(r"cpu\d+", item):
        return "CPU", "CPUs"
    if re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", item):
        return "GPU", "GPUs"
    return "item", "items"


def was_and_is(result: KnobResult) -> str:
    """``powersave on 64 policies -> performance``; one value where nothing was written, or nothing came of it."""
    if result.before == result.after:
        return values(result.after)
    uniform = len(set(result.after.values())) == 1 and result.after.keys() == result.before.keys()
    return f"{values(result.before)} -> {next(iter(result.after.values())) if uniform else values(result.after)}"


def knob_table(results: Sequence[KnobResult], words: Mapping[str, str] = WORDS) -> Table:
    """A row for each knob, and below it where its values were read."""
    written = any(result.before != result.after for result in results)
    return Table(
        ["knob", "was -> is" if written else "is", "wanted", ""],
        [[knob_name(result.setting), was_and_is(result), _wanted(result), in_table(kind_of(result), words)] for result in results],
        tones=tuple((index, _TONES[kind_of(result)]) for index, result in enumerate(results) if kind_of(result) in _TONES),
        notes=[result.source for result in results],
    )


def _wanted(result: KnobResult) -> str:
    return "-" if result.setting.value is None else result.setting.value


def in_table(outcome: str, words: Mapping[str, str]) -> str:
    return _SHORT.get(outcome, words.get(outcome, outcome))


def summary(prep: HostPrep) -> str:
    """One host's knobs in one line: ``11 knobs: 7 as wanted, 3 changed, 1 failed``."""
    boot = _boot_summary(prep)
    counted = [*_counted_outcomes(prep.results, prep.options, "no knob" if boot else "nothing"), *boot]
    if not prep.results and prep.options.action == TuneAction.REVERT:
        counted = [NO_ORIGINALS, *counted] if prep.error is None else counted
    return ", ".join(counted) or ("not done" if prep.error is not None else "nothing was set for its next boot")


def _counted_outcomes(results: Sequence[KnobResult], options: PrepOptions, nothing: str) -> list[str]:
    if not results:
        return []
    words = words_for(options)
    counts = Counter(kind_of(result) for result in results)
    counted = ", ".join(f"{counts[outcome]} {words[outcome]}" for outcome in WORDS if counts[outcome])
    quiet = options.write and not any(result.outcome == KnobOutcome.FAILED or result.before != result.after for result in results)
    return [f"{len(results)} knob{'' if len(results) == 1 else 's'}: {counted}" + (f"; {nothing} was changed" if quiet else "")]


def _boot_summary(prep: HostPrep) -> list[str]:
    """How many files for the next boot were made or removed."""
    number = sum(len(part.report.changes) for part in prep.reports if part.report is not None)
    if not number:
        return []
    done = "removed" if _is_removal(prep.options) else "written"
    return [f"{number} file{'' if number == 1 else 's'} for the next boot {done if prep.options.write else f'would be {done}'}"]


def _is_removal(options: PrepOptions) -> bool:
    """Whether what is done at boot goes."""
    return options.persistence == PersistenceAction.REMOVE or options.action == TuneAction.REVERT


def words_for(options: PrepOptions) -> Mapping[str, str]:
    """What outcomes are called in the kind of call that it was."""
    if options.action == TuneAction.REVERT:
        return _REVERT_WORDS
    return WORDS if options.write or options.plan else _CHECK_WORDS


def host_blocks(prep: HostPrep) -> list[Block]:
    """One host, whole: a table for each place, what needs a person, what is kept, and a line that counts."""
    blocks: list[Block] = []
    for part in prep.reports:
        if part.results:
            blocks += [Line(heading(prep, part), "strong"), knob_table(part.results, words_for(prep.options)), Line()]
    blocks += person_blocks(prep.results)
    if prep.options.plan:
        blocks += by_hand_blocks(prep)
    for part in prep.reports:
        blocks += kept_blocks(prep, part)
    return [*blocks, summary_line(prep)]


def summary_line(prep: HostPrep) -> Line:
    """The line that counts, in the tone of the worst of it."""
    return Line(f"{prep.host}: {summary(prep)}", tone(prep), whole=False)


def tone(prep: HostPrep) -> Tone:
    """Of a line about a whole host."""
    code = prep.exit_code
    return "good" if code == 0 else "warn" if code in (8, 130) else "bad"


def heading(prep: HostPrep, part: PlaceTuning) -> str:
    """Whose knobs these are, brought to what, read where."""
    kernel = part.fact(FactName.KERNEL)
    what = "originals" if prep.options.action == TuneAction.REVERT else f"profile {prep.profile}"
    where = f"{prep.host} as {part.label} shows it" if part.stands_in else part.label
    return f"{where}: {what}" + (f", kernel {kernel}" if kernel else "")


def person_blocks(results: Iterable[KnobResult]) -> list[Block]:
    """What did not simply go well, with the exact commands: once for all that share it. Then what is to be said of others."""
    every = list(results)
    blocks: list[Block] = []
    alike: dict[tuple[str, str], list[KnobResult]] = {}
    for result in sorted((item for item in every if item.outcome in _FOR_A_PERSON), key=lambda item: _FOR_A_PERSON.index(kind_of(item))):
        alike.setdefault((kind_of(result), result.detail or drift(result)), []).append(result)
    for (outcome, detail), group in alike.items():
        names = ", ".join(knob_name(result.setting) for result in group)
        blocks.append(Line(f"{WORDS[outcome]}: {names}: {detail}", _TONES[outcome]))
        blocks += indented([command for result in group for command in result.commands], whole=True)
    remarks = [result for result in every if result.outcome not in _FOR_A_PERSON and result.detail]
    blocks += [Line(f"note: {knob_name(result.setting)}: {result.detail}") for result in remarks]
    return [*blocks, Line()] if blocks else []


def drift(result: KnobResult) -> str:
    """What is there and what should be."""
    return f"{values(result.after)}, wanted {_wanted(result)}"


def kept_blocks(prep: HostPrep, part: PlaceTuning) -> list[Block]:
    """What is kept in a place: originals, and what applies the profile at its next boot."""
    report = part.report
    if report is None or part.stands_in:
        return []
    blocks: list[Block] = []
    would = "" if prep.options.write else "would be "
    for path in report.changes:
        blocks.append(Line(f"{would}{'removed' if _is_removal(prep.options) else 'written'}: {path}"))
        blocks += indented(report.contents.get(path, "").splitlines(), "quiet", whole=True)
    if report.persistence is None and report.changes and _is_removal(prep.options) and prep.options.write:
        stay = "" if prep.options.action == TuneAction.REVERT else "; its knobs stay as they are"
        blocks.append(Line(f"nothing is applied at {prep.host}'s boot any more{stay}"))
    reverting = prep.options.action == TuneAction.REVERT
    if report.originals and not (reverting and prep.options.plan):
        number = f"{report.originals} original value{'' if report.originals == 1 else 's'}"
        knobs = f" of {report.original_knobs} knob{'' if report.original_knobs == 1 else 's'}" if report.original_knobs else ""
        kept = f"{number}{knobs} {'still ' if reverting else ''}kept in {part.label}"
        blocks.append(Line(f"{kept}; fab prep --revert --host {prep.host} puts them back", "quiet"))
    if report.persistence is not None and not (_is_removal(prep.options) and prep.options.plan):
        blocks += persistence_blocks(report.persistence)
    return blocks


AT_BOOT = {"active": "applied at this boot", "failed": "FAILED at this boot", "inactive": "runs at the next boot"}
"""What the states of a unit mean, as long as it is enabled."""


def persistence_blocks(there: Persistence) -> list[Block]:
    """What applies a profile at boot, and how that went."""
    state = AT_BOOT.get(there.state, f"state {there.state}") if there.enabled else "NOT enabled: the next boot will not apply it"
    bad = bool(persistence_problem(there))
    blocks: list[Block] = [Line(f"at boot: {there.unit} applies {there.profile} ({state})", "bad" if bad else "quiet")]
    if there.problem is not None:
        blocks.append(Line(f"    {there.problem}", "bad"))
    blocks += indented(there.said)
    return [*blocks, *(Line(f"note: {note}") for note in there.notes)]


def persistence_problem(there: Persistence) -> str:
    """What is wrong with what is applied at boot, in a few words; empty where nothing is."""
    if persistence_is_broken(there):
        return there.problem or f"{there.unit} is not enabled"
    return f"{there.unit} failed at this boot" if there.state == "failed" else ""


def persistence_is_broken(there: Persistence) -> bool:
    """Whether the next boot will not apply what it should."""
    return there.problem is not None or not there.enabled


def by_hand_blocks(prep: HostPrep) -> list[Block]:
    """The commands by which a person would do what was planned."""
    blocks: list[Block] = []
    for part in prep.reports:
        commands = [command for result in part.results if result.outcome == KnobOutcome.WOULD_CHANGE for command in result.commands]
        if commands:
            blocks += [
                Line(f"by hand, {'on' if part.kind == PlaceKind.HOST else 'in'} {part.label}, as root, this would be", "strong"),
                *indented(commands, whole=True),
                Line(),
            ]
    return blocks


def check_blocks(prep: HostPrep) -> list[Block]:
    """Whether a host has drifted, short: a line for each knob that differs or can't be known, where it was read, and a line that counts."""
    blocks: list[Block] = []
    for result in prep.results:
        kind = kind_of(result)
        if kind in KnobOutcome.DRIFT:
            said = drift(result) + (f": {result.detail}" if kind == KnobOutcome.NOT_SETTABLE and result.detail else "")
        elif kind in (UNPROVEN, KnobOutcome.UNKNOWN, KnobOutcome.UNAVAILABLE):
            said = f"{WORDS[kind]}: {result.detail}"
        else:
            continue
        blocks.append(Line(f"{knob_name(result.setting)}: {said}", "warn"))
        blocks += indented([result.source] if result.source else [], "quiet", whole=True)
    for part in prep.reports:
        there = part.report.persistence if part.report is not None and not part.stands_in else None
        if there is not None and persistence_problem(there):
            blocks += persistence_blocks(there)
    return [*blocks, summary_line(prep)]


def first_problem(prep: HostPrep) -> str:
    """The worst of what is wrong with a host, in a few words; empty where nothing is.

    What it does at its next boot counts too, although the exit code is about its knobs.
    """
    for error in (prep.error, *(part.error for part in prep.reports)):
        if error is not None:
            return error.message.removeprefix(f"{prep.host}: ")
    if prep.options.action == TuneAction.REVERT and not prep.results:
        return NO_ORIGINALS
    for outcome in (KnobOutcome.FAILED, KnobOutcome.NOT_SETTABLE, KnobOutcome.TOLD, UNPROVEN, KnobOutcome.WOULD_CHANGE):
        for result in prep.results:
            if kind_of(result) == outcome:
                told = {KnobOutcome.FAILED: f"failed: {result.detail or drift(result)}", UNPROVEN: f"not proven: {result.detail}"}
                return f"{knob_name(result.setting)}: {told.get(outcome, drift(result))}"
    there = [part.report.persistence for part in prep.reports if part.report is not None and part.report.persistence is not None]
    return next((f"at boot: {problem}" for problem in map(persistence_problem, there) if problem), "")
