"""Secrets are fetched when needed, and never repeated in a message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Service, resolve_secrets, secrets
from orchestrator.errors import ConfigError


def _service(references: dict[str, Any], directory: Path | None = None) -> Service:
    data = {"name": "model", "host": "box", "python": "/p", "model": "/m", "secrets": references}
    return Service.model_validate(data, context={"directory": directory})


def test_each_kind_of_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "from the environment")
    (tmp_path / "key").write_text("from a file\n")
    command = [sys.executable, "-c", "print('from a command')"]
    service = _service({"a": "env:TEST_KEY", "b": "file:key", "c": {"command": command}}, tmp_path)
    assert resolve_secrets(service) == {"a": "from the environment", "b": "from a file", "c": "from a command"}


def test_all_that_is_wrong_is_told_without_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_KEY", raising=False)
    monkeypatch.setenv("TEST_EMPTY", "")
    monkeypatch.setattr(secrets, "COMMAND_SECONDS", 0.5)
    (tmp_path / "two").write_text("hunter2\nhunter2\n")
    (tmp_path / "binary").write_bytes(b"hunter2\xff")
    failing = "import sys; print('hunter2'); print('hunter2', file=sys.stderr); sys.exit(3)"
    service = _service(
        {
            "a": "env:TEST_KEY",
            "b": "env:TEST_EMPTY",
            "c": "file:none",
            "d": "file:two",
            "e": "file:binary",
            "f": {"command": [sys.executable, "-c", failing]},
            "g": {"command": ["/nonexistent/pass"]},
            "h": {"command": [sys.executable, "-c", "import time; time.sleep(60)"]},
        },
        tmp_path,
    )
    with pytest.raises(ConfigError) as caught:
        resolve_secrets(service)
    assert caught.value.message == "secrets a, b, c, d, e, f, g, h of service model can't be had here"
    assert str(caught.value.next_step).startswith("export TEST_KEY=...")
    assert caught.value.evidence == [
        "service model: secrets.a: environment variable TEST_KEY: is not set",
        "service model: secrets.b: environment variable TEST_EMPTY: is empty",
        f"service model: secrets.c: file {tmp_path}/none: No such file or directory",
        f"service model: secrets.d: file {tmp_path}/two: holds more than one line, or a control character",
        f"service model: secrets.e: file {tmp_path}/binary: is not UTF-8 text",
        f"service model: secrets.f: command {sys.executable}: ended with status 3",
        "service model: secrets.g: command /nonexistent/pass: No such file or directory",
        f"service model: secrets.h: command {sys.executable}: did not end within 0.5 s",
    ]
