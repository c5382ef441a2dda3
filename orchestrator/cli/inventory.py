"""hosts, services, backends, tunings, trust: what the inventory says, and pinning a host's key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.blocks import Line, Table, indented
from orchestrator.cli.common import SHARED_FLAGS, SHIPPED, load, load_for_profiles
from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.cli.documents.inventory import BackendVariant
    from orchestrator.config import Backend, Host, Inventory, TuningProfile, Variant
    from orchestrator.config.tuning import Knob
    from orchestrator.flows.trust import Offer


_HOSTS_FLAG = {"host": "Only these hosts or groups, with commas (as Fabric's -H)."}


@verb(flags={**_HOSTS_FLAG, **SHARED_FLAGS}, many_hosts=True)
def hosts(call: Call, host: str | None = None, inventory: str | None = None, json: bool = False) -> None:
    """List the inventory's hosts, how they are reached, their tuning profiles and their services; and its groups."""
    from orchestrator.cli.documents.inventory import Hosts, host_data

    loaded = load(inventory)
    chosen = _chosen(loaded, host)
    rows = []
    for item in chosen:
        place = item.place(container=item.container is not None)
        services = [service.name for service in loaded.services.values() if service.host == item.name]
        container = "-" if place.container is None else f"{place.container} by {place.reached_by}"
        gpus = "-" if item.gpus is None else str(item.gpus)
        reached_at = f"{item.user}@{item.address}:{item.port}"
        rows.append([item.name, reached_at, container, gpus, item.tuning or "-", ", ".join(services) or "-"])
    call.screen.show([Table(["host", "reached at", "container", "gpus", "tuning", "services"], rows, right=frozenset({"gpus"}))])
    groups = {name: list(members) for name, members in loaded.groups.items() if {item.name for item in chosen} & set(members)}
    if groups:
        call.screen.show([Line(), Table(["group", "hosts"], [[name, ", ".join(members)] for name, members in groups.items()])])
    for name, path in _absent_keys(chosen):
        call.screen.warn(f"{name}: identity file {path} does not exist on this machine")
    call.answer(Hosts(str(loaded.directory), [host_data(item) for item in chosen], groups))


def _chosen(inventory: Inventory, text: str | None) -> list[Host]:
    return list(inventory.hosts.values()) if text is None else [item.host for item in inventory.hosts_named(text)]


def _absent_keys(hosts: Sequence[Host]) -> list[tuple[str, str]]:
    """Identity files that are named for a host or its container and are not here, nor their public halves (for an agent)."""
    named = [
        (host.name, path)
        for host in hosts
        for path in [*host.identity_files, *(host.container.identity_files if host.container is not None else [])]
    ]
    return [(name, path) for name, path in named if not Path(path).exists() and not Path(f"{path}.pub").exists()]


@verb(flags={**_HOSTS_FLAG, **SHARED_FLAGS}, many_hosts=True)
def services(call: Call, host: str | None = None, inventory: str | None = None, json: bool = False) -> None:
    """List the inventory's services."""
    from orchestrator.cli.documents.inventory import Services, service_data

    loaded = load(inventory)
    names = {item.name for item in _chosen(loaded, host)}
    chosen = [item for item in loaded.services.values() if item.host in names]
    rows = [[item.name, item.host, item.place, str(item.port), item.model] for item in chosen]
    call.screen.show([Table(["service", "host", "place", "port", "model"], rows, right=frozenset({"port"}))])
    call.answer(Services(str(loaded.directory), [service_data(item) for item in chosen]))


@verb(
    flags={
        "sglang": "Only what there is in this SGLang version: 0.5.23.",
        "all": "Also what older SGLang versions have, a row each.",
        **SHARED_FLAGS,
    }
)
def backends(
    call: Call,
    sglang: str | None = None,
    all: bool = False,  # noqa: A002  # the flag's name
    inventory: str | None = None,
    json: bool = False,
) -> None:
    """List the backend profiles, the newest SGLang versions they exist in, their flags, and when to use them."""
    from orchestrator.cli.documents.inventory import BackendListed, Backends

    loaded = load_for_profiles(inventory)
    _name_shipped(call, loaded)
    listed = []
    rows: dict[str, list[list[str]]] = {"backend": [], "overlay": []}
    for backend in loaded.backends.values():
        variants = _variants(backend, sglang)
        listed.append(BackendListed(backend.name, backend.kind, backend.summary, [_described(variant) for variant in variants]))
        rows[backend.kind] += _variant_rows(backend.name, variants if all else variants[-1:], sglang)
    for kind, found in rows.items():
        call.screen.show([Table([kind, "SGLang", "compute capability", "flags"], found), Line()])
    if sglang is None and not all:
        call.screen.show([Line("the newest SGLang versions only; --sglang VERSION shows those of one, --all those of every one")])
    call.screen.show([Line("compute capabilities in brackets: unproven, a warning; any other than those listed is refused"), Line()])
    call.screen.show([Line("when to use it", "strong")])
    call.screen.show([Table(["backend", "use"], [[item.name, item.summary] for item in loaded.backends.values()])])
    call.answer(Backends(str(loaded.directory), sglang, listed))


def _name_shipped(call: Call, loaded: Inventory) -> None:
    """Say where the profiles lie that are shown in place of an inventory's."""
    if loaded.chosen_by != SHIPPED:
        return
    where = f"no inventory here: these come with the program and lie in {loaded.directory}; fab init ADDRESS makes an inventory with them"
    call.screen.show([Line(where, "quiet"), Line()])


def _variant_rows(name: str, variants: Sequence[Variant], sglang: str | None) -> list[list[str]]:
    if not variants:
        return [[name, "-", "-", f"does not exist in SGLang {sglang}"]]
    rows = []
    for index, variant in enumerate(variants):
        flags = f"not available: {variant.refused}" if variant.refused else _flags(variant)
        rows.append(["" if index else name, str(variant.sglang).replace(",", " "), _capabilities(variant), flags])
    return rows


def _variants(backend: Backend, sglang: str | None) -> list[Variant]:
    if sglang is None:
        return list(backend.variants)
    from orchestrator.config.versions import Version

    try:
        version = Version.parse(sglang)
    except ValueError as error:
        raise UsageError(f"--sglang: {error}") from None
    return [variant for variant in backend.variants if version in variant.sglang][:1]


def _capabilities(variant: Variant) -> str:
    """Where it is known to work; those in brackets are where nobody has shown it."""
    needs = variant.requirements
    return " ".join([*needs.compute_capability, *(f"({item})" for item in needs.compute_capability_unproven)]) or "any"


def _flags(variant: Variant) -> str:
    variables = [f"{name}={value}" for name, value in variant.environment.items()]
    return " ".join([*variables, *(_flag(name, value) for name, value in variant.arguments.items())]) or "none"


def _flag(name: str, value: object) -> str:
    if value is True:
        return name
    return f"{name} (left out)" if value is False else f"{name} {_value(value)}"


def _value(value: object) -> str:
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _described(variant: Variant) -> BackendVariant:
    from orchestrator.cli.documents.inventory import BackendVariant

    arguments, environment = dict(variant.arguments), dict(variant.environment)
    return BackendVariant(str(variant.sglang), arguments, environment, variant.requirements, variant.refused)


@verb(flags={"profile": "Only this tuning profile, and why each of its knobs is in it.", **SHARED_FLAGS})
def tunings(call: Call, profile: str | None = None, inventory: str | None = None, json: bool = False) -> None:
    """List the tuning profiles: what the knobs of a machine should be."""
    from orchestrator.cli.documents.inventory import Tunings

    loaded = load_for_profiles(inventory)
    _name_shipped(call, loaded)
    chosen = list(loaded.tunings.values()) if profile is None else [loaded.tuning(profile)]
    for item in chosen:
        call.screen.show(
            [Line(item.name, "strong"), Line(f"  {item.summary}"), *_expectations(item), _knob_table(item, profile is not None)]
        )
        call.screen.show([Line()])
    if not chosen:
        call.screen.show([Line(f"there is none; write one: {loaded.directory}/tuning/NAME.yml, and tuning: NAME for a host in hosts.yml")])
    elif profile is None:
        call.screen.show([Line("why each knob is in a profile: fab tunings --profile NAME", whole=True)])
    call.answer(Tunings(str(loaded.directory), [_tuning(item) for item in chosen]))


def _expectations(profile: TuningProfile) -> list[Line]:
    expected = {"kernel": profile.expect.kernel, "driver": profile.expect.driver}
    said = ", ".join(f"{name} {pattern}" for name, pattern in expected.items() if pattern is not None)
    return [Line(f"  made for {said}")] if said else []


def _knob_table(profile: TuningProfile, with_why: bool) -> Table:
    columns = ["knob", "value", "persists", *(["why"] if with_why else [])]
    rows = [
        [_knob(knob), knob.value or "only read", "yes" if knob.persists else "-", *([knob.why or "-"] if with_why else [])]
        for knob in profile.knobs
    ]
    return Table(columns, rows)


def _knob(knob: Knob) -> str:
    where = ", in the container" if knob.place == "container" else ""
    return f"{knob.knob} {knob.name}".rstrip() + where


def _tuning(profile: TuningProfile) -> TuningProfile:
    """With the word on each knob whether it would be set at boot."""
    return profile.model_copy(update={"knobs": [knob.model_copy(update={"persist": knob.persists}) for knob in profile.knobs]})


@verb(
    positional=["host"],
    flags={
        "host": "Host, by its inventory name; HOST/CONTAINER (gpu1/101): its container's login alone.",
        "replace": "Forget the key that is pinned and has changed: the host was reinstalled.",
        "yes": "Do not ask: the fingerprints were compared elsewhere.",
        **SHARED_FLAGS,
    },
)
def trust(call: Call, host: str, replace: bool = False, yes: bool = False, inventory: str | None = None, json: bool = False) -> int:
    """Show a host's key fingerprints and pin them in the inventory's known_hosts."""
    from orchestrator.cli.documents.envelope import Problem
    from orchestrator.cli.documents.inventory import Trusted
    from orchestrator.cli.text import commands, error_blocks
    from orchestrator.flows.trust import trust as pin

    loaded = load(inventory)
    named = loaded.host_named(host)
    call.interrupted = "interrupted; keys that were accepted before are pinned"
    found = pin(
        loaded,
        named.host,
        call.screen,
        lambda offer: accepted(call, offer, yes=yes),
        replace=replace,
        container_only=named.by_container,
    )
    for offer in found.offers:
        replaced = ", instead of the old ones" if offer.replaced else ""
        what = "trusted already" if offer.trusted else f"pinned in {loaded.known_hosts}{replaced}"
        call.screen.show([Line(f"{offer.host}, {offer.where}: {what}", "good")])
    for error in found.failures:
        call.screen.error(error_blocks(error.message, error.evidence, error.next_step, commands(error.see)))
    code = max((error.exit_code for error in found.failures), default=0)
    call.answer(Trusted(str(loaded.known_hosts), found.offers, [Problem.of(error) for error in found.failures]))
    return code


def accepted(call: Call, offer: Offer, *, yes: bool, flags: str = "--yes") -> bool:
    """Whether these are the host's keys: by ``--yes``, or by the answer of whoever sits at the terminal.

    Args:
        flags: what says the same on the command line.

    Raises:
        UsageError: nobody sits there.
    """
    if offer.replaced:
        heading = f"{offer.host}, {offer.where}: the host key has CHANGED. Pinned, and to be forgotten:"
        call.screen.show([Line(heading, "bad"), *indented(offer.replaced)])
    call.screen.show([Line(f"{offer.host}, {offer.where}, offers:", "strong"), *indented(offer.fingerprints)])
    call.screen.show(
        [Line("compare with the host's own, on its console: for f in /etc/ssh/ssh_host_*_key.pub; do ssh-keygen -lf $f; done")]
    )
    if yes:
        return True
    if not call.screen.interactive:
        flags = "--replace --yes" if offer.replaced else flags
        raise UsageError(
            "nobody can be asked here: nothing was pinned", evidence=offer.fingerprints, next_step=f"compare, then give {flags}"
        )
    question = "replace the pinned key by these: are they the host's?" if offer.replaced else "are these the host's keys?"
    return call.confirm(question)
