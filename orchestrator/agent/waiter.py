"""Stands beside a server that systemd does not look after; also the log keeper where systemd does.

Run as a file of its own (``python3 -I -S waiter.py wait`` or ``... rotate LOG LIMIT``), so it imports nothing of this package and lives on
when the order that started it has ended.

``wait``: reads what to start from standard input, starts it in a session of its own, answers with one JSON line, and then does two things
only: it keeps the log within its limit and writes down how the server ended.

``rotate``: keeps a log within its limit; with a third word, until that file says how the server ended.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional

ROTATE_SECONDS = 5.0
CLEAN_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""Deaths that systemd calls a success (systemd.service(5), SuccessExitStatus=)."""


def exit_words(status: int) -> str:
    """A wait status in systemd's words: result, code, status."""
    if os.WIFEXITED(status):
        number = os.WEXITSTATUS(status)
        return f"{'exit-code' if number else 'success'} exited {number}"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name[len("SIG") :]
    except ValueError:
        name = str(number)
    if os.WCOREDUMP(status):
        return "core-dump dumped " + name
    return f"{'success' if number in CLEAN_SIGNALS else 'signal'} killed {name}"


def write_whole(path: str, text: str) -> None:
    """Put a small file in place at once."""
    temporary = path + ".new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def rotate(log: str, limit: int) -> None:
    """Move a log that has outgrown its limit to LOG.1. The server appends to the same file all the while.

    Lines written between the last read and the truncation are lost; the copy catches up first, so that this is microseconds.
    """
    try:
        if os.stat(log).st_size < limit:
            return
        old = log + ".1"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)
        with open(log, "rb") as source, open(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as copy:
            while True:
                block = source.read(1 << 20)
                if not block:
                    break
                copy.write(block)
            copy.flush()
            os.truncate(log, 0)
    except OSError:
        return  # a full disk; the next turn tries again


def set_limits(limits: Dict[str, List[Optional[int]]]) -> None:
    """Set soft and hard limits (None: without bound), as far as this process may: a hard limit that it may not lift stays.

    A minimal Python without `resource` leaves them alone, and one that lacks a limit leaves that one.
    """
    try:
        import resource
    except ImportError:
        return
    for name, wanted in limits.items():
        number = getattr(resource, "RLIMIT_" + name, None)
        if number is None:
            continue
        soft, hard = (resource.RLIM_INFINITY if bound is None else bound for bound in wanted)
        most = resource.getrlimit(number)[1]
        for soft_and_hard in ((soft, hard), (_lower(soft, most, resource.RLIM_INFINITY), most)):
            try:
                resource.setrlimit(number, soft_and_hard)
                break
            except (OSError, ValueError):
                continue


def _lower(one: int, other: int, unbounded: int) -> int:
    if unbounded in (one, other):
        return other if one == unbounded else one
    return min(one, other)


def start(order: Dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the server as the leader of a new session, with nothing of ours inherited."""
    # An ignored signal stays ignored across exec; whoever started us may ignore some.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    set_limits(order["limits"])  # here, as the child may not lift them any more once it is another user
    account: Dict[str, Any] = {}
    if order["account"] is not None:
        account = {"user": order["account"]["user"], "group": order["account"]["group"], "extra_groups": order["account"]["groups"]}
    try:
        return subprocess.Popen(
            order["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=order["environment"],
            cwd=order["directory"],
            start_new_session=True,
            umask=order["umask"],
            **account,
        )
    finally:
        os.close(log)


def wait_beside(server: "subprocess.Popen[bytes]", order: Dict[str, Any]) -> None:
    """Until the server has ended: keep its log small. Then write down how it ended."""
    descriptor = os.pidfd_open(server.pid)
    while not select.select([descriptor], [], [], ROTATE_SECONDS)[0]:
        rotate(order["log"], order["log_limit"])
    _, status = os.waitpid(server.pid, 0)
    write_whole(order["exit"], exit_words(status) + "\n")


def has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return True  # the launch's folder has gone


def let_go() -> None:
    """Close what connects us with whoever started us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def wait() -> NoReturn:
    order = json.loads(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    try:
        server = start(order)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        sys.stdout.flush()
        os._exit(1)
    # A signal to everybody (a shutdown, a session's end) ends the server first; we are there to see how.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(json.dumps({"pid": server.pid, "waiter": os.getpid()}) + "\n")
    sys.stdout.flush()
    let_go()
    wait_beside(server, order)
    os._exit(0)


def main(arguments: List[str]) -> NoReturn:
    if arguments == ["wait"]:
        wait()
    log, limit, ended = arguments[1], int(arguments[2]), arguments[3] if len(arguments) > 3 else None
    while ended is None or not has_content(ended):
        time.sleep(ROTATE_SECONDS)
        rotate(log, limit)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
