"""Keeping secrets on the box: what is one, taking them out of an argument vector, and out of everything that leaves.

Two nets, one behind the other. :class:`Scrubber` replaces *known values* in whatever form they come; :func:`mask_patterns`
masks what stands where SGLang puts a secret (``api_key='...'`` in its log, ``launch_command`` in /server_info) even when the
value is not known.
"""

import base64
import json
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from orchestrator.agent import wire

MASK = "***"

SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
"""SGLang's arguments whose value is a secret (srt/server_args.py, 0.5.6 to 0.5.23; --admin-api-key from 0.5.9)."""

SHORTEST_SECRET = 4
"""Shorter values are not scrubbed: they stand in any text by chance, so masking them would destroy it and hide nothing (a
secret of three characters is guessed, not read)."""

SHORTEST_ENCODED = 8
"""As above for the middle of a base64 text, whose ends depend on what surrounds the secret."""

SHORTEST_ABBREVIATION = len("--api")

_EVERYDAY_WORD = re.compile(r"true|false|none|null|auto|default|empty|\d{1,7}", re.IGNORECASE)
"""Values that a variable with a telling name may have without being a secret (``USE_TOKEN_CACHE=true``); they stand anywhere."""

_SECRET_VARIABLE = re.compile(r"TOKEN(?!S|IZ)|KEY|SECRET|PASSW(OR)?D|CREDENTIAL", re.IGNORECASE)
_URL_ACCOUNT = re.compile(r"(?P<before>://[^/\s:@]*:)(?P<quote>)(?P<secret>[^/\s@]+)(?=@)")

_NAME = r"(?:[\w-]*api[_-]?key|\w*access[_-]key|\w*secret(?:[_-]key)?|[\w-]*passw(?:or)?d|\w*auth[_-]token|hf[_-]token|bearer[_-]token)"
_FLAG = r"--(?:(?:admin-)?api-key|ssl-keyfile-password)"
_BEFORE_QUOTED = (rf"(?i:\b{_NAME})(?:\\?['\"])?\s*[:=]\s*", rf"{_FLAG}(?:\\?['\"]?\s*,\s*|[= ]\s*)")
_BEFORE_BARE = (rf"(?i:\b{_NAME})=", rf"{_FLAG}[= ]", r"(?i:authorization)(?:\\?['\"])?\s*[:=]\s*(?:\\?['\"])?(?i:bearer|basic)\s+")
_QUOTED = (
    r"(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\\n])*(?P=quote)",  # Python's repr, JSON, a shell
    r"(?P<quote>\\['\"])(?:(?!(?P=quote))[^\n])*(?P=quote)",  # JSON inside of JSON
)
_BARE = r"(?P<quote>)(?!None\b)[^\s,'\"\\)]+"
_SECRET_ARGUMENT = re.compile(_NAME, re.IGNORECASE)
_PATTERNS = [
    *(re.compile(f"(?P<before>{before}){value}") for before in _BEFORE_QUOTED for value in _QUOTED),
    *(re.compile(f"(?P<before>{before}){_BARE}") for before in _BEFORE_BARE),
    _URL_ACCOUNT,
]
_MASKED = rf"\g<before>\g<quote>{MASK}\g<quote>"


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name may hold a secret; TOKENIZERS_PARALLELISM and MAX_TOKENS don't."""
    return _SECRET_VARIABLE.search(name) is not None


def is_secret_argument(name: str) -> bool:
    """Whether an argument of SGLang's (``--api-key`` or ``api_key``) or a field of a JSON document holds a secret."""
    return _SECRET_ARGUMENT.fullmatch(name.lstrip("-")) is not None


def mask_patterns(text: str) -> str:
    """Mask what stands where a secret is known to stand, whatever its value."""
    for pattern in _PATTERNS:
        text = pattern.sub(_MASKED, text)
    return text


def _secret_flag(argument: str) -> Optional[str]:
    """The secret flag that an argument names; argparse also takes an unambiguous abbreviation."""
    flag = argument.split("=", 1)[0]
    if flag in SECRET_FLAGS:
        return flag
    # --ssl-keyfile is a flag of its own, so its start is never an abbreviation of --ssl-keyfile-password.
    known = [full for full in SECRET_FLAGS if full.startswith(flag) and not "--ssl-keyfile".startswith(flag)]
    return known[0] if len(known) == 1 and len(flag) >= SHORTEST_ABBREVIATION else None


def split_secrets(arguments: Sequence[str]) -> Tuple[List[str], Dict[str, str]]:
    """Move secret values out of an argument vector; return what is left and argument name (``api-key``) -> value."""
    left: List[str] = []
    secrets: Dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        flag = _secret_flag(argument)
        if flag is None:
            left.append(argument)
            continue
        _, equals, value = argument.partition("=")
        secrets[flag[2:]] = value if equals else next(rest, "")
    return left, secrets


def mask_arguments(arguments: Sequence[str]) -> List[str]:
    """The argument vector with secret values masked, everything else in place."""
    masked: List[str] = []
    rest = iter(arguments)
    for argument in rest:
        if _secret_flag(argument) is None:
            masked.append(mask_patterns(argument))
        elif "=" in argument:
            masked.append(argument.split("=", 1)[0] + "=" + MASK)
        else:
            masked.append(argument)
            masked.extend(MASK for _ in [next(rest, None)] if _ is not None)
    return masked


def secret_values(arguments: Sequence[str] = (), environment: Optional[Mapping[str, str]] = None) -> Set[str]:
    """The secret values in an argument vector and an environment, accounts in URLs (``http://user:password@proxy``) included."""
    values = set(split_secrets(arguments)[1].values())
    for name, value in (environment or {}).items():
        if is_secret_variable(name):
            values.add(value)
        values.update(match.group("secret") for match in _URL_ACCOUNT.finditer(value))
    return values


def _forms(value: str) -> Set[str]:
    """The value in every form in which it may come back: JSON, repr, URL, systemd's doubled ``$``, base64."""
    from urllib.parse import quote, quote_plus

    forms = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        value.replace("$", "$$"),
        value.replace("%", "%%"),
        value.replace("'", "'\"'\"'"),
    }
    forms.update(form for form in _base64_forms(value.encode("utf-8")) if len(form) >= SHORTEST_ENCODED)
    return forms


def _base64_forms(value: bytes) -> Iterable[str]:
    """What base64 makes of the value wherever it starts (in ``user:VALUE``, say), less the characters shared with neighbours."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + value)
        start = (0, 2, 3)[offset]
        end = (offset + len(value)) * 8 // 6
        middle = encoded[start:end].decode("ascii")
        yield middle
        yield middle.replace("+", "-").replace("/", "_")


class Scrubber:
    """Replaces secret values in whatever leaves the box.

    Values shorter than :data:`SHORTEST_SECRET` and everyday words are ignored, see there. With `patterns`, what
    :func:`mask_patterns` knows is masked too.
    """

    def __init__(self, values: Iterable[str] = (), *, patterns: bool = True) -> None:
        self._patterns = patterns
        forms: Set[str] = set()
        for value in values:
            if len(value) >= SHORTEST_SECRET and not _EVERYDAY_WORD.fullmatch(value):
                forms |= _forms(value)
        # The longest first: a secret may be the start of another one.
        ordered = sorted(forms, key=len, reverse=True)
        self._values = re.compile("|".join(re.escape(form) for form in ordered)) if ordered else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._values is not None:
            text = self._values.sub(MASK, text)
        return mask_patterns(text) if self._patterns else text

    def data(self, value: Any) -> Any:
        """A structure of JSON's own types without secrets, in keys and under telling names (``api_key``) too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self._member(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def _member(self, name: str, value: Any) -> Any:
        is_secret = is_secret_variable(name) if name.isupper() else is_secret_argument(name)
        return MASK if is_secret and isinstance(value, str) and value else self.data(value)


def launch_scrubber(launches: Iterable[wire.Launch], more: Iterable[str] = ()) -> Scrubber:
    """A scrubber for all secrets of these launches, their own and those in their arguments and environments, and for `more`."""
    values: Set[str] = set(more)
    for launch in launches:
        values.update(launch.secrets.values(), secret_values(launch.arguments, launch.environment))
    return Scrubber(values)
