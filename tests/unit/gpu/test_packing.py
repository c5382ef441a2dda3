"""The archive of a GPU run."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.gpu.packing import NAME, pack, shortened


def test_keys_copies_of_the_program_and_links_stay_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("steps.json", "ssh/keys/client", "state/tiny-moe/orders/1/agent.zip", "state/tiny-moe/orders/1/journal.jsonl", NAME):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "link").symlink_to("/etc/passwd")
    size = pack(folder, tmp_path / NAME)
    with tarfile.open(tmp_path / NAME) as archive:
        assert archive.getnames() == ["gpu-run/state/tiny-moe/orders/1/journal.jsonl", "gpu-run/steps.json"]
        member = archive.extractfile("gpu-run/steps.json")
        assert member is not None
        assert member.read() == b"steps.json"
    assert size == (tmp_path / NAME).stat().st_size
    assert not (tmp_path / NAME).with_suffix(".new").exists()


def test_a_long_file_keeps_its_head_and_its_tail() -> None:
    assert shortened(b"x" * 10, 10) == b"x" * 10
    assert shortened(b"a" * 8 + b"b" * 8, 10) == b"aaaaa\n[6 bytes left out]\nbbbbb"
