"""Fetching a service's secrets on the operator's machine, at the moment they are needed."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from orchestrator.agent.webhook_address import parse
from orchestrator.config.fields import SecretSource
from orchestrator.config.hooks import WebhookModel
from orchestrator.config.models import Service
from orchestrator.config.routers import Router
from orchestrator.errors import ConfigError

COMMAND_SECONDS = 60.0
"""How long a secret's command may take: a password manager may ask its user to touch a key."""


def resolve_secrets(service: Service) -> dict[str, str]:
    """The values of the service's secrets, by SGLang argument name (``api-key``), without a trailing line break.

    Raises:
        ConfigError: a value can't be had; one line of evidence for each, without the values.
    """
    values: dict[str, str] = {}
    problems: list[str] = []
    steps: list[str] = []
    for name, source in service.secrets.items():
        try:
            values[name] = _checked(_fetch(source))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"service {service.name}: secrets.{name}: {_described(source)}: {_reason(error)}")
            steps.append(_next_step(source))
    if problems:
        missing = [name for name in service.secrets if name not in values]
        which = f"{'secret' if len(missing) == 1 else 'secrets'} {', '.join(missing)}"
        raise ConfigError(f"{which} of service {service.name} can't be had here", evidence=problems, next_step=steps[0], see=["secrets"])
    return values


def resolve_webhook(webhook: WebhookModel) -> str:
    """The webhook's URL.

    Raises:
        ConfigError: it can't be had here, or is none. The message says why, without the URL.
    """
    try:
        url = _checked(_fetch(webhook.url))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        message = f"the webhook's URL can't be had here: {_described(webhook.url)}: {_reason(error)}"
        raise ConfigError(message, next_step=_next_step(webhook.url)) from None
    try:
        parse(url)
    except ValueError as error:
        raise ConfigError(
            f"the webhook's URL can't be used: {_described(webhook.url)}: {error}", next_step=_next_step(webhook.url)
        ) from None
    return url


def resolve_router_key(router: Router) -> str | None:
    """The value of a router's key, None where it has none. Raises as :func:`resolve_secrets`."""
    if router.key is None:
        return None
    try:
        return _checked(_fetch(router.key))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        evidence = [f"router {router.name}: key: {_described(router.key)}: {_reason(error)}"]
        raise ConfigError(
            f"the key of router {router.name} can't be had here", evidence=evidence, next_step=_next_step(router.key)
        ) from None


def _next_step(source: SecretSource) -> str:
    if source.kind == "env":
        return f"export {source.target[0]}=...   # in this shell"
    if source.kind == "file":
        return f"ls -l {shlex.quote(source.target[0])}   # it must hold one line"
    return f"run {source.target[0]} by hand with the arguments that the service's file gives; it must print one line"


def _fetch(source: SecretSource) -> str:
    if source.kind == "env":
        value = os.environ.get(source.target[0])
        if value is None:
            raise ValueError("is not set")
        return value
    if source.kind == "file":
        return Path(source.target[0]).read_text(encoding="utf-8")
    finished = subprocess.run(source.target, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False)
    if finished.returncode != 0:
        raise ValueError(f"ended with status {finished.returncode}")
    return finished.stdout.decode("utf-8")


def _checked(value: str) -> str:
    value = value.rstrip("\r\n")
    if not value:
        raise ValueError("is empty")
    if any(ord(character) < 32 for character in value):
        raise ValueError("holds more than one line, or a control character")
    return value


def _described(source: SecretSource) -> str:
    if source.kind == "env":
        return f"environment variable {source.target[0]}"
    if source.kind == "file":
        return f"file {source.target[0]}"
    return f"command {source.target[0]}"


def _reason(error: Exception) -> str:
    """What went wrong, never with what a file or a program said: that may be the secret."""
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not end within {COMMAND_SECONDS:g} s"
    return str(error)
