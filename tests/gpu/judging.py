"""Whether a step ended as it should: pure functions of exit codes, the program's JSON documents, and what /proc and nvidia-smi showed.

Each returns sentences about what is wrong; none means that all is well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.agent.failure_classes import Category
from orchestrator.agent.wire import Outcome, State

GPU_TOLERANCE = 512
"""MiB by which a GPU's memory in use may stay above its floor: contexts of the driver's own come and go."""
LEAST_OF_CHECKS = 5
"""Verdicts of a diagnosis below which it can't have looked at much."""
MOST_LATE = 0.03
"""Of a timed window, for which our own reader may have been away: as much as a timing may differ from the server's own word."""
SETTINGS_READ = ("observed", "same", "unavailable", "unknown", "told", "not_settable")
"""The outcomes of a knob that was not written."""


def ended(exit_code: int | None, document: Mapping[str, Any], *wanted: int) -> list[str]:
    """Whether a command ended with one of the exit codes; what it said where it did not. None: it was ended because its time was up."""
    if exit_code in wanted:
        return []
    codes = " or ".join(map(str, wanted))
    if exit_code is None:
        return [f"it did not end in time, where exit code {codes} was due"]
    said = document.get("error") or document.get("result") or {}
    told = said.get("message") or said.get("summary") or "nothing as JSON"
    evidence = "; ".join(map(str, said.get("evidence", [])[:3]))
    return [f"exit code {exit_code}, not {codes}: {told}{f' ({evidence})' if evidence else ''}"]


def diagnosed(document: Mapping[str, Any]) -> list[str]:
    """Whether a diagnosis looked, and said where and what next."""
    found = verdicts_of_diagnosis(document)
    problems = [] if len(found) >= LEAST_OF_CHECKS else [f"only {len(found)} checks were told"]
    problems += [f"{verdict['check']}: no source" for verdict in found if not verdict["source"]]
    return problems + [
        f"{verdict['check']}: {verdict['outcome']} and no next step"
        for verdict in found
        if verdict["outcome"] != Outcome.PASS and not verdict["next_step"]
    ]


def verdicts_of_diagnosis(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All verdicts of ``doctor``."""
    report = document.get("report") or {"sections": []}
    return [verdict for section in report["sections"] for verdict in section["verdicts"]]


def not_passed(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was refused, warned of or not known, one sentence each."""
    return [f"{verdict['outcome']} {verdict['check']}: {verdict['detail']}" for verdict in verdicts if verdict["outcome"] != Outcome.PASS]


def only_read(document: Mapping[str, Any]) -> list[str]:
    """Whether a preparation with a profile without values read every knob and wrote none."""
    results = knob_results(document)
    problems = [] if results else ["no knob was told of"]
    return problems + [
        f"{_knob(result)}: {result['outcome']}: {result['detail']}"
        for result in results
        if result["outcome"] not in SETTINGS_READ or result["before"] != result["after"]
    ]


def knob_results(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every knob of every place that ``prep`` tells of."""
    found: list[Mapping[str, Any]] = []
    for host in document.get("hosts", ()):
        for place in host["places"]:
            found += (place["report"] or {"results": []})["results"]
    return found


def _knob(result: Mapping[str, Any]) -> str:
    setting = result["setting"]
    return str(setting["name"] or setting["kind"])


def came_to_serve(exit_code: int | None, document: Mapping[str, Any], status: Mapping[str, Any], backend: str) -> list[str]:
    """Whether a launch or a relaunch came to its good end, and what it asked for serves now (`status`: of ``status``)."""
    problems = ended(exit_code, document, 0)
    state = (document.get("result") or {}).get("state")
    if not problems and state != State.DONE:
        problems.append(f"exit code 0 and its last state is {state}")
    return problems + serves(status, backend)


def serves(status: Mapping[str, Any], backend: str | None = None) -> list[str]:
    """Whether the service has a server that serves, with this backend's launch."""
    report = status.get("report")
    if not report:
        return ["nobody could say what serves"]
    server = report["server"]
    if server is None:
        return [f"there is no server; health: {report['health']}"]
    problems = [] if report["health"] == "serving" else [f"the server is {report['health']}"]
    if backend is not None and server["backend"] != backend:
        problems.append(f"what runs is of the backend {server['backend']}, not {backend}")
    return problems


def is_down(status: Mapping[str, Any]) -> list[str]:
    """Whether the program sees that nothing of the service runs."""
    report = status.get("report")
    if not report:
        return ["nobody could say what serves"]
    return [] if report["server"] is None and report["health"] == "down" else [f"told to be {report['health']}, with a server or without"]


def switched_as_planned(document: Mapping[str, Any]) -> list[str]:
    """Whether a relaunch was staged where its plan said so, and told why where not."""
    staging = (document.get("plan") or {}).get("staging")
    result = document.get("result")
    if staging is None or result is None:
        return ["the plan says nothing of how it switches"]
    problems = []
    if result["staged"] != staging["staged"]:
        problems.append(f"planned {_way(staging['staged'])} and done {_way(result['staged'])}")
    if not staging["staged"] and not staging["reason"]:
        problems.append("sequential without a reason")
    return problems


def _way(staged: bool) -> str:
    return "staged" if staged else "sequentially"


def timed(result: Mapping[str, Any]) -> list[str]:
    """Whether an order timed decoding before and after."""
    problems = []
    for name in ("baseline", "measured"):
        timing = result.get(name)
        if timing is None or timing["skipped"] is not None or timing["tokens_per_second"] <= 0:
            problems.append(f"{name}: {'no timing' if timing is None else timing['skipped'] or 'no speed'}")
    return problems


def refused(exit_code: int | None, document: Mapping[str, Any], *, because_of: Sequence[str]) -> list[str]:
    """Whether a plan was refused with nothing touched, by at least one of the checks in `because_of`."""
    problems = ended(exit_code, document, 3)
    found = {verdict["check"] for verdict in refusing(document)}
    if not found & set(because_of):
        problems.append(f"none of {', '.join(because_of)} refused it, but {', '.join(sorted(found)) or 'nothing'}")
    return problems


def refusing(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The verdicts of a plan that speak against it."""
    plan = document.get("plan") or {"verdicts": []}
    return [verdict for verdict in plan["verdicts"] if verdict["outcome"] == Outcome.REFUSE]


def failed_and_came_back(exit_code: int | None, document: Mapping[str, Any], status: Mapping[str, Any], backend: str) -> list[str]:
    """Whether a launch that could not work was told by its class, and the old server (of `backend`) serves again, or still.

    Where it was staged and failed before its gate, nothing was stopped, which is exit code 3.
    """
    staged = bool(((document.get("plan") or {}).get("staging") or {}).get("staged"))
    wanted = {6: State.RESTORED, 3: State.REFUSED} if staged else {6: State.RESTORED}
    problems = ended(exit_code, document, *wanted)
    result = document.get("result") or {}
    if not problems and result.get("state") != wanted[exit_code or 0]:
        problems.append(f"exit code {exit_code} and its last state is {result.get('state')}")
    failure = result.get("failure")
    if failure is None:
        problems.append("no failure was told")
    elif failure["category"] == Category.UNKNOWN or not failure["evidence"]:
        problems.append(f"the failure is told as {failure['category']}, with {len(failure['evidence'])} lines of evidence")
    return problems + serves(status, backend)


def lost_room(exit_code: int | None, document: Mapping[str, Any], holder: int) -> list[str]:
    """Whether a launch beside a process (`holder`) that holds most of the GPU was told of it, and not taken for a good one."""
    plan = document.get("plan") or {"verdicts": []}
    told = [verdict for verdict in plan["verdicts"] if verdict["check"] == "gpu_memory"]
    problems = [f"the plan's gpu_memory says {verdict['outcome']}" for verdict in told if verdict["outcome"] == Outcome.PASS]
    if not told:
        problems.append("the plan says nothing of GPU memory")
    elif not any(str(holder) in line for verdict in told for line in verdict["evidence"]):
        problems.append(f"process {holder}, which holds the memory, is not named")
    if exit_code == 3:  # refused with the same reason: nothing was started
        return problems
    failure = (document.get("result") or {}).get("failure") or {}
    known = {
        Category.KV_CAPACITY,
        Category.GPU_OCCUPIED,
        *(name for name in vars(Category).values() if str(name).startswith("out_of_memory")),
    }
    if failure.get("category") not in known:
        problems.append(f"the launch ended with exit code {exit_code} and the class {failure.get('category')}")
    return problems


def stream_survived(tokens: int, wanted: int, *, whole: bool) -> list[str]:
    """Whether a stream that ran when its server was told to stop came to its own end."""
    return [] if whole and tokens == wanted else [f"the stream {'ended' if whole else 'was cut'} after {tokens} of {wanted} tokens"]


def back_to_floor(floor: Mapping[str, int], now: Mapping[str, int], above: int = 0) -> list[str]:
    """Whether each GPU's memory in use (MiB by UUID) is what it was without the server; `above` is what others may have taken since."""
    return [
        f"GPU {uuid}: {now.get(uuid, 'not reported')} MiB in use, {used} MiB before"
        for uuid, used in floor.items()
        if now.get(uuid) is None or now[uuid] > used + above + GPU_TOLERANCE
    ]


def nothing_left(processes: Sequence[str]) -> list[str]:
    """Whether no process of a server is left; `processes` are those found, as a person would name them."""
    return [f"left behind: {process}" for process in processes]


def measured(exit_code: int | None, document: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """Whether ``measure`` timed every batch size and believes it.

    That it differs from the server's own word is wrong only where our side was late: a server's front end may be slower than its decoding.
    """
    problems = ended(exit_code, document, 0, 9)
    report = document.get("report") or {"batches": [], "invalid": []}
    timed_sizes = {batch["batch_size"] for batch in report["batches"] if batch["time_per_output_token"] is not None}
    problems += [f"batch {size}: not timed" for size in sizes if size not in timed_sizes]
    for batch in report["batches"]:
        late = max((max(repeat["late"], repeat["waited"] or 0.0) / repeat["window"] for repeat in batch["repeats"]), default=0.0)
        if batch["disagreements"] and late > MOST_LATE:
            problems.append(f"batch {batch['batch_size']}: {batch['disagreements'][0]}, and our reader was away for {late:.0%} of a window")
    return problems + [f"not to be believed: {item['reason']}: {item['detail']}" for item in report["invalid"]]


def swept(exit_code: int | None, document: Mapping[str, Any], points: int, rounds: int) -> list[str]:
    """Whether a sweep launched and timed each point in each round, and what serves at its end is what served before it."""
    problems = ended(exit_code, document, 0)
    found = document.get("points", ())
    if len(found) != points:
        problems.append(f"{len(found)} points of {points} were told")
    for point in found:
        label = point["point"]["backend"]
        if point["timed"] != rounds:
            problems.append(f"{label}: {point['timed']} of {rounds} launches have a timing to be believed")
        problems += [f"{label}: {trouble}" for trouble in point["troubles"]]
    launches = [step["launch"]["launch_id"] for step in document.get("steps", ()) if step["launch"]]
    if len(set(launches)) != points * rounds:
        problems.append(f"{len(set(launches))} launches, where {points * rounds} were due")
    if not (document.get("serves") or {}).get("at_start"):
        problems.append("it did not end on what served before")
    return problems


def budgeted(exit_code: int | None, document: Mapping[str, Any]) -> list[str]:
    """Whether each timed step is parted into a floor, its multiplications and a rest, and believed.

    Of a model whose steps are all launches the multiplications are a small part; that they take longer than the whole step is wrong.
    """
    problems = ended(exit_code, document, 0, 9) + _doubted(document)
    steps = document.get("steps", ())
    problems += [] if steps else ["no step was accounted for"]
    problems += [
        f"batch {timing['gemm']['batch_size']}: {timing['gemm']['name']} in its own format, {timing['format']}: {timing['problem']}"
        for timing in (document.get("timed") or {"gemms": ()})["gemms"]
        if timing["seconds"] is None and timing["format"] == timing["gemm"]["format"]
    ]
    for step in steps:
        name = f"batch {step['batch_size']}"
        if step["floor"] is None or step["gemm"] is None:
            problems.append(f"{name}: no {'floor' if step['floor'] is None else 'GEMM'}: {step['floor_problem'] or step['remarks']}")
        elif not 0 < step["gemm"] <= step["step"]:
            problems.append(f"{name}: GEMM takes {step['gemm'] * 1000:.3f} ms of a step of {step['step'] * 1000:.3f} ms")
    return problems


def profiled(exit_code: int | None, document: Mapping[str, Any], *, on_gpu: bool) -> list[str]:
    """Whether a trace came, of the device that serves, in which decode steps were told apart and their kernels' classes named."""
    problems = ended(exit_code, document, 0, 9) + _doubted(document)
    ranks = document.get("ranks", ())
    problems += [] if ranks else ["no trace was read"]
    for rank in ranks:
        if rank["on_gpu"] is not on_gpu:
            problems.append(f"{rank['trace']}: told to be of {'a GPU' if rank['on_gpu'] else 'the CPU'}")
        if not rank["steps"] or not 0 < rank["busy"] <= rank["step"]:
            problems.append(f"{rank['trace']}: {len(rank['steps'])} steps, busy for {rank['busy']} s of {rank['step']} s")
        if len(rank["classes"]) < 2:
            problems.append(f"{rank['trace']}: its kernels are all of {', '.join(rank['classes']) or 'no'} class")
    return problems


def _doubted(document: Mapping[str, Any]) -> list[str]:
    return [f"not to be believed: {doubt}" for doubt in document.get("not_believed", ())]


def preflight_row(backend: str, exit_code: int | None, document: Mapping[str, Any]) -> tuple[str, list[str]]:
    """One line about a preflight, and what is wrong with it: it must come to go ahead, or to a refusal that says why and what next."""
    reasons = [f"{verdict['check']}: {verdict['detail']}" for verdict in refusing(document)]
    error = document.get("error") or {}
    if exit_code == 0:
        return f"{backend}: may go ahead", [f"{backend}: may go ahead, and yet {reasons[0]}"] if reasons else []
    told = reasons or [str(line) for line in error.get("evidence", [])] or [str(error.get("message", ""))]
    line = f"{backend}: refused: {told[0]}" if exit_code == 3 else f"{backend}: exit code {exit_code}: {told[0]}"
    if exit_code != 3:
        return line, ended(exit_code, document, 0, 3)
    return line, [] if error.get("next_step") else [f"{backend}: refused without a next step"]
