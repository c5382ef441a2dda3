"""Pinning host keys, after a person has compared them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.errors import ConnectError, HostKeyError, RefusedError, UnreachableError
from orchestrator.flows.observer import Observer

if TYPE_CHECKING:
    from orchestrator.config import Host, Inventory
    from orchestrator.remote.endpoint import Endpoint


@dataclass(frozen=True)
class Offer:
    """The host keys that one login offers.

    Attributes:
        where: ``address:port`` of the login.
        fingerprints: as ``ssh-keygen -l`` shows them.
        trusted: all of them are known already.
        replaced: fingerprints that are trusted now and that the login no longer offers: the key has changed.
        pinned: lines written to the inventory's known_hosts.
    """

    host: str
    where: str
    fingerprints: list[str]
    trusted: bool
    replaced: list[str]
    pinned: list[str]


@dataclass(frozen=True)
class Trusted:
    """What became of each login: its offer, or why there is none. `failures` are unreachable, or have a key that has changed."""

    offers: list[Offer] = field(default_factory=list)
    failures: list[UnreachableError] = field(default_factory=list)


def trust(
    inventory: Inventory,
    host: Host,
    observer: Observer,
    confirm: Callable[[Offer], bool],
    *,
    replace: bool = False,
    container_only: bool = False,
    keep_known: bool = False,
    only: Collection[str] = (),
) -> Trusted:
    """Show the keys of every login that work on `host` goes through, and pin those that `confirm` agrees to.

    Jump hosts come first: the way to the host leads through them, so they must be trusted before it can be asked. A login that can't
    be asked holds up only those that lead through it.

    Args:
        container_only: leave out the host's own login, where the container has one of its own and does not need it.
        keep_known: pin without a question also what is trusted by OpenSSH's own file alone, so that the inventory holds it.
        only: fingerprints (``SHA256:...``) that were compared elsewhere; where there are any, no other key is offered to `confirm`.

    Raises:
        RefusedError: `confirm` did not agree.
    """
    from orchestrator.remote.place import login_endpoints

    found = Trusted()
    failed: set[Endpoint] = set()
    for endpoint in login_endpoints(inventory, host, container_only=container_only):
        observer.note(f"asking {endpoint.where} for its host keys")
        try:
            if endpoint.jump in failed:
                raise ConnectError(f"{endpoint.label}: not asked, as the way to it leads through {endpoint.jump.label}")
            found.offers.append(_trust_one(inventory, endpoint, confirm, replace=replace, keep_known=keep_known, only=only))
        except (ConnectError, HostKeyError) as error:
            failed.add(endpoint)
            found.failures.append(error)
    return found


def _trust_one(
    inventory: Inventory, endpoint: Endpoint, confirm: Callable[[Offer], bool], *, replace: bool, keep_known: bool, only: Collection[str]
) -> Offer:
    """One login.

    Raises:
        ConnectError: it can't be reached, or offers no key that could be verified.
        HostKeyError: the key has changed and `replace` is False, or none has a fingerprint of `only`; said before `confirm` is asked.
        RefusedError: `confirm` did not agree.
    """
    from orchestrator.remote.host_keys import changed_keys, compared_keys, describe_key, known_keys, pin, replaced_keys, user_known_hosts
    from orchestrator.remote.trust import fetch_host_keys

    files = (inventory.known_hosts, user_known_hosts())
    keys = fetch_host_keys(endpoint, files)
    if not keys:
        raise ConnectError(f"{endpoint.label}: {endpoint.where} offers no host key of a type that can be verified")
    if only:
        keys = compared_keys(endpoint, keys, only)
    known = known_keys(endpoint, files)
    trusted = all(key in [item.key for item in known if not item.revoked] for key in keys)
    replaced = [] if trusted else replaced_keys(keys, known)
    if replaced and not replace:
        raise changed_keys(endpoint, keys, replaced)
    fingerprints = [describe_key(key) for key in keys]
    offer = Offer(endpoint.label, endpoint.where, fingerprints, trusted, [describe_key(item.key) for item in replaced], [])
    if trusted and keep_known and not known_keys(endpoint, files[:1]):
        offer.pinned.extend(pin(inventory.known_hosts, endpoint, keys))
    if not trusted:
        if not confirm(offer):
            raise RefusedError(f"the key of {endpoint.where} was not accepted; nothing was pinned for it")
        offer.pinned.extend(pin(inventory.known_hosts, endpoint, keys, replace=replace))
    return offer
