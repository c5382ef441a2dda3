"""profile: where the time of a decode step goes, by the server's own trace."""

from __future__ import annotations

from orchestrator.cli.common import TARGET_FLAGS, choose, positive, seconds
from orchestrator.cli.edge import Call, verb


@verb(
    flags={
        "batch": "How many streams at once while it is traced.",
        "steps": "Decode steps to trace; a few hundred kernels each.",
        "input": "About so many tokens in each prompt.",
        "limit": "Seconds for all of it.",
        **TARGET_FLAGS,
    }
)
def profile(
    call: Call,
    batch: str = "1",
    steps: str = "8",
    input: str = "256",  # noqa: A002  # the flag's name
    limit: str = "240",
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Trace a few decode steps under a small load and show kernel time by class; the traces stay in the run folder."""
    from orchestrator.agent.wire_budget import PROFILE_SCHEMA
    from orchestrator.cli.profile_text import profile_blocks
    from orchestrator.flows.profile import ProfileOptions, analysed
    from orchestrator.flows.profile import profile as run
    from orchestrator.results.account import PROFILE_FILE
    from orchestrator.results.kept_accounts import profile_document

    options = ProfileOptions(
        batch_size=positive("batch", batch),
        steps=positive("steps", steps, least=3),
        input_tokens=positive("input", input),
        seconds=seconds("limit", limit) or 0.0,
    )
    target = choose(inventory, host, service)
    call.interrupted = "interrupted; nothing was changed"
    call.screen.note(f"inventory {target.inventory.label}")
    folder = call.keep_run(target.host.name, target.service.name)

    def keep(name: str, data: bytes) -> None:
        folder.begin()
        folder.keep_bytes(name, data)

    found = analysed(run(target, options, call.screen, keep), folder.path)
    folder.begin()
    place = {"host": target.host.name, "place": target.place, "service": target.service.name}
    document = {**place, "valid": found.valid, **profile_document(found)}
    folder.keep(PROFILE_FILE, {"schema": PROFILE_SCHEMA, **document})
    call.screen.close()
    call.screen.show(profile_blocks(target.service.name, target.place, found))
    call.document(**document, exit_code=found.exit_code)
    return found.exit_code
