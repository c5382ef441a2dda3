"""How this program was called, and commands in its texts named likewise.

Texts everywhere, on the box too, say ``fab VERB``. Plain ``fab`` needs the fabfile of a clone: where the console script was started, or the
module where no fabfile is found, what is shown names that instead.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import orchestrator

PLAIN = "fab"
"""What the texts say."""
_SCRIPT = "orchestrator"
_MODULE = Path(orchestrator.__file__).with_name("__main__.py")


def called() -> str:
    """What to type for this program: the console script, with its path where it is not found without; ``fab``; or Python and the module."""
    started = Path(sys.argv[0])
    if started.name == _SCRIPT:
        return _SCRIPT if shutil.which(_SCRIPT) is not None else min(str(started), os.path.relpath(started), key=len)
    here = Path.cwd()
    has_fabfile = any((folder / "fabfile.py").is_file() for folder in (here, *here.parents))
    return PLAIN if started != _MODULE or has_fabfile else f"{sys.executable} -m {_SCRIPT}"


def as_typed(text: str) -> str:
    """`text` with its commands as they are typed here."""
    if PLAIN not in text:
        return text
    name = called()
    return text if name == PLAIN else _commands().sub(lambda _: name, text)


def typed_in(data: Any) -> Any:
    """Data for JSON with every text of it :func:`as_typed`; keys stay."""
    if isinstance(data, str):
        return as_typed(data)
    if isinstance(data, dict):
        return {key: typed_in(value) for key, value in data.items()}
    return [typed_in(item) for item in data] if isinstance(data, list) else data


@functools.cache
def _commands() -> re.Pattern[str]:
    """``fab`` before a verb or VERB; not where it ends a path or a word."""
    from orchestrator.cli.tasks import namespace

    names = [name for title, aliases in namespace.task_names.items() for name in (title, *aliases)]
    verbs = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w./-]){PLAIN}(?= (?:{verbs}|VERB)(?![\w-]))")
