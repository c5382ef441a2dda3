"""Posting a text to a webhook, and whether one is reached from here. Standard library; no proxy is used, no redirect followed.

Names are looked up in libraries that know no deadline, and who answers may send a byte a second. So each call is made in a child that is
ended when its time is over (:mod:`bounded_call`), and what is imported for it is imported before.
"""

import contextlib
import http.client
import json
import mmap
import socket
import ssl
from typing import Any, Callable, NamedTuple, Optional, Tuple

from orchestrator.agent.bounded_call import call_bounded
from orchestrator.agent.webhook_address import Address, parse
from orchestrator.agent.wire_notice import FateOutcome, ReachReport, ReachRequest

REACH_SECONDS = 3.0
_INNER_MARGIN = 0.5
"""So much earlier the child gives up by itself, and can say where it stood."""
_SAID = 120
"""Characters of an answer that refuses: Slack says why in a word (``no_text``, ``invalid_token``)."""


class Posted(NamedTuple):
    """How a post ended: a value of :class:`FateOutcome`, and why, without anything of the URL but its host."""

    outcome: str
    detail: str


def reach(request: ReachRequest, emit: Callable[[str, Any], None]) -> ReachReport:
    """Make a connection and close it again."""
    address = Address(request.host, request.port, request.tls, "")
    _import_all()
    answer = call_bounded(lambda: _connect_only(address), REACH_SECONDS)
    if answer.problem is not None:
        return ReachReport(f"no connection to {request.host} port {request.port} within {REACH_SECONDS:g} s")
    return ReachReport(answer.value)


def post(url: str, text: str, seconds: float) -> Posted:
    """Post a text the way Slack takes it (``{"text": ...}``); returns within `seconds` (and half a second) whatever the other end does."""
    try:
        address = parse(url)
    except ValueError as error:
        return Posted(FateOutcome.UNREACHED, f"the webhook's URL {error}")
    body = json.dumps({"text": text}).encode("ascii")
    with contextlib.closing(mmap.mmap(-1, 1)) as handed_over:  # shared with the child, and still here when that was ended
        _import_all()
        answer = call_bounded(lambda: _post(address, body, seconds - _INNER_MARGIN, handed_over), seconds)
        if answer.problem is None:
            return Posted(*answer.value)
        if handed_over[0]:
            return Posted(FateOutcome.UNKNOWN, f"{address.host} took it and did not answer within {seconds:g} s")
        return Posted(FateOutcome.UNREACHED, f"no connection to {address.host} port {address.port} within {seconds:g} s")


def _import_all() -> None:
    """What a look-up of a name would import: the child can't."""
    "a".encode("idna")


def _connect_only(address: Address) -> Optional[str]:
    try:
        _connected(address, REACH_SECONDS - _INNER_MARGIN).close()
    except (OSError, http.client.HTTPException) as error:
        return _why(address, error)
    return None


def _post(address: Address, body: bytes, seconds: float, handed_over: mmap.mmap) -> Tuple[str, str]:
    try:
        connection = _connected(address, seconds)
    except (OSError, http.client.HTTPException) as error:
        return FateOutcome.UNREACHED, _why(address, error)
    handed_over[0] = 1
    headers = {"Content-Type": "application/json", "User-Agent": "lxc-gpu-orchestrator", "Connection": "close"}
    try:
        connection.request("POST", address.target, body=body, headers=headers)
        response = connection.getresponse()
        said = "" if 200 <= response.status < 300 else _printable(response.read1(_SAID))
    except (OSError, http.client.HTTPException) as error:
        return FateOutcome.UNKNOWN, f"it was handed over, and then: {_why(address, error)}"
    finally:
        connection.close()
    if 200 <= response.status < 300:
        return FateOutcome.DONE, f"{address.host} answered {response.status}"
    return FateOutcome.FAILED, f"{address.host} answered {response.status}{f': {said}' if said else ''}"


def _connected(address: Address, seconds: float) -> http.client.HTTPConnection:
    if address.tls:
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def _why(address: Address, error: Exception) -> str:
    where = f"{address.host} port {address.port}"
    if isinstance(error, socket.gaierror):
        return f"the name {address.host} can't be looked up: {error.strerror}"
    if isinstance(error, socket.timeout):  # before Python 3.10 it is not yet TimeoutError
        return f"{where} does not answer"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {where} is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{where} does not speak TLS as it should: {error.reason or type(error).__name__}"
    if isinstance(error, OSError):
        return f"{where}: {error.strerror or type(error).__name__}"
    return f"{where} does not speak HTTP: {type(error).__name__}"


def _printable(said: bytes) -> str:
    text = said.decode("utf-8", "replace")
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
