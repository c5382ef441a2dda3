"""Commands around orders, and webhooks, in the inventory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.config import Hooks, load_inventory, resolve_webhook
from orchestrator.config.models import Service
from orchestrator.errors import ConfigError

WriteInventory = Callable[[Mapping[str, str | None]], Path]

URL = "https://hooks.example/services/T0/B0/canary-hook-41x"
SERVICE = """
name: model
host: box
python: /opt/sglang/bin/python
model: /models/m
"""
HOOKS = """
hooks:
  before:
    - [./drain, --out, "$HOME; rm -rf /"]
    - command: [logger, begins]
      timeout: 5.0
      on_failure: warn
  after:
    - [~/bin/undrain]
"""


def load(write_inventory: WriteInventory, more: str) -> tuple[Path, Service]:
    folder = write_inventory({"services/model.yml": SERVICE + more})
    return folder, load_inventory(folder).services["model"]


def test_a_list_is_a_command_and_a_path_counts_from_the_inventory(write_inventory: WriteInventory) -> None:
    folder, service = load(write_inventory, HOOKS)
    first, second = service.hooks.before
    assert first.command == [f"{folder}/drain", "--out", "$HOME; rm -rf /"], "no shell"
    assert (first.timeout, first.on_failure) == (30.0, "refuse")
    assert (second.command, second.timeout, second.on_failure) == (["logger", "begins"], 5.0, "warn")
    assert service.hooks.after[0].command == [str(Path.home() / "bin" / "undrain")]


def test_the_hosts_come_first_and_what_both_name_comes_once(write_inventory: WriteInventory) -> None:
    host = (
        "hosts:\n  box:\n    address: 192.0.2.1\n    container:\n      reached_by: pct\n      id: 101\n"
        "    hooks:\n      before: [[host-first], [logger, begins]]\n      after: [[host-after]]\n"
    )
    folder = write_inventory({"services/model.yml": SERVICE + HOOKS, "hosts.yml": host})
    inventory = load_inventory(folder)
    hooks = Hooks.of(inventory.hosts["box"].hooks, inventory.services["model"].hooks)
    assert [hook.command[0].rpartition("/")[2] for hook in hooks.before] == ["host-first", "logger", "drain"]
    assert [hook.command[0].rpartition("/")[2] for hook in hooks.after] == ["host-after", "undrain"]


def test_without_any_there_is_nothing_around(write_inventory: WriteInventory) -> None:
    _, service = load(write_inventory, "")
    assert (service.hooks.before, service.hooks.after, service.webhook) == ([], [], None)


def test_a_url_from_the_environment_or_a_file(write_inventory: WriteInventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_URL", URL)
    folder, service = load(write_inventory, "webhook:\n  url: env:HOOK_URL\n")
    assert service.webhook is not None
    assert (resolve_webhook(service.webhook), service.webhook.when, service.webhook.sender) == (URL, ["failure", "success"], "auto")
    (folder / "url").write_text(URL + "\n")
    _, service = load(write_inventory, "webhook:\n  url: file:url\n  when: [failure]\n  sender: operator\n")
    assert service.webhook is not None
    assert (resolve_webhook(service.webhook), service.webhook.when, service.webhook.sender) == (URL, ["failure"], "operator")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the webhook's URL can't be had here: environment variable HOOK_URL: is not set"),
        ("", "the webhook's URL can't be had here: environment variable HOOK_URL: is empty"),
        ("canary", "the webhook's URL can't be used: environment variable HOOK_URL: is not a URL that begins with https:// or http://"),
        ("https://u:canary@h/x", "the webhook's URL can't be used: environment variable HOOK_URL: holds a user, which is not supported"),
    ],
)
def test_a_url_that_can_not_be_had_or_used_is_told_without_it(
    write_inventory: WriteInventory, monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    monkeypatch.delenv("HOOK_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOK_URL", value)
    _, service = load(write_inventory, "webhook:\n  url: env:HOOK_URL\n")
    assert service.webhook is not None
    with pytest.raises(ConfigError) as refused:
        resolve_webhook(service.webhook)
    assert refused.value.message.startswith(said)
    assert "canary" not in repr(refused.value) + json.dumps(refused.value.evidence)
    assert refused.value.next_step == "export HOOK_URL=...   # in this shell"
