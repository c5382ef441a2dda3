"""The agent as a zip: made from the installed package, or read back from the zip that this very process runs from."""

import os
import re
from typing import Any, Dict, Iterable, Set

READ_AS_TEXT = frozenset({"budget_program", "parser_program", "probe_program", "waiter"})
"""Modules that are handed to another Python as text, so that their source must be there."""
_IMPORTED = re.compile(rb"orchestrator\.agent(?:\.(\w+)|\s+import\s+(\([^)]*\)|[^\n]*))")
_IMPORTED_AT_ONCE = re.compile(rb"(?m)^from " + _IMPORTED.pattern)
_QUOTED = re.compile(rb"\"(\w+)\"")
_NO_TABLES = ("main", "archive")
"""Modules whose words in quotes bring nothing: the first names every verb's module, and one verb is asked for; the other is this one."""


def agent_archive(roots: Iterable[str] = ()) -> bytes:
    """The agent package as a zip; the same bytes each time for the same code.

    With `roots`, modules of the package, it holds these and what they may come to import: half the package is nothing to the questions
    that are asked most, and making and sending it would take longer than their answers.

    In a place this is the archive that the operator's end sent, so a supervisor runs the code that was asked for.
    """
    held = getattr(globals()["__loader__"], "archive", None)  # set by zipimport
    if held is None:
        return _pack(os.path.dirname(os.path.abspath(__file__)), set(roots))
    with open(held, "rb") as stream:
        return stream.read()


def _pack(package: str, roots: Set[str]) -> bytes:
    import io
    import zipfile

    texts = _read(package)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "orchestrator/__init__.py", b"")
        for name in sorted(_needed(texts, roots) if roots else texts):
            _add(archive, f"orchestrator/agent/{name}.py", texts[name])
    return buffer.getvalue()


def _read(package: str) -> Dict[str, bytes]:
    """The text of each module; boot.py is sent as text, before there is an archive."""
    texts = {}
    for name in os.listdir(package):
        if name.endswith(".py") and name != "boot.py":
            with open(os.path.join(package, name), "rb") as stream:
                texts[name[: -len(".py")]] = stream.read()
    return texts


def _needed(texts: Dict[str, bytes], roots: Set[str]) -> Set[str]:
    """The modules that `roots` may come to import: by a statement, or by a name in quotes that a table holds; and so on."""
    needed, waiting = {"__init__"}, set(roots)
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting |= (_mentioned(name, texts[name]) & set(texts)) - needed
    return needed


def imported_at_once(texts: Dict[str, bytes], roots: Iterable[str]) -> Set[str]:
    """The modules that come with `roots` in any case: what they import outside of all functions, what these do, and so on."""
    found, waiting = {"__init__"}, set(roots)
    while waiting:
        name = waiting.pop()
        found.add(name)
        words = {word.decode() for match in _IMPORTED_AT_ONCE.findall(texts[name]) for part in match for word in re.findall(rb"\w+", part)}
        waiting |= (words & set(texts)) - found
    return found


def _mentioned(name: str, text: bytes) -> Set[str]:
    found = [word for match in _IMPORTED.findall(text) for part in match for word in re.findall(rb"\w+", part)]
    found += _QUOTED.findall(text) if b"import_module(" in text and name not in _NO_TABLES else []
    return {word.decode() for word in found}


def _add(archive: Any, name: str, content: bytes) -> None:
    import zipfile

    entry = zipfile.ZipInfo(name)  # dated 1980: the same code gives the same bytes
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content, compresslevel=6)  # 3 is some milliseconds quicker and 6 % larger
