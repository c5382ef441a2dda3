"""A sweep's file: each mistake with its line, and the shipped example, which is documentation and valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import Inventory, Overlay, compose_launch, load_inventory
from orchestrator.config.sweep import FOLDER, SweepModel, grid_of, load_sweep
from orchestrator.errors import ConfigError, UsageError

WriteInventory = Callable[[Mapping[str, str | None]], Path]
CASES = sorted((Path(__file__).parent / "data" / "sweeps").glob("*.case"))
SHIPPED = Path(__file__).parents[3] / "inventory"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_mistake_is_told_with_its_line(case: Path, write_inventory: WriteInventory, tmp_path: Path) -> None:
    text, _, expected = case.read_text(encoding="utf-8").partition("=== expect\n")
    inventory = load_inventory(write_inventory({}))
    path = tmp_path / "sweep.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_sweep(str(path), inventory)
    assert [line.replace(f"{tmp_path}/", "") for line in caught.value.evidence] == expected.splitlines()
    assert caught.value.next_step == f"edit {path}"


def test_a_file_that_is_not_there_is_a_mistake_too(write_inventory: WriteInventory) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sweep("nowhere", load_inventory(write_inventory({})))
    assert caught.value.evidence == ["nowhere:1: (file): no such file"]


def test_a_name_is_looked_up_in_the_inventory_and_a_path_is_one(write_inventory: WriteInventory, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: {name}\nsummary: s\ngrid:\n  backends: [fast]\n"
    folder = write_inventory({f"{FOLDER}/mine.yml": text.format(name="named"), "other.yml": text.format(name="by-path")})
    inventory = load_inventory(folder)
    monkeypatch.chdir(folder)
    assert load_sweep("mine", inventory).name == "named"
    assert load_sweep("other.yml", inventory).name == "by-path"


def shipped() -> list[tuple[Inventory, SweepModel]]:
    inventory = load_inventory(SHIPPED)
    return [(inventory, load_sweep(path.stem, inventory)) for path in sorted((SHIPPED / FOLDER).glob("*.yml"))]


def test_the_shipped_sweeps_can_be_launched_as_they_are() -> None:
    found = shipped()
    assert [sweep.name for _, sweep in found] == ["decode-steps"]
    for inventory, sweep in found:
        assert sweep.grid is not None
        for backend in sweep.grid.backends:
            for flag, values in sweep.grid.arguments.items():
                overlay = Overlay({flag: values[0]}, [flag])
                launch = compose_launch(
                    inventory.service("glm5-nvfp4"), inventory.backends_named(backend), "0.5.23", "L", {}, overlay=overlay
                )
                assert flag in launch.arguments


def test_what_the_shipped_example_leaves_out_is_valid_as_it_is_written_there(tmp_path: Path) -> None:
    text = (SHIPPED / FOLDER / "decode-steps.yml").read_text(encoding="utf-8")
    grid, _, rest = text.partition("grid:\n")
    _, _, commented = rest.partition("# points:\n")
    uncommented = re.sub(r"^# ?", "", "# points:\n" + commented, flags=re.MULTILINE)
    uncommented = uncommented.replace("How each launch is timed; these are `fab measure`'s own values.", "")
    path = tmp_path / "points.yml"
    path.write_text(grid + uncommented, encoding="utf-8")
    model = load_sweep(str(path), load_inventory(SHIPPED))
    assert [point.backend for point in model.points] == ["flashinfer_cutlass", "flashinfer_cutlass+ep8"]
    assert (model.rounds, model.best_at, model.restore, model.timing) == (2, 1, False, type(model.timing)())


def test_the_command_lines_grid_is_held_to_the_same() -> None:
    assert grid_of(["a"], {"--x": [1, "b", True]}).arguments == {"--x": [1, "b", True]}
    with pytest.raises(UsageError) as caught:
        grid_of([], {"--port": [1]})
    assert caught.value.evidence == ["--port is not set here: write the service's port:"]
