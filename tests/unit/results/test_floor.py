"""The floor of a decode step, and what is said of a measured one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.agent.wire_base import Fact
from orchestrator.agent.wire_measure import FloorInputs
from orchestrator.config.models import FloorModel, Service
from orchestrator.results.floor import Floor, Given, floor, floor_lines
from orchestrator.results.memory_bandwidths import BANDWIDTHS, published_bandwidth
from orchestrator.results.weight_formats import NotCountableError
from tests.unit.results.test_model_reads import CASES, DENSE

WORKED = Given(gigabytes_per_token=2.86, memory_bandwidth=1800.0, tokens_per_second=309.0, source="services/glm5.yml")


def derived(config: dict[str, Any] = DENSE, given: Given | None = None, **more: Any) -> Floor:
    inputs = FloorInputs(config=config, config_source="/models/m/config.json", **{"gpu_names": ["NVIDIA H200"], **more})
    return floor(inputs, given or Given(), 1, 1000)


def test_the_worked_example() -> None:
    found = floor(FloorInputs(), WORKED, 1, 1000)
    assert found.seconds == pytest.approx(1.589e-3, rel=1e-3)
    assert found.efficiency(1 / 10.36) == pytest.approx(0.016, abs=0.0005)
    first, second, third, *rest = floor_lines(found, 1 / 10.36, WORKED)
    assert first == "floor 1.59 ms a token (629.4 tok/s a stream): 2.86 GB a GPU at 1800 GB/s"
    assert second == "measured 96.5 ms (10.36 tok/s): 1.6 % of the floor's speed"
    assert third == (
        "309 tok/s was noted in services/glm5.yml, of which this would be 3.4 %: that is 3.24 ms a token, which takes 5.83 GB at 1800 GB/s,"
        " or 884 GB/s for 2.86 GB: one of these numbers is wrong"
    )
    assert rest == ["all 2.86 GB (services/glm5.yml)", "bytes from services/glm5.yml; bandwidth from services/glm5.yml"]


def test_a_noted_ceiling_that_is_this_floors_is_no_matter() -> None:
    found = floor(FloorInputs(), WORKED, 1, 1000)
    agreeing = Given(tokens_per_second=630.0)
    assert not [line for line in floor_lines(found, 0.1, agreeing) if "noted" in line]


def test_what_is_written_down_goes_before_what_is_derived() -> None:
    assert derived(given=Given(gigabytes_per_token=1.0)).bytes == 1e9
    assert derived(given=Given(memory_bandwidth=1000.0)).bandwidth == 1e12


def test_a_number_for_one_stream_is_a_least_one_for_several() -> None:
    found = floor(FloorInputs(), WORKED, 16, 1000)
    assert found.bytes == 2.86e9
    assert any(line.startswith("at least") for line in floor_lines(found, 0.1, WORKED))
    assert not [line for line in floor_lines(found, 0.1, WORKED) if "noted" in line]


def test_each_derived_input_is_shown_with_its_source() -> None:
    lines = floor_lines(derived())
    assert "dense layers 11.3 GB (BF16; 32 layers)" in lines
    assert "bytes from /models/m/config.json; bandwidth from NVIDIA's H200 data sheet (3002446, November 2023)" in lines


def test_ranks_and_types_are_those_of_the_server() -> None:
    case = CASES[-1]
    found = floor(
        FloorInputs(config=case["config"], tensor_parallel=8, kv_cache_dtype="fp8_e4m3", gpu_names=["NVIDIA B200"]), Given(), 1, 10000
    )
    assert found.bytes == pytest.approx(sum(case["reads"].values()), rel=1e-6)
    assert found.bandwidth == 7.7e12


def test_a_config_that_does_not_make_the_files_weights_is_not_relied_on() -> None:
    assert not derived(weight_bytes=16_060_000_000).remarks
    (remark,) = derived(weight_bytes=20_000_000_000, weight_source="model.safetensors.index.json").remarks
    assert remark == "not to be relied on: the config makes 16.06 GB of weights, and they are 20 GB by model.safetensors.index.json"


def test_what_is_faster_than_the_floor_is_said() -> None:
    assert "faster than the floor: an input is wrong, or a step makes several tokens" in floor_lines(derived(), 0.001)


@pytest.mark.parametrize(
    ("name", "gigabytes_per_second"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1597.0),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1792.0),
        ("NVIDIA H200", 4800.0),
        ("NVIDIA H200 NVL", 4800.0),
        ("NVIDIA GH200 480GB", 4000.0),
        ("NVIDIA GH200 144G HBM3e", 4900.0),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 1792.0),
        ("NVIDIA B200", 7700.0),
        ("NVIDIA GB200", 8000.0),
        ("NVIDIA GB300", 8000.0),
        ("NVIDIA B300 SXM6 AC", 7750.0),
        ("NVIDIA H100 NVL", 3938.0),
        ("NVIDIA H100 PCIe", 2000.0),
        ("NVIDIA H20-3e", 4917.0),
        ("NVIDIA A100-SXM4-80GB", 2039.0),
        ("NVIDIA A100-SXM4-40GB", 1555.0),
        ("NVIDIA A100 80GB PCIe", 1935.0),
        ("NVIDIA A100-PCIE-40GB", 1555.0),
        ("NVIDIA RTX 6000 Ada Generation", 960.0),
        ("NVIDIA GeForce RTX 5090", 1792.0),
        ("NVIDIA H100 80GB HBM3", 3350.0),
        ("NVIDIA H20", 4000.0),
        ("NVIDIA L40S", 864.0),
        ("NVIDIA L4", 300.0),
    ],
)
def test_bandwidth_is_that_of_the_gpus_name(name: str, gigabytes_per_second: float) -> None:
    assert derived(gpu_names=[name]).bandwidth == gigabytes_per_second * 1e9


@pytest.mark.parametrize(
    "name", ["NVIDIA RTX A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H200 MIG 1g.18gb", "NVIDIA L400", "Tesla T4", "AMD H2000"]
)
def test_a_gpu_that_is_only_named_like_one_has_no_bandwidth(name: str) -> None:
    assert published_bandwidth(name) is None


def test_no_row_hides_a_later_one_and_each_has_a_source_with_its_year_or_number() -> None:
    names = [row.name for row in BANDWIDTHS]
    assert not [(first, second) for index, first in enumerate(names) for second in names[index + 1 :] if first in second]
    assert not [row.name for row in BANDWIDTHS if row.confirmed and not re.search(r"20\d\d|\d{5}|TensorRT-LLM", row.source)]


def test_a_figure_that_is_not_confirmed_or_disputed_says_so_in_the_floor() -> None:
    (said,) = [line for line in floor_lines(derived(gpu_names=["NVIDIA GH200 480GB"])) if "bandwidth from" in line]
    assert said.endswith("bandwidth from press reports of August 2023 (not confirmed by NVIDIA)")
    (said,) = [line for line in floor_lines(derived(gpu_names=["NVIDIA B200"])) if "bandwidth from" in line]
    assert said.endswith("(2026); NVIDIA's DGX B200 data sheet says 64 TB/s for eight")


def test_a_list_of_the_quantization_that_was_left_out_is_a_remark() -> None:
    facts = [
        Fact("config.json: quantization_config.ignore", "left out", "9000 entries"),
        Fact("config.json: begin_suppress", "left out", "9"),
    ]
    (remark,) = derived(facts=facts).remarks
    assert remark == "not to be relied on: config.json: quantization_config.ignore was left out (9000 entries)"


def test_of_different_gpus_the_slowest_counts() -> None:
    assert derived(gpu_names=["NVIDIA H200", "NVIDIA H100 80GB HBM3"]).bandwidth == 3350e9


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"gpu_names": ["NVIDIA T4"]}, "bandwidth of NVIDIA T4"),
        ({"gpu_names": []}, "bandwidth of the GPU"),
        ({"config": {}}, "config.json could not be read"),
        ({"data_parallel": 2}, "data parallelism"),
    ],
)
def test_what_is_missing_is_named(more: dict[str, Any], says: str) -> None:
    with pytest.raises(NotCountableError, match=says):
        derived(**more)


def test_a_services_file_may_say_it() -> None:
    said = {"gigabytes_per_token": 2.86, "memory_bandwidth": 1800.0}
    service = Service.model_validate({"name": "glm5", "host": "gpu1", "python": "/usr/bin/python3", "model": "/m", "floor": said})
    assert Given.of(service) == Given(2.86, 1800.0, None, "floor: of the service glm5")
    assert Given.of(service.model_copy(update={"floor": FloorModel()})).gigabytes_per_token is None
