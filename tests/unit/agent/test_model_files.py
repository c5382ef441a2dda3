"""Which files a load reads, and on what file systems they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.model_files import ModelFile, find, mounts


def model(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x" * len(name))
    return folder


def names(found: Any) -> list[str]:
    return [Path(file.path).name for file in found.files]


def seek(values: dict[str, Any], home: Path = Path("/none"), **environment: str) -> Any:
    return find(values, None, environment, str(home))


def test_the_weights_of_one_format_are_read_in_their_order(tmp_path: Path) -> None:
    folder = model(tmp_path, "model-2.safetensors", "model-1.safetensors", "pytorch_model.bin", "config.json")
    found = seek({"model_path": str(folder)})
    assert names(found) == ["model-1.safetensors", "model-2.safetensors"]
    assert (found.size, found.problem) == (2 * len("model-1.safetensors"), None)


def test_a_draft_model_is_read_too_and_nothing_twice(tmp_path: Path) -> None:
    main, draft = model(tmp_path / "main", "a.safetensors"), model(tmp_path / "draft", "b.safetensors")
    assert names(seek({"model_path": str(main), "speculative_draft_model_path": str(draft)})) == ["a.safetensors", "b.safetensors"]
    assert names(seek({"model_path": str(main), "speculative_draft_model_path": str(main)})) == ["a.safetensors"]


def test_a_relative_path_counts_from_the_servers_folder(tmp_path: Path) -> None:
    model(tmp_path / "m", "a.safetensors")
    assert names(find({"model_path": "m"}, str(tmp_path), {}, "/none")) == ["a.safetensors"]


def hub(cache: Path, revision: str = "main") -> None:
    """As huggingface_hub lays it out: a snapshot's files are links to blobs."""
    repository = cache / "models--org--name"
    model(repository / "blobs", "0123")
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    model(repository / "refs")
    (repository / "refs" / revision).write_text("abc\n", encoding="ascii")


@pytest.mark.parametrize(
    ("where", "environment"),
    [
        (".cache/huggingface/hub", {}),
        ("elsewhere", {"HF_HUB_CACHE": "{home}/elsewhere"}),
        ("hf/hub", {"HF_HOME": "{home}/hf"}),
        ("x/huggingface/hub", {"XDG_CACHE_HOME": "{home}/x"}),
    ],
)
def test_a_hubs_model_is_found_in_its_cache(tmp_path: Path, where: str, environment: dict[str, str]) -> None:
    hub(tmp_path / where)
    variables = {name: value.format(home=tmp_path) for name, value in environment.items()}
    assert names(seek({"model_path": "org/name"}, tmp_path, **variables)) == ["0123"]


def test_a_revision_and_a_download_folder_are_followed(tmp_path: Path) -> None:
    hub(tmp_path, revision="v2")
    assert seek({"model_path": "org/name", "download_dir": str(tmp_path)}).problem is not None
    assert names(seek({"model_path": "org/name", "download_dir": str(tmp_path), "revision": "v2"})) == ["0123"]
    assert names(seek({"model_path": "org/name", "download_dir": str(tmp_path), "revision": "abc"})) == ["0123"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"model_path": "org/nowhere"}, "neither a folder here nor in the hub's cache"),
        ({"model_path": "{folder}"}, "no weights are known in"),
        ({"model_path": "{folder}", "load_format": "remote"}, "--load-format remote"),
        ({}, "name no model"),
    ],
)
def test_what_can_not_be_told_is_said(tmp_path: Path, values: dict[str, str], problem: str) -> None:
    found = seek({name: value.format(folder=tmp_path) for name, value in values.items()})
    assert problem in str(found.problem)
    assert not found.files


def test_made_up_weights_are_no_files(tmp_path: Path) -> None:
    found = seek({"model_path": "org/name", "load_format": "dummy"})
    assert (found.files, found.problem) == ((), None)


MOUNTS = """\
25 1 8:1 / / rw - ext4 /dev/sda1 rw
26 25 0:30 / /models rw shared:1 master:2 - zfs tank/models rw
27 25 0:31 / /models/small rw - nfs4 server:/small rw
28 25 0:32 / /with\\040space rw - xfs /dev/sdb rw
29 25 0:33 / /over rw - ext4 /dev/sdc rw
30 25 0:34 / /over rw - tmpfs none rw
torn line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/modelsX/a", "ext4"),
        ("/models/a", "zfs"),
        ("/models/smaller/a", "zfs"),
        ("/models/small/x/a", "nfs4"),
        ("/with space/a", "xfs"),
        ("/over/a", "tmpfs"),
    ],
)
def test_the_mount_nearest_to_a_file_counts(path: str, kind: str) -> None:
    assert mounts([ModelFile(path, 1)], MOUNTS) == [kind]


def test_nothing_is_said_of_no_file() -> None:
    assert mounts([], MOUNTS) == []
    assert mounts([ModelFile("/a/b", 1)], "") == []
