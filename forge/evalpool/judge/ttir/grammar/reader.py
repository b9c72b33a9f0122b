"""Text of a function while it is read: values in scope, and what is known of an operation.

The base of `parser`; functions of the other files take it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from forge.evalpool.judge.program.limits import MAX_OPERATIONS
from forge.evalpool.judge.ttir.scan import VALUE, Scanner
from forge.evalpool.judge.ttir.tree import Attribute, Region, Type


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


class Reader(ABC):
    """A text with the values that are in scope at its position."""

    def __init__(self, text: str) -> None:
        self.scan = Scanner(text)
        self.num_operations = self.num_labels = 0
        self.types: list[Type] = []
        """Type of each value of the current function, by its number."""
        self.names: dict[str, tuple[int, ...]] = {}
        """Values in scope by name; several for a pack (`%14:2`)."""
        self.hidden: list[list[tuple[str, tuple[int, ...] | None]]] = []
        """For each open scope: the names it defined, with what they meant outside."""

    def count(self) -> int:
        """Number of an operation. Raises InvalidModule for one too many."""
        self.num_operations += 1
        if self.num_operations > MAX_OPERATIONS:
            raise self.scan.error(f"more than {MAX_OPERATIONS} operations")
        return self.num_operations - 1

    def open_scope(self) -> None:
        """Begins a scope; a name in it hides one outside."""
        self.scan.enter()
        self.hidden.append([])

    def close_scope(self) -> None:
        """Ends a scope; names mean again what they meant outside."""
        self.scan.leave()
        for name, before in reversed(self.hidden.pop()):
            if before is None:
                del self.names[name]
            else:
                self.names[name] = before

    def define(self, name: str, types: list[Type]) -> tuple[int, ...]:
        """Numbers of new values, one for each type, that a name stands for."""
        first = len(self.types)
        self.types.extend(types)
        values = tuple(range(first, first + len(types)))
        self.hidden[-1].append((name, self.names.get(name)))
        self.names[name] = values
        return values

    def value(self) -> int:
        """Number of the value that comes next. Raises InvalidModule if it is not in scope."""
        match = self.scan.match(VALUE, "a value")
        values = self.names.get(match[1])
        place = int(match[2] or 0)
        if values is None or place >= len(values):
            raise self.scan.error(f"{match[0]} is not defined before its use")
        return values[place]

    def result_list(self) -> list[Type]:
        """`T`, or `(T, T)` with or without attributes."""
        if not self.scan.accept("("):
            return [self.scan.type()]
        found: list[Type] = []
        for _ in self.scan.items(")"):
            found.append(self.scan.type())
            if self.scan.peek("{"):
                self.scan.attributes()
        return found

    def operand_type(self, draft: Draft, place: int) -> Type:
        """Type of an operand. Raises InvalidModule where there is none."""
        if not 0 <= place < len(draft.operands):
            raise self.scan.error(f"{draft.name} has too few operands")
        return self.types[draft.operands[place]]

    @abstractmethod
    def region(self, arguments: list[int] | None = None, *, is_open: bool = False) -> Region:
        """`{ ... }`; `arguments` belong to the entry block and may be in scope already."""
