"""Which SGLang a service's Python would import, without importing it (which takes 5 s).

Where the answer lies in the open it is read from the disk, in under a millisecond; else importlib.metadata is asked in the
service's Python (0.07 s).
"""

import os
import re
from typing import Iterator, List, Optional, Set

from orchestrator.agent.codec import record
from orchestrator.agent.launch_files import SYSTEM_PATH
from orchestrator.agent.service_python import ServicePython

VERSION_SECONDS = 10.0

_DISTRIBUTION = re.compile(r"sglang-([^-]+)\.(?:dist|egg)-info$")
_VERSION = r"(?m)^__version__\s*=\s*(?:version\s*=\s*)?['\"]([^'\"]+)['\"]"
UNKNOWN_VERSION = "unknown"
"""Of an SGLang that is there and does not say which it is: a checkout on PYTHONPATH that was never installed, for one."""

_PROGRAM = f"""
import importlib.metadata, importlib.util
try:
    print(importlib.metadata.version("sglang"))
except importlib.metadata.PackageNotFoundError:
    if importlib.util.find_spec("sglang") is None:
        raise
    print({UNKNOWN_VERSION!r})
"""


@record(frozen=True)
class Installation:
    """`version` None: there is no SGLang, or whether there is can't be told; `problem` then says why. `source` is a path or a command."""

    version: Optional[str]
    source: str
    problem: Optional[str] = None


def find_interpreter(python: ServicePython) -> Optional[str]:
    """The service's interpreter as a path that exists, a bare name looked up in the service's PATH; else None."""
    if "/" in python.path:
        return python.path if os.access(python.path, os.X_OK) else None
    folders = python.environment.get("PATH", SYSTEM_PATH).split(":")
    candidates = (os.path.join(folder, python.path) for folder in folders if folder)
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def find_sglang(python: ServicePython) -> Installation:
    """The version of SGLang that the service's Python imports."""
    interpreter = find_interpreter(python)
    if interpreter is None:
        return Installation(None, python.path, f"there is no {python.path}, or it can't be executed")
    for folder in python.environment.get("PYTHONPATH", "").split(":"):
        if folder and os.path.isdir(os.path.join(folder, "sglang")):
            return _in_folder(folder) or _ask(python)
    found = [installation for folder in site_folders(interpreter) for installation in [_in_folder(folder)] if installation]
    return found[0] if len({installation.version for installation in found}) == 1 else _ask(python)


def site_folders(interpreter: str) -> Iterator[str]:
    """The site-packages of a virtual environment; nothing for other interpreters, whose search path is not plain to see."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    library = os.path.join(home, "lib")
    if not os.path.exists(os.path.join(home, "pyvenv.cfg")) or not os.path.isdir(library):
        return
    for name in os.listdir(library):
        if name.startswith("python3"):
            yield os.path.join(library, name, "site-packages")


def _in_folder(folder: str) -> Optional[Installation]:
    """SGLang's version in one folder of the search path, when exactly one is there."""
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    versions: Set[str] = {match.group(1) for match in map(_DISTRIBUTION.match, names) if match}
    if len(versions) == 1:
        return Installation(versions.pop(), os.path.join(folder, "sglang-*.dist-info"))
    return None if versions or "sglang" not in names else _from_source(os.path.join(folder, "sglang"))


def _from_source(package: str) -> Optional[Installation]:
    for name in ("_version.py", "version.py"):
        path = os.path.join(package, name)
        try:
            with open(path, encoding="utf-8") as stream:
                match = re.search(_VERSION, stream.read())
        except OSError:
            continue
        if match:
            return Installation(match.group(1), path)
    return None


def _ask(python: ServicePython) -> Installation:
    done = python.run(["-c", _PROGRAM], VERSION_SECONDS)
    source = f"importlib.metadata in {python.path}"
    if done.status == 0:
        return Installation(done.output.strip(), source)
    evidence: List[str] = done.last_errors(1)
    return Installation(None, source, done.problem or (evidence[0] if evidence else f"status {done.status}"))
