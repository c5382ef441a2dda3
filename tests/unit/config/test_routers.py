"""Routers in the inventory: what they say, and how they are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import load_inventory, resolve_router_key
from orchestrator.errors import ConfigError, UsageError

WriteInventory = Callable[[Mapping[str, str | None]], Path]

FRONT = """\
name: front
url: http://10.0.0.5:30001
key: env:ROUTER_KEY
replicas:
  - {service: model, worker: "http://10.0.0.1:30000"}
"""


def test_a_router_and_what_is_behind_it(write_inventory: WriteInventory, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = load_inventory(write_inventory({"routers/front.yml": FRONT}))
    router = inventory.router("front")
    assert inventory.router_of("model") is router
    assert inventory.router_of("other") is None
    assert router.replica("model").worker == "http://10.0.0.1:30000"
    assert (router.drain, router.place, router.is_local) == (300.0, "container", False)
    monkeypatch.setenv("ROUTER_KEY", "RK\n")
    assert router.address(resolve_router_key(router)).key == "RK"
    with pytest.raises(UsageError, match="there is no router 'frnot'; did you mean front"):
        inventory.router("frnot")


def test_an_inventory_without_routers_has_none(write_inventory: WriteInventory) -> None:
    inventory = load_inventory(write_inventory({}))
    assert inventory.routers == {}
    assert inventory.router_of("model") is None


def test_a_key_that_can_not_be_had_is_told_without_it(write_inventory: WriteInventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROUTER_KEY", raising=False)
    router = load_inventory(write_inventory({"routers/front.yml": FRONT})).router("front")
    with pytest.raises(ConfigError, match="key of router front") as caught:
        resolve_router_key(router)
    assert caught.value.next_step == "export ROUTER_KEY=...   # in this shell"


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:30001", True),
        ("http://localhost/", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1", False),
        ("http://localhosts", False),
    ],
)
def test_a_loopback_is_known(write_inventory: WriteInventory, url: str, local: bool) -> None:
    text = FRONT.replace("http://10.0.0.5:30001", url)
    assert load_inventory(write_inventory({"routers/front.yml": text})).router("front").is_local is local


def test_the_flags_that_it_was_started_with_are_read(write_inventory: WriteInventory) -> None:
    text = f"{FRONT}started_with: --retry-max-retries 60 --retry-initial-backoff-ms=500\n"
    settings = load_inventory(write_inventory({"routers/front.yml": text})).router("front").declared_settings
    assert settings is not None
    assert (settings.attempts, settings.first, settings.source) == (60, 0.5, "started_with: in the file of router front")
    assert load_inventory(write_inventory({"routers/front.yml": FRONT})).router("front").declared_settings is None


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("--retry-max-retries many", "not a number"),
        ("60", "does not begin with a flag"),
        ("--policy x --api-key secret", "key is written in key"),
        ("'--retry", "No closing quotation"),
    ],
)
def test_flags_that_can_not_be_are_refused(write_inventory: WriteInventory, flags: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inventory(write_inventory({"routers/front.yml": f'{FRONT}started_with: "{flags}"\n'}))
    assert why in str([caught.value.message, caught.value.evidence])
    assert "secret" not in str(caught.value.evidence)
