"""What ``fab init`` has found and would write, as blocks. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from orchestrator.cli.blocks import Block, Line, indented
from orchestrator.cli.common import INVENTORY_VARIABLE

if TYPE_CHECKING:
    from orchestrator.flows.init_draft import Draft
    from orchestrator.flows.init_files import File

_IN_FULL = ("hosts.yml", "services/")
"""What is shown whole: the rest is long, and comes with the program."""


def draft_blocks(made: Draft) -> list[Block]:
    """What was found, then each file, before the question."""
    blocks: list[Block] = [Line(f"found on {made.host.user}@{made.host.address}:{made.host.port}", "strong")]
    blocks += [*indented(map(str, made.seen)), Line()]
    for file in made.files:
        blocks += _file_blocks(made, file)
    if made.paste:
        blocks += [Line(f"{made.directory}/hosts.yml can't get this entry without touching somebody's lines: paste it yourself", "warn")]
        blocks += [*indented(made.paste.splitlines(), whole=True), Line()]
    if made.unfinished:
        blocks += [Line("the service's file is not written, as it would not load yet; this would be in it", "warn")]
        blocks += [*indented(made.unfinished.splitlines(), whole=True), Line()]
    if not made.files:
        blocks.append(Line(f"nothing to write: all of it is in {made.directory} already"))
    profiles = [file.name.removeprefix("backends/") for file in made.files if file.name.startswith("backends/")]
    if profiles:
        blocks += [Line(f"{made.directory}/backends: {len(profiles)} backend profiles that come with the program"), Line()]
    return [*blocks, *(Line(f"note: {remark}") for remark in made.remarks)]


def _file_blocks(made: Draft, file: File) -> list[Block]:
    if file.name.startswith("backends/"):
        return []
    new = "new" if file.before is None else "these lines at its end"
    blocks: list[Block] = [Line(f"{made.directory}/{file.name}, {new}: {file.about}", "strong")]
    if file.name.startswith(_IN_FULL):
        blocks += [*indented(file.added.strip("\n").splitlines(), whole=True), Line()]
    return blocks


def written_blocks(made: Draft) -> list[Block]:
    """What was done."""
    names = [file.name for file in made.files if file.about]
    names += ["backends"] if any(not file.about for file in made.files) else []
    return [Line(f"written: {made.directory}/{name}", "good", whole=True) for name in names]


def next_blocks(made: Draft, *, found_by_itself: bool) -> list[Block]:
    """What to type from here on. `found_by_itself`: a command without ``--inventory`` finds this inventory."""
    commands = [] if found_by_itself else [f"export {INVENTORY_VARIABLE}={shlex.quote(str(made.directory))}"]
    host = f"--host {made.host.name}"
    commands += [f"fab doctor {host}", f"fab prep {host} --plan"]
    if made.paste:
        commands.insert(0, f"$EDITOR {shlex.quote(str(made.directory / 'hosts.yml'))}   # the entry above")
    elif made.target is not None:
        commands += [made.target.command("adopt") + "   # so that this very server can be brought back"] if made.adoptable else []
        serves = made.server is not None
        commands.append(made.target.command("relaunch", "--backend NAME", "--plan") if serves else made.target.command("launch", "--plan"))
    return [Line(), Line("next", "strong"), *indented(commands, whole=True)]
