"""Files that are their owner's alone, and whole whatever happens.

Apart from the folders that hold them (:mod:`state_folder`, :mod:`host_folder`), and without their types: preparing a host keeps something
too, and is to load little.
"""

import contextlib
import os
from typing import Union

DEFAULT_ROOT = "/var/lib/orchestrator"
"""Where all that is kept in a place lies, unless the inventory says otherwise."""


def write_private(path: "Union[str, os.PathLike[str]]", content: Union[str, bytes], mode: int = 0o600) -> None:
    """Replace `path` by `content` so that a reader, or a crash, sees the old content or the new, never a part.

    The file is synced before it takes the name, and its folder after.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # write(2) knows only a number, and a full disk has to be named
        raise
    sync_folder(folder or ".")


def sync_folder(path: "Union[str, os.PathLike[str]]") -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
