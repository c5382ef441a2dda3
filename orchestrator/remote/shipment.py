"""The agent as it is sent: compiled for a place that runs the operator's Python, as source for any other.

Compiling it takes longer over there than all else that it does in most calls, so what was compiled here is kept in the user's cache
folder, by the code that it was made from.
"""

from __future__ import annotations
import __future__

import contextlib
import functools
import hashlib
import importlib.util
import io
import marshal
import os
import re
import stat
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orchestrator.agent import archive
from orchestrator.agent.main import VERBS

FIRST_STAGE = (
    "import sys;print(sys.implementation.cache_tag,sys.version_info[3],flush=True);"
    "exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
)
"""Says which Python it is, then reads a length and that much code (agent/boot.py): the same short words for every shell and every place."""

GREETING = re.compile(rb"[a-z]+-?\d+ (?:alpha|beta|candidate|final)$")
"""What the first stage says; an unfinished release has bytecode of its own."""

_OWN_GREETING = f"{sys.implementation.cache_tag} {sys.version_info[3]}"
_KEPT = 24
"""Archives in the cache folder: one a verb and Python, for a few versions of this program."""

_OUTER = "orchestrator/__init__.py"
"""The package around the agent; empty there."""
_DIGEST_BYTES = hashlib.sha256().digest_size

_lock = threading.Lock()


class Package(NamedTuple):
    """The agent: `first` goes with the request, `rest` when the place asks for it."""

    first: bytes
    rest: bytes = b""


def package_for(verb: str, greeting: str | None) -> Package:
    """As much of the agent as the verb may need: compiled where `greeting` is that of this very Python, else as a zip of sources.

    What stays on the box is sent as source: it must outlive an upgrade of the Python there.
    """
    known = VERBS.get(verb)
    with _lock:  # else each of many threads would make its own
        if known is None or known.keeps_code:
            return _source(())
        roots = ("main", known.module, known.types)
        return _compiled(roots, known.ends_with_reader) if greeting == _OWN_GREETING else _source(roots)


@functools.cache
def boot_code() -> bytes:
    """The text of agent/boot.py."""
    return Path(archive.__file__).with_name("boot.py").read_bytes()


@functools.cache
def _source(roots: tuple[str, ...]) -> Package:
    return Package(archive.agent_archive(roots))


@functools.cache
def _compiled(roots: tuple[str, ...], in_two: bool) -> Package:
    """`in_two`: the place reads what comes after the request."""
    folder = _cache_folder()
    chosen = roots if in_two else ()
    if folder is None:
        return compile_archive(_source(roots).first, chosen)
    path = folder / f"agent-{_fingerprint(roots, in_two)}.bin"
    kept = _read_own(path)
    if kept is not None:
        return Package(*marshal.loads(kept))  # noqa: S302 - written by this user alone
    made = compile_archive(_source(roots).first, chosen)
    with contextlib.suppress(OSError):
        _keep(path, marshal.dumps(tuple(made)))
    return made


def compile_archive(source: bytes, roots: Iterable[str] = ()) -> Package:
    """The modules of `source` compiled for this Python, packed as agent/boot.py unpacks them.

    First come, with `roots`, those that are imported with them in any case; without, all do. They go without the texts that only a
    reader of the source wants (-OO), a third of what would have to be sent, and are packed as well as can be: this is done once.
    Annotations stay text (PEP 563): nearly all are for the type checker, and evaluating them would take longer over there than to read
    the few that are asked for (:mod:`codec`).
    """
    with zipfile.ZipFile(io.BytesIO(source)) as given:
        texts = {Path(path).stem: given.read(path) for path in given.namelist() if path != _OUTER}
    first = archive.imported_at_once(texts, roots) if roots else set(texts)
    return Package(
        _pack({name: texts[name] for name in texts if name in first}), _pack({name: texts[name] for name in texts if name not in first})
    )


def _pack(texts: dict[str, bytes]) -> bytes:
    if not texts:
        return b""
    modules: dict[str, tuple[bytes, str | None]] = {}
    for name, text in texts.items():
        path = f"orchestrator/agent/{name}.py"
        code = compile(text, path, "exec", __future__.annotations.compiler_flag, dont_inherit=True, optimize=2)
        full_name = "orchestrator.agent" if name == "__init__" else f"orchestrator.agent.{name}"
        modules[full_name] = (marshal.dumps(code), text.decode() if name in archive.READ_AS_TEXT else None)
    if "__init__" in texts:
        modules["orchestrator"] = (marshal.dumps(compile("", _OUTER, "exec")), None)
    return zlib.compress(marshal.dumps(modules), 9)


def _cache_folder() -> Path | None:
    """Where compiled archives are kept; None where nobody says where the user's things are."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"  # a relative one is to be ignored (XDG Base Directory)
    except RuntimeError:
        return None
    return base / "orchestrator" / "agent"


def _fingerprint(roots: tuple[str, ...], in_two: bool) -> str:
    """Changes with the code that the archive is made from, and with this Python."""
    package = Path(archive.__file__).parent
    files = sorted(
        (entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in os.scandir(package) if entry.name.endswith(".py")
    )
    return hashlib.sha256(repr((_OWN_GREETING, importlib.util.MAGIC_NUMBER, str(package), roots, in_two, files)).encode()).hexdigest()[:24]


def _read_own(path: Path) -> bytes | None:
    """A kept archive, if it is whole and nobody else can have written it: it will run as root somewhere."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            digest, content = stream.read(_DIGEST_BYTES), stream.read()
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).digest() else None


def _keep(path: Path, content: bytes) -> None:
    """Keep an archive behind its digest: what a crash left of it is no archive."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(content).digest() + content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    kept = sorted(path.parent.glob("agent-*.bin"), key=lambda item: item.stat().st_mtime, reverse=True)
    for old in kept[_KEPT:]:
        old.unlink(missing_ok=True)
