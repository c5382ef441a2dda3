"""budget: where the time of a decode step goes, by timing its parts alone beside the idle server."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.agent import sglang
from orchestrator.agent.wire_budget import BESIDE_WEIGHTS, LEFT_TO_SERVER, BudgetReport, BudgetRequest
from orchestrator.agent.wire_measure import MeasureReport
from orchestrator.errors import RefusedError, UsageError
from orchestrator.flows.measure import reasons
from orchestrator.flows.observer import Observer
from orchestrator.flows.target import Connect, Target, ask_with_progress, connect
from orchestrator.results.budget import Budgeted, step_budgets
from orchestrator.results.floor import Given
from orchestrator.results.gemm_shapes import all_reduce, gemms
from orchestrator.results.measurements import Measurement
from orchestrator.results.weight_formats import NotCountableError

_MORE_SECONDS = 120.0
"""Beyond the bound of the timing itself: the agent's own start, a rank that hangs in a driver."""


def budget(target: Target, measured: MeasureReport, seconds: float, observer: Observer, connect: Connect = connect) -> Budgeted:
    """Time the parts of the measured step. What speaks against the result is in it.

    Raises:
        RefusedError: the parts can't be counted from the model's config, the server is busy, or a GPU has no room.
        LockedError: an order is at work on the service or its GPUs.
        UnreachableError: the place can't be reached, trusted or used.
    """
    request = _request(target, measured, seconds)
    with connect(target) as agent:
        what = f"{len(request.gemms)} multiplications of {target.service.name} in {target.place}, beside its idle server"
        observer.note(f"timing {what}, for at most {seconds:g} s")
        if request.device == "cuda":
            observer.note(_room(request))
        timed = ask_with_progress(agent, "budget", request, BudgetReport, seconds + _MORE_SECONDS, observer)
    doubts = [*timed.disturbed, *(f"the measured step: {reason}" for reason in reasons(measured.invalid))]
    return Budgeted(doubts=doubts, timed=timed, steps=step_budgets(measured, timed, Given.of(target.service)))


def _room(request: BudgetRequest) -> str:
    taken, left = (size / (1 << 30) for size in (request.memory + BESIDE_WEIGHTS, LEFT_TO_SERVER))
    return f"it takes up to {taken:.3g} GiB of each GPU meanwhile, and is refused where less than {left:.3g} GiB would be left to a server"


def _request(target: Target, measured: MeasureReport, seconds: float) -> BudgetRequest:
    service, inputs, arguments = target.service, measured.floor, measured.covariates.arguments
    sizes = [batch.batch_size for batch in measured.batches if batch.time_per_output_token is not None]
    if not sizes:
        raise RefusedError("no batch size was measured, so there is no step to account for", next_step=target.command("measure"))
    try:
        shapes = [gemm for size in sizes for gemm in gemms(inputs, size)]
        sums = [item for item in (all_reduce(inputs, size) for size in sizes) if item is not None]
    except NotCountableError as error:
        raise RefusedError(f"what a step multiplies can't be counted: {error}", next_step=target.command("profile")) from error
    first, apart = (_number(arguments, flag, fallback) for flag, fallback in (("--base-gpu-id", 0), ("--gpu-id-step", 1)))
    return BudgetRequest(
        service=service.name,
        state_root=target.state_root,
        port=service.port,
        python=service.python,
        environment=dict(service.environment),
        user=service.user,
        gemms=shapes,
        all_reduces=sums,
        devices=[first + rank * apart for rank in range(inputs.tensor_parallel)],
        seconds=seconds,
        device="cpu" if sglang.argument_values(arguments, ["--device"])[-1:] == ["cpu"] else "cuda",
    )


def _number(arguments: Sequence[str], flag: str, fallback: int) -> int:
    values = sglang.argument_values(arguments, [flag])
    return int(values[-1]) if values and values[-1].isdecimal() else fallback


def measured_of(target: Target, side: Sequence[Measurement]) -> MeasureReport:
    """The kept timing that is meant.

    Raises:
        UsageError: several, or one of another service.
    """
    if len(side) != 1:
        raise UsageError("--measured takes one run folder")
    (found,) = side
    if found.service != target.service.name:
        raise UsageError(f"{found.label} is about {found.service}, not {target.service.name}", next_step=target.command("measure"))
    return found.report
