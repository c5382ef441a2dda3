"""Which variant of a backend profile is meant for the SGLang that is installed.

What its source has counts before its version number: people run git checkouts, whose number says little (``0.5.11.dev42`` may have all
of 0.5.11, ``0.0.0.dev0`` says nothing), and forks, in which a number may hold more than its release did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.config.models import Backend, Variant
from orchestrator.config.versions import Version
from orchestrator.errors import RefusedError


@dataclass(frozen=True)
class Choice:
    """The variant that is used, and what that rests on. It is `certain` where the version and what was found agree."""

    backend: str
    variant: Variant
    rests: str
    certain: bool = True


def signs(backends: Sequence[Backend]) -> list[str]:
    """What to look for in the service's Python before a variant is chosen."""
    named = [sign for backend in backends for variant in backend.variants for sign in (*variant.has, *variant.lacks)]
    return list(dict.fromkeys(named))


def choose(backend: Backend, sglang_version: str, found: Mapping[str, bool]) -> Choice:
    """The first variant whose range holds the version and which nothing that was found contradicts; else the one that fits best.

    Raises:
        RefusedError: the profile can't be had in this SGLang.
    """
    version = _number(sglang_version)
    by_number = None if version is None else next((variant for variant in backend.variants if version in variant.sglang), None)
    standing = [variant for variant in backend.variants if not _contradicted(variant, found)]
    if by_number is not None and by_number in standing:
        choice = Choice(backend.name, by_number, _rests(by_number, sglang_version, found))
    elif by_number is not None and standing:
        choice = Choice(backend.name, _nearest(backend, by_number, standing), _against(by_number, sglang_version, found), certain=False)
    elif standing and (version is None or version.dev is not None):
        shown = [variant for variant in standing if _shown(variant, found)] or standing
        why = f"version {sglang_version} says nothing" + (f"; {_seen(shown[-1], found)}" if _shown(shown[-1], found) else "")
        choice = Choice(backend.name, shown[-1], f"{why}", certain=False)
    else:
        raise _not_to_be_had(backend, sglang_version, "it does not exist there")
    if choice.variant.refused is not None:
        raise _not_to_be_had(backend, sglang_version, choice.variant.refused)
    return choice


def _number(text: str) -> Version | None:
    try:
        return Version.parse(text)
    except ValueError:
        return None


def _contradicted(variant: Variant, found: Mapping[str, bool]) -> bool:
    return any(found.get(sign) is False for sign in variant.has) or any(found.get(sign) is True for sign in variant.lacks)


def _shown(variant: Variant, found: Mapping[str, bool]) -> bool:
    """Whether everything by which the variant is known was looked for and is as it should be."""
    named = [*variant.has, *variant.lacks]
    return bool(named) and all(sign in found for sign in named) and not _contradicted(variant, found)


def _nearest(backend: Backend, by_number: Variant, standing: Sequence[Variant]) -> Variant:
    """Variants stand in the order of their versions: what is not quite this one is its neighbour."""
    place = backend.variants.index(by_number)
    return min(standing, key=lambda variant: abs(backend.variants.index(variant) - place))


def _rests(variant: Variant, sglang_version: str, found: Mapping[str, bool]) -> str:
    by_version = f"by its version {sglang_version}"
    return f"{by_version}, and {_seen(variant, found)}" if _shown(variant, found) else by_version


def _against(by_number: Variant, sglang_version: str, found: Mapping[str, bool]) -> str:
    return f"not by its version {sglang_version}: {_seen(by_number, found)}"


def _seen(variant: Variant, found: Mapping[str, bool]) -> str:
    """What was found of a variant's signs, in words."""
    named = [sign for sign in (*variant.has, *variant.lacks) if sign in found]
    return "; ".join(f"its source {'has' if found[sign] else 'has no'} {sign}" for sign in named)


def _not_to_be_had(backend: Backend, sglang_version: str, reason: str) -> RefusedError:
    ranges = "; ".join(str(variant.sglang) for variant in backend.variants if variant.refused is None) or "no version"
    return RefusedError(
        f"backend profile {backend.name} can't be had in SGLang {sglang_version}: {reason}",
        evidence=[f"{backend.name} can be had in SGLang {ranges}"],
        next_step="fab backends",
    )
