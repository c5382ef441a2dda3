"""Print how true decode timings are: ``python -m benchmarks.measure``. Exit 1 when a limit is exceeded.

Three references, all on this machine: a server that knows when it wrote each token; the lab's stand-in, whose step time is set; and the
real SGLang on CPU, which says itself how fast it decodes, with SGLang's own benchmark beside it on the same server in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import http, wire
from orchestrator.agent.clock import Deadline, wait_until
from orchestrator.agent.measure import measure
from orchestrator.agent.wire_measure import BatchTiming, MeasureReport, MeasureRequest
from orchestrator.lab import control
from orchestrator.lab.layout import Layout
from tests.agent.test_batch_runs import paced, timed
from tests.rig.local_sglang import LocalServer, local_sglang
from tests.rig.sglang import ENVIRONMENT, SglangEnvironment, find_environment, healthy

RANDOM_WEIGHTS = wire.Policy(garbage=wire.Garbage.WARN, likelihood_floor=-50.0)
LAB_HOST = "lab-b200"
LAB_STEP = 1 / 46.0
"""Seconds; what the stand-in sets for the kernels that the lab's server begins with (``flashinfer_trtllm``)."""
SIZES = (1, 4, 16, 64)
STANDINS = Path(__file__).with_name("standins")
"""For what SGLang's benchmark imports and a run with random prompts doesn't use."""


@dataclass(frozen=True)
class Result:
    """One line: a deviation from a reference, as a share of it."""

    name: str
    deviation: float
    limit: float | None
    detail: str

    @property
    def holds(self) -> bool:
        return self.limit is None or abs(self.deviation) <= self.limit

    def __str__(self) -> str:
        bound = "" if self.limit is None else f"limit {self.limit:.0%}   {'ok' if self.holds else 'TOO FAR'}"
        return f"{self.name:58} {self.deviation:+8.2%}   {bound:19}   {self.detail}"


def against_record(repeats: int) -> Iterator[Result]:
    """Streams written by a server that records when, at 309 tokens/s each."""
    for streams in SIZES:
        with paced(1 / 309.0) as client:
            deviations, references = [], []
            for _ in range(repeats):
                run, reference = timed(client, streams, 400)
                assert run.timing is not None, run.problems
                deviations.append(run.timing.time_per_output_token / reference - 1.0)
                references.append(reference)
        worst = max(map(abs, deviations))
        detail = f"it wrote each {statistics.median(references) * 1000:.2f} ms, the worst of {repeats} is off by {worst:.2%}"
        yield Result(f"{streams} x 309 tok/s, against what was written when", statistics.median(deviations), 0.01, detail)


def against_stand_in(folder: Path, repeats: int) -> Iterator[Result]:
    """The lab's stand-in, whose step time is set."""
    layout = Layout.of(folder / "lab")
    control.up(layout.directory, start_servers=True)
    try:
        [service] = [path for path in (layout.inventory / "services").glob("*.yml") if LAB_HOST in path.read_text(encoding="utf-8")]
        port = next(int(line.split()[1]) for line in service.read_text(encoding="utf-8").splitlines() if line.startswith("port:"))
        assert wait_until(lambda: http.listens("127.0.0.1", port) and healthy(f"http://127.0.0.1:{port}"), Deadline(120.0), 0.2)
        report = _ask(port, folder, [1, 4], 128, 128, repeats)
        for batch in report.batches:
            name = f"stand-in, batch {batch.batch_size}, against"
            yield from (Result(f"{name} its {word.source}", word.difference, 0.01, _told(batch)) for word in batch.own_words)
            yield Result(f"{name} the step time that is set", _median(batch) / LAB_STEP - 1.0, None, "which a starved machine can't hold")
    finally:
        control.down(layout.directory)


def against_real(environment: SglangEnvironment, folder: Path, sizes: Sequence[int], repeats: int) -> Iterator[Result]:
    """The real server's own word, and SGLang's own benchmark in turns with ours."""
    extra = ("--max-running-requests", str(max(sizes)), "--max-total-tokens", str(max(sizes) * 512))
    with local_sglang(environment, folder, *extra, variables={"SGLANG_RECORD_STEP_TIME": "1"}) as server:
        for size in sizes:
            [batch] = _ask(server.port, folder, [size], 64, 240, repeats).batches
            for word in batch.own_words:
                yield Result(f"real SGLang, batch {size}, against its {word.source}", word.difference, 0.03, _told(batch))
            theirs = _bench_one_batch(environment, server, folder, size)
            if isinstance(theirs, str):
                yield Result(f"real SGLang, batch {size}, bench_one_batch_server", 0.0, None, f"can't be run: {theirs}")
                continue
            again = _ask(server.port, folder, [size], 64, 240, repeats).batches[0]
            ours = statistics.median([_median(batch), _median(again)])
            detail = f"ours {_median(batch) * 1000:.2f} and {_median(again) * 1000:.2f} ms around its {theirs * 1000:.2f} ms"
            yield Result(f"real SGLang, batch {size}, against bench_one_batch_server", ours / theirs - 1.0, None, detail)


def _ask(port: int, folder: Path, sizes: Sequence[int], given: int, wanted: int, repeats: int) -> MeasureReport:
    request = MeasureRequest(
        "benchmark",
        str(folder / "state"),
        port,
        batch_sizes=list(sizes),
        input_tokens=given,
        output_tokens=wanted,
        repeats=repeats,
        policy=RANDOM_WEIGHTS,
    )
    report = measure(request, lambda kind, data: None)
    for item in report.invalid:
        sys.stderr.write(f"not to be believed: {item.reason}: {item.detail}\n")
    return report


def _bench_one_batch(environment: SglangEnvironment, server: LocalServer, folder: Path, size: int) -> float | str:
    """Its time per output token in seconds (batch size over output throughput), or why there is none."""
    result = folder / f"one-batch-{size}.jsonl"
    command = [str(environment.python), "-m", "sglang.bench_one_batch_server", "--model", "None", "--base-url", server.url]
    command += [
        "--dataset-name",
        "random-ids",
        "--batch-size",
        str(size),
        "--input-len",
        "64",
        "--output-len",
        "240",
        "--result-filename",
        str(result),
    ]
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(STANDINS), **ENVIRONMENT}
    done = subprocess.run(command, env=variables, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0 or not result.exists():
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    last = json.loads(result.read_text(encoding="utf-8").splitlines()[-1])
    return size / float(last["output_throughput"])


def _median(batch: BatchTiming) -> float:
    assert batch.time_per_output_token is not None, batch.skipped
    return batch.time_per_output_token.median


def _told(batch: BatchTiming) -> str:
    per_token = batch.time_per_output_token
    assert per_token is not None
    return f"{per_token.median * 1000:.3f} ms ({per_token.low * 1000:.3f}-{per_token.high * 1000:.3f}) in {per_token.count} repeats"


def main() -> int:
    """Print each line as it is known; 1 when one is too far off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument(
        "--sizes", type=lambda text: [int(part) for part in text.split(",")], default=list(SIZES), help="of the real server"
    )
    parser.add_argument("--without-sglang", action="store_true", help="leave the real server out, which takes minutes")
    options = parser.parse_args()
    environment = None if options.without_sglang else find_environment()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [against_record(options.repeats), against_stand_in(folder, options.repeats)]
        parts += [against_real(environment, folder, options.sizes, options.repeats)] if environment is not None else []
        results = []
        for part in parts:
            for result in part:
                print(result, flush=True)
                results.append(result)
    if environment is None:
        print("the real SGLang was left out" if options.without_sglang else "no SGLang environment: run `make sglang-cpu`")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
