"""A webhook's URL: its parts, and what of it is a secret. Pure."""

from typing import List, NamedTuple
from urllib.parse import urlsplit

_SHORTEST_SECRET = 8
"""A shorter path (``/hook``) is no secret, and to mask it would destroy other texts."""


class Address(NamedTuple):
    """A webhook's URL in its parts. `target` is its path with the query: whoever has that may post."""

    host: str
    port: int
    tls: bool
    target: str


def parse(url: str) -> Address:
    """The parts of a URL.

    Raises:
        ValueError: it is none that can be posted to. The message holds nothing of it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("is not a URL that begins with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("holds a user, which is not supported in a webhook's URL")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (host + target).isascii() or any(character <= " " or character == "\x7f" for character in host + target):
        raise ValueError("holds a character that no URL may hold")
    tls = parts.scheme == "https"
    return Address(host, port or (443 if tls else 80), tls, target)


def secret_parts(url: str) -> List[str]:
    """What of a webhook's URL must not be seen: the whole, and what identifies it in a log or an error that names it in part."""
    try:
        target = parse(url).target
    except ValueError:
        return [url]
    pieces = [target, target.rpartition("/")[2]]
    return [url, *(piece for piece in dict.fromkeys(pieces) if len(piece) >= _SHORTEST_SECRET)]
