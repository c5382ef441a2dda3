"""Events are found among stray output, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent import wire
from orchestrator.remote.frames import KEPT, FrameDecoder, FrameError, Tail

TOKEN = "0123456789abcdef"
PROGRESS = TOKEN + '1 {"kind":"progress","data":{"n":1}}\n'
RESULT = TOKEN + '1 {"kind":"result","data":{}}\n'


def test_clean_frames() -> None:
    decoder = FrameDecoder(TOKEN)

    assert decoder.feed((PROGRESS + RESULT).encode()) == [wire.Event("progress", {"n": 1}), wire.Event("result", {})]
    assert decoder.stray.lines() == []


def test_an_event_in_pieces() -> None:
    decoder = FrameDecoder(TOKEN)
    pieces = [f'{TOKEN}1+{{"kind":"lo\n', "noise\n", f'more{TOKEN}1+g","data":{{"text":"\u00e9', "\n", f'{TOKEN}1 "}}}}\n']

    events = [event for piece in pieces for event in decoder.feed(piece.encode())]

    assert events == [wire.Event("log", {"text": "\u00e9"})]
    assert decoder.stray.lines() == ["noise", "more"]


def test_stray_output_is_kept_apart() -> None:
    decoder = FrameDecoder(TOKEN)
    text = 'Welcome to gpu1!\n{"kind":"result"}\nno newline' + PROGRESS + "noise\n\n" + RESULT + "bye"

    events = decoder.feed(text.encode())
    decoder.finish()

    assert [event.kind for event in events] == ["progress", "result"]
    assert decoder.stray.lines() == ["Welcome to gpu1!", '{"kind":"result"}', "no newline", "noise", "bye"]


@given(st.lists(st.integers(1, 60), max_size=40), st.binary(max_size=50).filter(lambda noise: TOKEN.encode() not in noise))
def test_cuts_do_not_matter(sizes: list[int], noise: bytes) -> None:
    stream = noise + b"\n" + PROGRESS.encode() + noise.replace(b"\n", b"") + RESULT.encode()
    decoder, kinds, start = FrameDecoder(TOKEN), [], 0

    for size in [*sizes, len(stream)]:
        kinds += [event.kind for event in decoder.feed(stream[start : start + size])]
        start += size

    assert kinds == ["progress", "result"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (TOKEN + '2 {"kind":"result","data":{}}', "speaks protocol 2, this program 1"),
        (TOKEN + '1 {"kind":"result","da', "damaged event"),
        (TOKEN + '1 {"kind":"result"}', "damaged event"),
        (TOKEN + "garbage", "no header"),
        (TOKEN + '1 {"kind":"result","data":{},"extra":1}', "unknown field 'extra'"),
    ],
)
def test_a_bad_frame_is_refused(line: str, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        FrameDecoder(TOKEN).feed(line.encode() + b"\n")


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.remote.frames.MAX_FRAME", 1000)
    decoder = FrameDecoder(TOKEN)
    decoder.feed(b"x" * 900)

    with pytest.raises(FrameError, match="without an end"):
        decoder.feed(b"x" * 200)


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = Tail()
    for number in range(10_000):
        tail.add(b"line %d\n" % number)

    assert tail.lines()[-1] == "line 9999"
    assert sum(len(line) + 1 for line in tail.lines()) <= KEPT
