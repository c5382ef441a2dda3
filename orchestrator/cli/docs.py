"""docs: commented examples of the configuration, a page for each class of failure, and what exit codes mean."""

from __future__ import annotations

from orchestrator.cli.edge import Call, verb
from orchestrator.errors import UsageError


@verb(
    gathers="topics",
    gathers_verbs=True,
    flags={
        "topics": "Sections, classes of failure or pages, by name.",
        "json": "Print one JSON document on standard output.",
    },
)
def docs(call: Call, topics: str = "", json: bool = False) -> None:
    """Show a section of the configuration as commented YAML, or what is known of a class of failure; without a name, which there are.

    fab docs
    fab docs service
    fab docs out_of_memory_kv_cache
    """
    from orchestrator.cli.docs_text import list_blocks, topic_blocks
    from orchestrator.cli.documents.reference import Topic, Topics
    from orchestrator.reference.pages import topics as all_topics

    known = all_topics()
    named = [name.strip() for name in topics.split(",") if name.strip()]
    for name in named:
        if name not in known:
            raise _unknown(name, list(known))
    chosen = [known[name] for name in dict.fromkeys(named)]
    call.screen.show(topic_blocks(chosen, call.screen.width) if chosen else list_blocks(list(known.values())))
    told = [Topic(topic.name, topic.kind, topic.title, topic.text if chosen else None) for topic in chosen or known.values()]
    call.answer(Topics(told))


_MOST_NAMED = 5


def _unknown(name: str, known: list[str]) -> UsageError:
    """Somebody may have seen a key, a verb, or only a word."""
    from orchestrator.cli.tasks import namespace
    from orchestrator.reference.pages import mentioning, resembling, sections_with

    message = f"there is no page {name!r}"
    with_key = sections_with(name)
    if with_key:
        return UsageError(
            f"{message}, but a key of that name", evidence=[f"in: {', '.join(with_key)}"], next_step=f"fab docs {with_key[0]}"
        )
    if name in namespace.task_names:
        return UsageError(f"{message}, but a verb of that name", next_step=f"fab {name} --help")
    if name.isdigit():
        return UsageError(message, evidence=["what each exit code means is one page"], next_step="fab docs exit-codes")
    for how, found in (("near it", resembling(name, known)), ("that speak of it", mentioning(name))):
        if found:
            return UsageError(message, evidence=[f"{how}: {', '.join(found[:_MOST_NAMED])}"], next_step=f"fab docs {found[0]}")
    return UsageError(message, next_step="fab docs")
