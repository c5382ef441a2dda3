"""Which parts of a file are in the page cache, by mincore(2), which brings none in.

A read that must not wait (``RWF_NOWAIT``) is no way to ask: it has the missing page read, and on a fast disk finds it there. mincore needs
ctypes, which a small Python (Debian's python3-minimal) lacks; then nobody can tell. Since Linux 5.2 it answers truly only to who owns the
file or may write to it, and calls everything resident to others.
"""

import os
from typing import Any, Optional, Tuple

_PROT_READ = 1
_MAP_SHARED = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_known: "Optional[Tuple[Any, Any]]" = None


def prepare() -> None:
    """Load what :func:`is_resident` needs, for children that must not import anything."""
    global _known
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    except (ImportError, OSError, AttributeError):
        _known = None
    else:
        _known = (ctypes, library)


def may_ask(path: str) -> bool:
    """Whether the kernel answers truly for this file; :func:`prepare` comes first."""
    return _known is not None and (os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK))


def is_resident(descriptor: int, offset: int, length: int) -> Optional[bool]:
    """Whether all of a part of an open file is in the page cache; None where the file system does not tell. `offset` begins a page."""
    assert _known is not None, "prepare() comes first"
    ctypes, library = _known
    address = library.mmap(None, length, _PROT_READ, _MAP_SHARED, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    pages = ctypes.create_string_buffer(-(-length // _PAGE))
    failed = library.mincore(address, length, pages)
    library.munmap(address, length)
    return None if failed else b"\0" not in pages.raw


def page_of(offset: int) -> int:
    """Where the page begins in which an offset is."""
    return offset - offset % _PAGE
