# pyright: strict
"""Labels of nodes, matched as Ray matches them: `x`, `!x`, `in(a,b)`, `!in(a,b)`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_WANTED = re.compile(r"(?P<not>!?)(?:in\((?P<several>.*)\)|(?P<one>.*))")


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True if a node with `labels` may have a child that wants these. A label that is absent is
    none of the named values."""
    return all(_fits(labels.get(key), value) for key, value in wanted.items())


def _fits(found: str | None, wanted: str) -> bool:
    match = _WANTED.fullmatch(wanted)
    assert match is not None
    several = match["several"]
    values = [match["one"]] if several is None else [each.strip() for each in several.split(",")]
    return (found in values) is not bool(match["not"])
