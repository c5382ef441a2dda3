"""measure: how fast the server that runs decodes."""

from __future__ import annotations

from orchestrator.cli.common import TARGET_FLAGS, choose, positive, seconds
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError


@verb(
    flags={
        "batch": "How many streams at once, with commas: each is a row.",
        "input": "Tokens of each prompt; the prompts are fresh, so that no cache holds them.",
        "output": "Tokens that each stream generates.",
        "repeats": "How often each batch size is timed; six are the fewest for an interval of 95 %.",
        "temperature": "Of what is timed, and of its warm-up; 0 is greedy.",
        "limit": "Seconds for all of it.",
        **TARGET_FLAGS,
    }
)
def measure(
    call: Call,
    batch: str = "1,4,16",
    input: str = "256",  # noqa: A002  # the flag's name
    output: str = "256",
    repeats: str = "6",
    temperature: str = "0",
    limit: str = "900",
    host: str | None = None,
    service: str | None = None,
    inventory: str | None = None,
    json: bool = False,
) -> int:
    """Time decoding by batch size, on the box itself, with what the numbers depend on. Exit code 9: they are not to be believed."""
    from orchestrator.cli.documents.timing import Measured
    from orchestrator.cli.measure_text import floor_blocks, floor_found, measure_blocks
    from orchestrator.flows.measure import MeasureOptions
    from orchestrator.flows.measure import measure as run
    from orchestrator.results.floor import Given
    from orchestrator.results.measurements import keep

    options = MeasureOptions(
        batch_sizes=sizes(batch),
        input_tokens=positive("input", input),
        output_tokens=positive("output", output, least=8),
        repeats=positive("repeats", repeats),
        seconds=seconds("limit", limit) or 0.0,
        temperature=_temperature(temperature),
    )
    target = choose(inventory, host, service)
    call.interrupted = "interrupted; nothing was changed"
    call.screen.note(f"inventory {target.inventory.label}")
    folder = call.keep_run(target.host.name, target.service.name)
    measured = run(target, options, call.screen)
    folder.begin()
    place = {"host": target.host.name, "place": target.place, "service": target.service.name}
    given = Given.of(target.service)
    keep(folder, **place, report=measured.report, given=given)
    call.screen.close()
    call.screen.show([*measure_blocks(target.service.name, target.place, measured), *floor_blocks(measured.report, given)])
    call.answer(Measured(**place, valid=measured.valid, report=measured.report, floor=floor_found(measured.report, given)))
    return measured.exit_code


def sizes(text: str) -> list[int]:
    sizes = [positive("batch", part.strip()) for part in text.split(",") if part.strip()]
    if not sizes:
        raise UsageError(f"--batch takes sizes with commas, such as 1,4,16; {text!r} is not that")
    return list(dict.fromkeys(sizes))


def _temperature(text: str) -> float:
    value = seconds("temperature", text)
    assert value is not None
    return value
