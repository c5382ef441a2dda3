"""Where the traceback of what was not foreseen is kept: an operator gets a sentence that names the file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.results.redaction import Redactor
    from orchestrator.results.runs import RunFolder


def keep_traceback(run: RunFolder | None, redactor: Redactor, text: str) -> Path | None:
    """Keep it in the run folder, else in the user's cache; where that is, None where it can't be kept."""
    if run is not None and run.kept:
        run.keep_text("traceback.txt", text)
        return run.path / "traceback.txt"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestrator"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = cache / f"traceback-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.txt"
        path.write_text(redactor.text(text), encoding="utf-8")
        path.chmod(0o600)
    except (OSError, RuntimeError):  # the latter where nobody says where the user's home is
        return None
    return path
