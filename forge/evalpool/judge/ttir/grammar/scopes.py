"""Values in scope while a function is read, by name. The base of `parser`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.scan import VALUE, Scanner

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.types import Type

MAX_OPERATIONS = 100_000


class Scopes:
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
