"""Posting a notice from the operator's machine, where the box could not."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from orchestrator.agent.webhook_address import parse
from orchestrator.agent.wire_notice import FateOutcome
from orchestrator.remote.beside import Beside

ATTEMPTS = 3
ATTEMPT_SECONDS = 4.0
ALL_SECONDS = 10.0
"""For all attempts together, whatever the other end does: it may answer a byte a second."""
_LATER = frozenset({429, 500, 502, 503, 504})
"""Answers that mean: not taken, but perhaps later."""

Posted = tuple[str, str]
"""A value of :class:`FateOutcome`, and why, without anything of the URL but its host."""


class _NotTakenError(Exception):
    """Surely not taken; another attempt may be."""

    def __init__(self, posted: Posted) -> None:
        super().__init__(posted[1])
        self.posted = posted


def post(url: str, text: str, sleep: Callable[[float], None] = time.sleep, seconds: float = ALL_SECONDS) -> Posted:
    """Post a text the way Slack takes it. The proxies of the operator's environment are used, as by any program of theirs.

    Tried again only where it was surely not taken: a message that was handed over and not answered may have arrived.
    """
    host = parse(url).host
    retrying = Retrying(
        retry=retry_if_exception_type(_NotTakenError),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=0.5, max=2),
        sleep=sleep,
        reraise=True,
    )
    try:
        return Beside(lambda: retrying(_post, url, text, host)).result(seconds)
    except _NotTakenError as last:
        return last.posted
    except TimeoutError:
        return FateOutcome.UNKNOWN, f"{host} did not answer within {seconds:g} s"


def _post(url: str, text: str, host: str) -> Posted:
    import httpx

    try:
        with httpx.Client(timeout=ATTEMPT_SECONDS, follow_redirects=False) as client:
            answer = client.post(url, json={"text": text})
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
        raise _NotTakenError((FateOutcome.UNREACHED, f"{host} is not reached: {_reason(error, url)}")) from None
    except httpx.TransportError as error:
        return FateOutcome.UNKNOWN, f"it was handed over to {host}, and then: {type(error).__name__}"
    except (httpx.InvalidURL, ValueError):
        return FateOutcome.UNREACHED, "the webhook's URL can't be used"
    if answer.is_success:
        return FateOutcome.DONE, f"{host} answered {answer.status_code}"
    said = " ".join(answer.text[:120].split())
    refused = FateOutcome.FAILED, f"{host} answered {answer.status_code}{f': {said}' if said.isprintable() and said else ''}"
    if answer.status_code in _LATER:
        raise _NotTakenError(refused)
    return refused


def _reason(error: Exception, url: str) -> str:
    from orchestrator.agent.webhook_address import secret_parts

    text = str(error) or type(error).__name__
    for secret in secret_parts(url):
        text = text.replace(secret, "***")
    return text
