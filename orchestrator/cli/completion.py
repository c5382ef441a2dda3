"""completion: what makes a shell complete this program's command lines. What it is answered at a Tab: completing.py."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
SCRIPTS = Path(__file__).with_name("completion_scripts")


@verb(positional=("shell",), flags={"shell": f"The shell: {', '.join(SHELLS)}.", "json": "Print one JSON document on standard output."})
def completion(call: Call, shell: str, json: bool = False) -> None:
    """Print the script that makes a shell complete verbs, flags, and names of hosts, services, backends, runbooks and runs."""
    from orchestrator.cli.blocks import Line
    from orchestrator.cli.documents.shells import Completion

    text = script(shell)
    call.screen.show([Line(line, whole=True) for line in text.splitlines()])
    call.answer(Completion(shell, text))


def script(shell: str) -> str:
    """What a shell has to read once.

    Raises:
        UsageError: there is none for that shell.
    """
    if shell not in SHELLS:
        raise UsageError(
            f"there is no completion for {shell!r}", evidence=[f"shells: {', '.join(SHELLS)}"], next_step="fab completion bash"
        )
    return (SCRIPTS / f"orchestrator.{shell}").read_text(encoding="utf-8")
