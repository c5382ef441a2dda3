"""A real browser without a window: what it draws of a page, where things lie in it, and what it asks the network for.

It is spoken to over a pipe in the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol): messages of JSON, each
ended by a zero byte; the browser reads from its descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.rig.tiers import BROWSERS

if TYPE_CHECKING:
    from PIL import Image

_PATIENCE = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests run as root, and the page is ours
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
_LAUNCH = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts a program with its descriptors where a browser wants them."""

_BOXES = """
selectors => Object.fromEntries(selectors.map(selector => [selector, [...document.querySelectorAll(selector)].map(element => {
  const {left, top, right, bottom} = element.getBoundingClientRect();
  return {left, top, right, bottom, text: element.textContent, kind: element.getAttribute('class')};
})]))
"""


@dataclass(frozen=True)
class Window:
    """A window of this size in pixels, of a phone or not, for somebody who wants light or dark pages."""

    width: int
    height: int
    phone: bool = False
    dark: bool = False


@dataclass(frozen=True)
class Box:
    """Where an element lies, in pixels from the page's corner."""

    left: float
    top: float
    right: float
    bottom: float
    text: str
    kind: str | None

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def middle(self) -> tuple[int, int]:
        return int((self.left + self.right) / 2), int((self.top + self.bottom) / 2)

    def overlaps(self, other: Box) -> bool:
        return min(self.right, other.right) > max(self.left, other.left) and min(self.bottom, other.bottom) > max(self.top, other.top)


class Chromium:
    """A browser with one page open."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._count = 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self._call("Network.enable")

    def open(self, page: Path, window: Window) -> None:
        """Load a page in such a window."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if window.dark else "light"}
        self._call("Emulation.setDeviceMetricsOverride", width=window.width, height=window.height, deviceScaleFactor=1, mobile=window.phone)
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=page.absolute().as_uri())
        self._wait_for("Page.loadEventFired")

    def drawn(self) -> Image.Image:
        """What is in the window."""
        from PIL import Image

        answer = self._call("Page.captureScreenshot", format="png")
        return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def boxes(self, *selectors: str) -> list[list[Box]]:
        """Where the elements of each selector lie, in the page's order."""
        found = self.value(f"({_BOXES})({json.dumps(selectors)})")
        return [[Box(**box) for box in found[selector]] for selector in selectors]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened, its own first."""
        return [event["params"]["request"]["url"] for event in self._events if event["method"] == "Network.requestWillBeSent"]

    def quit(self) -> None:
        self._session = None
        self._call("Browser.close")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **({"sessionId": self._session} if self._session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._events.append(answer)

    def _wait_for(self, event: str) -> None:
        while not any(item["method"] == event for item in self._events):
            self._events.append(self._read())

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            assert piece, "the browser has gone" if ready else f"the browser said nothing for {_PATIENCE:g} s"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def running_chromium(folder: Path) -> Iterator[Chromium]:
    """A browser with its profile in `folder`, which is ended with all its helpers."""
    program = next(found for name in BROWSERS if (found := shutil.which(name)))
    reads, to_browser = os.pipe()
    from_browser, writes = os.pipe()
    command = [sys.executable, "-c", _LAUNCH, str(reads), str(writes), program, *_FLAGS, f"--user-data-dir={folder}"]
    with (folder / "browser.log").open("wb") as log:
        browser = subprocess.Popen(
            command, pass_fds=(reads, writes), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    os.close(reads)
    os.close(writes)
    try:
        chromium = Chromium(to_browser, from_browser)
        yield chromium
        chromium.quit()
        browser.wait(_PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait(_PATIENCE)
        os.close(to_browser)
        os.close(from_browser)


def places_of(colour: tuple[int, int, int], image: Image.Image, row: int) -> list[int]:
    """Where a colour stands in a row of pixels."""
    return [x for x in range(image.width) if image.getpixel((x, row)) == colour]
