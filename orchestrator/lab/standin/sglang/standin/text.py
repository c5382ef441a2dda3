"""Tokens, texts and log-likelihoods, all made up but steady: the same prompt gives the same greedy text on any backend."""

from __future__ import annotations

import random
import re
import zlib

_LIST = (
    "about after again air all also animal another answer around away back because been before began below between book both "
    "boat bring build call came carry change children city close cold come could country cross day different distance does done "
    "door down draw during early earth east eat end enough even every example eye face family farm far father feet few field "
    "find fire first fish five follow food form found four friend front game gave girl give glass gold good grass great green "
    "ground group grow half hand hard have head hear heat help high hold home horse hour house idea island just keep kind king "
    "know land language large last late learn leave left letter life light line list listen little live long look made main "
    "make many mark measure men might mile mind miss money moon more morning mother mountain move much music must name near "
    "need never next night north note nothing number often old once only open order other over page paper part people perhaps "
    "person picture piece place plain plant play point pose present problem produce pull question quick rain reach read ready "
    "real red remember rest ride right river road rock room round rule sail same science sea second seem sentence serve seven "
    "several shape ship short should show side simple since sing size sleep slow small snow some song soon sound south space "
    "special spell stand star start state stay step still stone stop story street strong study sun sure system table tail take "
    "talk teach tell ten thing think thought three through time together took top town travel tree true turn under unit until "
    "usual voice wait walk want war warm watch water week weight west wheel where white whole wind winter wood word work world "
    "write year young"
)
_WORDS = _LIST.split()

_FIRST_WORD = 1000
_COMMA, _STOP, _GARBAGE, EOS = 11, 13, 0, 151643
_FIXED = {_COMMA: ",", _STOP: ".", _GARBAGE: "!", EOS: ""}
_IDS = {word: _FIRST_WORD + index for index, word in enumerate(_WORDS)}


def encode(text: str) -> list[int]:
    """Known words are one token, other text one for every four characters or punctuation mark."""
    tokens: list[int] = []
    for piece in re.findall(r"\w+|[^\w\s]", text):
        if piece in _IDS:
            tokens.append(_IDS[piece])
        else:
            tokens.extend(10_000 + zlib.crc32(piece[at : at + 4].encode()) % 140_000 for at in range(0, len(piece), 4))
    return tokens


def decode(token: int) -> str:
    if token in _FIXED:
        return _FIXED[token]
    index = token - _FIRST_WORD
    return " " + _WORDS[index] if 0 <= index < len(_WORDS) else f" t{token}"


class Writer:
    """The tokens of one answer. `greedy` answers depend on the prompt alone; `garbage` is one token for ever."""

    def __init__(self, prompt: list[int], *, greedy: bool, garbage: bool) -> None:
        seed = zlib.crc32(repr(prompt).encode())
        self._random = random.Random(seed if greedy else None)  # noqa: S311 - words, not secrets
        self._garbage = garbage
        self._in_sentence = 0
        self.natural_length = 24 + seed % 100

    def next(self) -> int:
        if self._garbage:
            return _GARBAGE
        self._in_sentence += 1
        if self._in_sentence > 6 and self._random.random() < 0.12:
            self._in_sentence = 0
            return _STOP
        return _FIRST_WORD + self._random.randrange(len(_WORDS))


def log_likelihood(previous: int, token: int, *, runner: str, garbage: bool) -> float:
    """Natural logarithm. Runners differ in the third decimal, as different FP4 kernels do."""
    shared = zlib.crc32(f"{previous} {token}".encode())
    if garbage:
        return -9.0 - (shared % 500) / 100
    own = zlib.crc32(f"{runner} {token}".encode())
    return -0.4 - (shared % 400) / 100 + (own % 21 - 10) / 2000
