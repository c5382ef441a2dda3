"""Writes the pages of ``docs/`` that are made: ``python -m orchestrator.reference --cases tests/data/failures docs``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from orchestrator.reference.configuration_page import configuration_page
from orchestrator.reference.failure_page import classes, failure_page, index_page, read_cases


def made_pages(cases: Path) -> Mapping[str, str]:
    """Path below ``docs/`` -> text of every page that is made. `cases`: the folder of logged failures."""
    told = read_cases(cases)
    names = classes()
    return {
        "configuration.md": configuration_page(),
        "failures/README.md": index_page(names),
        **{f"failures/{name}.md": failure_page(name, told.get(name, [])) for name in names},
    }


def main() -> None:
    """Write them, and remove pages of classes that are no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True, help="folder of logged failures")
    parser.add_argument("folder", type=Path, help="where the pages are written")
    options = parser.parse_args()
    pages = made_pages(options.cases)
    failures = options.folder / "failures"
    failures.mkdir(parents=True, exist_ok=True)
    for path in failures.glob("*.md"):
        if f"failures/{path.name}" not in pages:
            path.unlink()
    for name, text in pages.items():
        (options.folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
