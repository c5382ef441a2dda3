"""Words that follow a verb without a flag, any number of them: ``fab report RUN RUN``.

Invoke's parser knows arguments without a flag only where each must be given once. So what is typed is put in its terms before it parses:
``report A B --out F`` becomes ``report --out F --runs=A,B``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from invoke.parser import Parser, ParseResult

from orchestrator.cli.edge import GATHERING, GATHERING_VERBS


class GatheringParser(Parser):
    """Puts such words in the flags of their verbs before it parses."""

    def parse_argv(self, argv: list[str]) -> ParseResult:
        return super().parse_argv(gathered(argv, self, GATHERING))


def gathered(words: Sequence[str], parser: Parser, gathering: Mapping[str, str]) -> list[str]:
    """The command line's words behind its core flags, with each verb's bare ones in its flag.

    Args:
        parser: knows the verbs that are named in `words`, and their flags.
        gathering: verb -> the flag that its bare words are for.
    """
    rewritten: list[str] = []
    verb, bare = "", list[str]()
    takes_next = False
    for word in words:
        if takes_next or word.startswith("-"):
            takes_next = not takes_next and _takes_value(word, parser, verb)
            rewritten.append(word)
        elif verb not in gathering or (word in parser.contexts and verb not in GATHERING_VERBS):
            rewritten += [*_flag(verb, bare, gathering), word]
            verb, bare = word, []
        else:
            bare.append(word)
    return [*rewritten, *_flag(verb, bare, gathering)]


def _flag(verb: str, bare: Sequence[str], gathering: Mapping[str, str]) -> list[str]:
    return [f"--{gathering[verb]}={','.join(bare)}"] if bare else []


def _takes_value(word: str, parser: Parser, verb: str) -> bool:
    """Whether the next word is this flag's value."""
    known = [context for context in (parser.contexts.get(verb), parser.initial) if context is not None]
    flag = next((context.flags[word] for context in known if word in context.flags), None)
    return flag is not None and bool(flag.takes_value)
