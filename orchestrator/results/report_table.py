"""A table of a report's page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results.markup import Markup, tag


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, class_: str = "figures") -> Markup:
    """A table that scrolls inside itself where a screen is narrow; the first cell of a row is its heading."""
    heads = tag("tr", *[tag("th", column, scope="col") for column in columns])
    body = [tag("tr", tag("th", row[0], scope="row"), *[tag("td", cell) for cell in row[1:]]) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", heads), tag("tbody", *body), class_=class_)
    return tag("div", whole, class_="scrolls", tabindex=0, role="region", aria_label=caption)
