"""The first code that runs in the place, before anything of the agent can be imported.

It is sent as text and run by ``exec``, never imported there, and must compile on every Python 3 so that an old one can
say so. It uses ``sys``, ``os`` and ``zipimport`` only: Debian's python3-minimal lacks ``json`` and much else.

From standard input it takes one line ``TOKEN ARCHIVE_BYTES REQUEST_BYTES``, the agent as a zip, and the request.
"""

import os
import sys


def boot() -> None:
    """Take the agent from standard input and hand the request to it. Does not return."""
    token, archive_size, request_size = sys.stdin.buffer.readline().decode("ascii").split()
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
    try:
        sys.path.insert(0, hold(archive))
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
    main.run(token, request, channel_in, channel_out)


def hold(archive: bytes) -> str:
    """Keep `archive` in memory, or in a nameless file where Python has no memfd (builds for an old glibc); return a path to it."""
    nameless = os.O_RDWR | os.O_TMPFILE
    descriptor = os.memfd_create("orchestrator-agent") if hasattr(os, "memfd_create") else os.open("/tmp", nameless, 0o600)  # noqa: S108
    while archive:
        archive = archive[os.write(descriptor, archive) :]
    return "/proc/self/fd/" + str(descriptor)


if __name__ == "__main__":
    boot()
