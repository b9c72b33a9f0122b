"""An operation while it is read: its head, the types that it prints, and what is known so far.

Made by `parser`, filled by the other files of this room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.tree import Region

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.types import Type
    from forge.evalpool.judge.ttir.values import Attribute


@dataclass(slots=True)
class Head:
    """The part of an operation before its types."""

    operands: list[int] = field(default_factory=list[int])
    words: list[str] = field(default_factory=list[str])
    attributes: dict[str, Attribute] = field(default_factory=dict[str, "Attribute"])
    groups: list[int] = field(default_factory=list[int])
    """Number of operands in each pair of square brackets."""
    regions: list[Region] = field(default_factory=list[Region])


@dataclass(slots=True)
class Printed:
    """The types that an operation prints: before and behind `->` or `to`."""

    left: list[Type] = field(default_factory=list["Type"])
    right: list[Type] | None = None


@dataclass(slots=True, kw_only=True)
class Draft:
    """An operation whose successors are still labels."""

    name: str
    line: int
    index: int
    operands: list[int] = field(default_factory=list[int])
    results: tuple[int, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict[str, "Attribute"])
    regions: list[Region] = field(default_factory=list[Region])
    targets: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])
