"""The first code that runs in the place, before anything of the agent can be imported.

It is sent as text and run by ``exec``, never imported there, and must compile on every Python 3 so that an old one can
say so. It uses what is built into Python, and ``zlib``, only: Debian's python3-minimal lacks ``json`` and much else.

From standard input it takes one line ``TOKEN ARCHIVE_BYTES REQUEST_BYTES REST_BYTES``, the agent and the request. The agent is a zip of
sources, or what :func:`orchestrator.remote.shipment.compile_archive` makes of one; in this case the rest of it comes when it is asked for.
"""

import gc
import marshal
import os
import sys


def boot() -> None:
    """Take the agent from standard input and hand the request to it. Does not return."""
    gc.disable()  # until everything is imported: nothing of that is ever garbage
    token, archive_size, request_size, rest_size = sys.stdin.buffer.readline().decode("ascii").split()
    archive = sys.stdin.buffer.read(int(archive_size))
    request = sys.stdin.buffer.read(int(request_size))
    if len(request) < int(request_size):
        os._exit(0)  # the operator's end has gone
    # What anybody else prints, and what children inherit, must neither reach the channel nor keep it open.
    channel_in, channel_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def fail(category: str, message: str, next_step: str) -> None:
        data = '{"category":"' + category + '","message":"' + message + '","next_step":"' + next_step + '"}'
        os.write(channel_out, (token + '1 {"kind":"error","data":' + data + "}\n").encode("ascii"))
        os._exit(1)

    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < (3, 9):  # noqa: UP036 - whatever the place has
        fail("python", "python3 is " + version + ", the agent needs 3.9 or newer", "name a newer one as python: in the inventory")
    modules = None
    try:
        if archive.startswith(b"PK"):
            sys.path.insert(0, hold(archive))
        else:
            modules = Modules(archive)
            sys.meta_path.insert(0, modules)
    except OSError as error:
        if error.errno in (28, 122):  # ENOSPC, EDQUOT; the errno module may be absent
            fail("disk_full", "no room in memory or /tmp for the agent", "df -h /dev/shm /tmp")
        raise
    try:
        from orchestrator.agent import main
    except ImportError as error:
        missing = str(error.name or "zlib")
        if missing.startswith("orchestrator"):
            raise
        fail("python", "python3 " + version + " lacks the module " + missing + " (a minimal build)", "apt install python3")
    main.run(token, request, channel_in, channel_out, modules, int(rest_size))


class Modules:
    """Finds and loads the agent's modules among those that came compiled.

    Of a zip, zipimport reads and unpacks each module twice, which is a good part of the time that a short answer takes. `fetch` gets the
    rest of them, as packed as the first.
    """

    fetch = None

    def __init__(self, first: bytes) -> None:
        self._modules = unpack(first)

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """As importlib asks: None for what came from elsewhere."""
        if name not in self._modules and name.startswith("orchestrator.agent.") and self.fetch is not None:
            self._modules.update(unpack(self.fetch()))
        if name not in self._modules:
            return None
        specification: type = type(sys.__spec__)
        return specification(name, self, is_package=name in ("orchestrator", "orchestrator.agent"))

    def create_module(self, spec: object) -> None:
        """A module of the usual kind."""

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        """Run the module's code."""
        exec(marshal.loads(self._modules[module.__name__][0]), module.__dict__)  # noqa: S102, S302 - what import does

    def get_source(self, name: str) -> object:
        """The text of a module that is handed to another Python; None for the others."""
        return self._modules[name][1]


def unpack(packed: bytes) -> dict:  # type: ignore[type-arg]
    """What :func:`orchestrator.remote.shipment.compile_archive` has packed: name -> (code, text or None)."""
    import zlib

    return marshal.loads(zlib.decompress(packed))  # type: ignore[no-any-return] # noqa: S302 - from whom all the code comes


def hold(archive: bytes) -> str:
    """Keep `archive` in memory, or in a nameless file where Python has no memfd (builds for an old glibc); return a path to it."""
    nameless = os.O_RDWR | os.O_TMPFILE
    descriptor = os.memfd_create("orchestrator-agent") if hasattr(os, "memfd_create") else os.open("/tmp", nameless, 0o600)  # noqa: S108
    while archive:
        archive = archive[os.write(descriptor, archive) :]
    return "/proc/self/fd/" + str(descriptor)


if __name__ == "__main__":
    boot()
