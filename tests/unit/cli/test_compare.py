"""``fab compare`` over what ``fab measure`` has kept: the screen, the document and the exit codes."""

from __future__ import annotations

import dataclasses

from orchestrator.agent.wire_measure import BatchTiming, MeasureReport
from tests.unit.cli.test_measure import INVALID, REPEAT, REPORT, agent
from tests.unit.cli.test_verbs import Box, box
from tests.unit.flows.samples import healthy_agent

__all__ = ["box"]

SIX = (1.000, 1.002, 0.999, 1.001, 1.000, 0.998)


def report(launch: str, step: float, backend: str = "flashinfer_cutlass", base: MeasureReport = REPORT) -> MeasureReport:
    batches = [BatchTiming(1, [dataclasses.replace(REPEAT, time_per_output_token=step * share) for share in SIX])]
    found = dataclasses.replace(base.covariates, launch_id=launch, backend=backend)
    return dataclasses.replace(base, batches=batches, covariates=found)


def kept(box: Box, *reports: MeasureReport) -> list[str]:
    """Names of their run folders, in this order."""
    names: list[str] = []
    for item in reports:
        before = set(box.runs)
        box.run(agent(item), "measure")
        [folder] = set(box.runs) - before
        names.append(folder.name)
    return names


def test_the_screen_has_what_differs_before_the_finding(box: Box) -> None:
    first, second = kept(box, report("one", 0.01), report("two", 0.0105, "flashinfer_cutedsl"))

    ended = box.run(healthy_agent(), "compare", first, second)

    assert ended.code == 0
    assert ended.out.index("flashinfer_cutedsl") < ended.out.index("slower by 5.0 %")
    words = " ".join(ended.out.split())
    for expected in ("10.00", "10.50", "1.050", "one launch a side: blind to how launches differ", "in nine of ten such comparisons"):
        assert expected in words
    assert len(box.runs) == 2, "a comparison leaves no run folder"


def test_several_launches_a_side_are_named_with_commas(box: Box) -> None:
    names = kept(box, *[report(str(number), step) for number, step in enumerate((0.01, 0.0101, 0.0102, 0.01))])

    ended = box.run(healthy_agent(), "compare", ",".join(names[:2]), ",".join(names[2:]), "--json")

    assert ended.code == 0
    [batch] = ended.document["batches"]
    assert batch["contrast"]["launches"] == [2, 2]
    assert batch["contrast"]["finding"] == "no difference shown"
    assert ended.document["first"] == names[:2]
    assert ended.document["differing"] == []


def test_what_is_not_to_be_believed_is_refused_unless_told(box: Box) -> None:
    first, second = kept(box, report("one", 0.01), report("two", 0.0105, base=INVALID))

    refused = box.run(healthy_agent(), "compare", first, second, "--json")
    told = box.run(healthy_agent(), "compare", first, second, "--invalid")

    assert refused.code == 9
    assert refused.document["error"]["evidence"] == [f"{second}: others: 3 requests ran at once, 2 were ours [batch 4]"]
    assert told.code == 0
    assert "not to be believed:" in told.out


def test_an_unbounded_interval_is_null_in_the_document(box: Box) -> None:
    single = report("one", 0.01)
    single = dataclasses.replace(single, batches=[dataclasses.replace(single.batches[0], repeats=single.batches[0].repeats[:1])])
    first, second = kept(box, single, report("two", 0.02))

    ended = box.run(healthy_agent(), "compare", first, second, "--json")

    assert ended.document["batches"][0]["contrast"]["high"] is None


def test_a_folder_that_is_not_there_is_a_mistake_of_the_command_line(box: Box) -> None:
    ended = box.run(healthy_agent(), "compare", "one", "two")

    assert ended.code == 2
    assert "no run folder one" in ended.err + ended.out
