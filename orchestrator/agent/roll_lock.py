"""One roll at a time behind a router: the lock of a roll, whoever's it is and from whichever machine.

It lies with one of the router's replicas, as every roll comes there. It is a file and no lock of the kernel's: a roll whose process was
killed may have left a replica out of the router, so it stands until that roll is taken up, or somebody gives it up.
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from orchestrator.agent import wire
from orchestrator.agent.private_files import sync_folder, write_private
from orchestrator.agent.state_folder import StateFolder, read_record
from orchestrator.agent.wire_router import RollLock, RollLockAction, RollLockRequest, RollLockStatus


def rolling(request: RollLockRequest, emit: Callable[[str, Any], None]) -> RollLockStatus:
    """Look at the lock, take it or release it. Of two that take it at once one gets it; the answer says whose it is then."""
    folder = StateFolder(request.state_root, request.service)
    if request.action == RollLockAction.STATUS:
        return RollLockStatus(held(folder))
    folder.create()
    with _alone(folder.path):
        standing = held(folder)
        if request.action == RollLockAction.TAKE:
            return RollLockStatus(_take(folder, request, standing))
        if standing is not None and standing.token == request.token:
            folder.rolled.unlink()
            sync_folder(folder.path)
            return RollLockStatus(None, released=standing)
        return RollLockStatus(standing)


def held(folder: StateFolder) -> Optional[RollLock]:
    """The lock that stands, None where there is none. One that can't be understood stands as well."""
    found = read_record(RollLock, folder.rolled)
    if found is not None:
        return found
    try:
        since = folder.rolled.stat().st_mtime
    except FileNotFoundError:
        return None
    return RollLock("", f"{folder.rolled} can't be understood", "", "somebody", since)


def _take(folder: StateFolder, request: RollLockRequest, standing: Optional[RollLock]) -> RollLock:
    if standing is not None and standing.token == request.token:
        return standing
    if standing is not None and standing.token != request.instead_of:
        return standing
    mine = RollLock(request.router, request.roll, request.token, request.operator, time.time())
    write_private(folder.rolled, json.dumps(wire.to_json(mine)))
    return mine


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    descriptor = os.open(str(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
