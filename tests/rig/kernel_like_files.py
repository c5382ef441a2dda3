"""A file system (FUSE, the kernel's own protocol) over a tree of files, in which knobs behave as the kernel's do.

Run in a host's mount namespace as ``python3 -I -S kernel_like_files.py DESCRIPTOR TREE``, where DESCRIPTOR is an open and mounted
/dev/fuse. Standard library only. What is written is found in TREE; what differs from plain files:

- A write replaces the value, wherever it starts; truncating does nothing; no files are made.
- A file of choices (``always [madvise] never``) takes one of them and shows it in brackets; others are EINVAL.
- A governor must be an available one. Under ``performance`` the energy preference is ``performance`` and can't be set: EBUSY.
- TREE/behaviour.json, if there, changes single files: ``{"/proc/sys/kernel/numa_balancing": "stays"}``. ``stays``: a write is taken and
  lost. ``waits``: a write returns when the word is gone; TREE/waiting is there once one waits. ``hangs``: a write never returns, and
  whoever waits for it is in state D once it was killed. ``read-hangs``: so does a read. Any other word names an errno for a write.
- Configuration space is cut to its first 64 bytes for everybody but root.
"""

import errno
import json
import os
import re
import select
import stat
import struct
import sys
from collections.abc import Callable

BEHAVIOUR, WAITING = "behaviour.json", "waiting"

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _READLINK, _OPEN, _READ, _WRITE = 1, 2, 3, 4, 5, 14, 15, 16
_STATFS, _RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 17, 18, 25, 26, 27, 28, 29
_MKNOD, _MKDIR, _UNLINK, _CREATE, _INTERRUPT, _BATCH_FORGET = 8, 9, 10, 35, 36, 42
_UNANSWERED = (_FORGET, _BATCH_FORGET, _INTERRUPT)
_FORBIDDEN = (_MKNOD, _MKDIR, _UNLINK, _CREATE)
_DIRECT_IO = 1
_NAMES_STAY_VALID = 60
"""Seconds for which the kernel needs not ask again that a name exists. A file that has gone is found out when it is opened."""

_BRACKETS = re.compile(r"\[([^\]]+)\]")


_HEADER_BYTES = 64
_LOOK_AGAIN = 0.02


class Hangs(Exception):  # noqa: N818 - not an error: the request stays unanswered on purpose
    """The request is never answered."""


class Waits(Exception):  # noqa: N818 - no error either
    """The request is answered later."""


class Files:
    """The files of the tree, by the numbers that the kernel knows them by."""

    def __init__(self, tree: str) -> None:
        self.asked_by = 0
        """The user id of the one who asks."""
        self._tree = tree
        self._paths = {1: ""}
        self._numbers = {"": 1}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            _INIT: self._init, _LOOKUP: self._lookup, _GETATTR: self._getattr, _SETATTR: self._getattr, _READLINK: self._readlink,
            _OPEN: self._open, _OPENDIR: self._opendir, _READ: self._read, _WRITE: self._write, _READDIR: self._readdir,
            _STATFS: lambda node, body: bytes(80), _RELEASE: lambda node, body: b"", _FLUSH: lambda node, body: b"",
            _RELEASEDIR: lambda node, body: b"",
        }  # fmt: skip

    def answer(self, code: int, node: int, body: bytes) -> bytes:
        """Carry a request out.

        Raises:
            OSError: what the one who asked gets to see.
            Hangs: nobody gets to see anything.
            Waits: not yet.
        """
        if code in _FORBIDDEN:
            raise OSError(errno.EPERM, "")
        if code not in self._answers:
            raise OSError(errno.ENOSYS, "")
        return self._answers[code](node, body)

    def _real(self, node: int) -> str:
        return self._tree + self._paths[node]

    def _init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<I", body, 8)[0]
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, 0, 16, 12, 1 << 17, 1, 32, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        path = f"{self._paths[node]}/{os.fsdecode(body[:-1])}"
        attributes = self._attributes(path)
        number = self._numbers.setdefault(path, len(self._numbers) + 1)
        self._paths[number] = path
        return struct.pack("<QQQQII", number, 0, _NAMES_STAY_VALID, 0, 0, 0) + attributes

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._paths[node])

    def _attributes(self, path: str) -> bytes:
        found = os.lstat(self._tree + path)
        times = [int(found.st_atime), int(found.st_mtime), int(found.st_ctime)]
        owner = [found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0]
        return struct.pack("<6Q10I", found.st_ino, found.st_size, found.st_blocks, *times, 0, 0, 0, *owner)

    def _readlink(self, node: int, body: bytes) -> bytes:
        return os.fsencode(os.readlink(self._real(node)))

    def _open(self, node: int, body: bytes) -> bytes:
        os.lstat(self._real(node))
        return struct.pack("<QII", 0, _DIRECT_IO, 0)

    def _opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        offset, size = struct.unpack_from("<QI", body, 8)
        found = b""
        for place, entry in enumerate(sorted(os.scandir(self._real(node)), key=lambda entry: entry.name)):
            name = os.fsencode(entry.name)
            kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) >> 12
            record = struct.pack("<QQII", entry.inode(), place + 1, len(name), kind) + name
            record += bytes(-len(record) % 8)
            if place < offset:
                continue
            if len(found) + len(record) > size:
                break
            found += record
        return found

    def _read(self, node: int, body: bytes) -> bytes:
        offset, size = struct.unpack_from("<QI", body, 8)
        if self._behaviour(node) == "read-hangs":
            raise Hangs
        with open(self._real(node), "rb") as stream:
            content = stream.read()
        if self.asked_by != 0 and self._paths[node].endswith("/config"):
            content = content[:_HEADER_BYTES]
        return content[offset : offset + size]

    def _write(self, node: int, body: bytes) -> bytes:
        offset, size = struct.unpack_from("<QI", body, 8)
        data = body[40 : 40 + size]
        if self._may_write(self._behaviour(node)):
            self._store(self._real(node), offset, data)
        return struct.pack("<II", size, 0)

    def _behaviour(self, node: int) -> str:
        try:
            with open(f"{self._tree}/{BEHAVIOUR}", encoding="utf-8") as stream:
                return str(json.load(stream).get(self._paths[node], ""))
        except FileNotFoundError:
            return ""

    def _may_write(self, behaviour: str) -> bool:
        if behaviour == "hangs":
            raise Hangs
        if behaviour == "waits":
            open(f"{self._tree}/{WAITING}", "w", encoding="utf-8").close()
            raise Waits
        if behaviour not in ("", "stays", "read-hangs"):
            raise OSError(getattr(errno, behaviour), "")
        return behaviour != "stays"

    def _store(self, real: str, offset: int, data: bytes) -> None:
        if os.path.basename(real) == "config":
            with open(real, "r+b") as stream:
                stream.seek(offset)
                stream.write(data)
            return
        with open(real, encoding="utf-8") as stream:
            old = stream.read().strip()
        text = self._accepted(real, old, data.decode().strip())
        with open(real, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")

    def _accepted(self, real: str, old: str, new: str) -> str:
        folder, name = os.path.split(real)
        if _BRACKETS.search(old):
            choices = old.replace("[", "").replace("]", "").split()
            _require(new in choices, errno.EINVAL)
            return " ".join(f"[{choice}]" if choice == new else choice for choice in choices)
        if name == "scaling_governor":
            _require(new in _words(f"{folder}/scaling_available_governors"), errno.EINVAL)
            if new == "performance" and os.path.exists(f"{folder}/energy_performance_preference"):
                with open(f"{folder}/energy_performance_preference", "w", encoding="utf-8") as stream:
                    stream.write("performance\n")
        if name == "energy_performance_preference":
            _require(new in _words(f"{folder}/energy_performance_available_preferences"), errno.EINVAL)
            _require(new == "performance" or _words(f"{folder}/scaling_governor") != ["performance"], errno.EBUSY)
        return new


def _require(condition: bool, number: int) -> None:
    if not condition:
        raise OSError(number, "")


def _words(path: str) -> list[str]:
    with open(path, encoding="utf-8") as stream:
        return stream.read().split()


def serve(descriptor: int, files: Files) -> None:
    """Answer the kernel until the file system is unmounted."""
    waiting: list[bytes] = []
    while True:
        waiting = [request for request in waiting if not _settle(descriptor, files, request)]
        if waiting and not select.select([descriptor], [], [], _LOOK_AGAIN)[0]:
            continue
        try:
            request = os.read(descriptor, (1 << 17) + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue
            raise
        if not _settle(descriptor, files, request):
            waiting.append(request)


def _settle(descriptor: int, files: Files, request: bytes) -> bool:
    """Answer one request; False when it has to wait."""
    _, code, unique, node, files.asked_by = struct.unpack_from("<IIQQI", request)
    if code in _UNANSWERED:
        return True
    number, answer = 0, b""
    try:
        answer = files.answer(code, node, request[40:])
    except OSError as error:
        number = error.errno or errno.EIO
    except Hangs:
        return True
    except Waits:
        return False
    _reply(descriptor, struct.pack("<IiQ", 16 + len(answer), -number, unique) + answer)
    return True


def _reply(descriptor: int, answer: bytes) -> None:
    try:
        os.write(descriptor, answer)
    except FileNotFoundError:
        """The one who asked was interrupted."""


if __name__ == "__main__":
    serve(int(sys.argv[1]), Files(sys.argv[2]))
