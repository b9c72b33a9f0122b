# pyright: strict
"""The shapes of a problem: those of its module constants, and the sets of its `get_input_sets()`.

Called by `pool.py`. Only running a file shows how many sets its `get_input_sets()` returns, so a
judge's sandboxed child lists them, once for each problem.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.records.examination import Flag
from forge.records.problem import MAX_SHAPES, Shape, has_input_sets, select_input_set

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from forge.records.examination import Examination
    from forge.records.problem import ReferenceModule

MAX_LISTED = 1024
"""Number of sources whose sets are remembered."""
PASSING = frozenset({Flag.CRASH, Flag.SLOW, Flag.OUT_OF_MEMORY})
"""Flags that a busy or broken machine may have caused: another listing may succeed."""


class ShapesUnknown(Exception):
    """The shapes of a problem cannot be listed, or are too many; one line.

    Attributes:
        flags: flags of the listing.
    """

    def __init__(self, message: str, *, flags: Mapping[Flag, str]) -> None:
        super().__init__(message)
        self.flags = dict(flags)


class ShapeLister:
    """Lists the shapes of problems and remembers them."""

    def __init__(self, ask: Callable[[ReferenceModule], Awaitable[Examination]]) -> None:
        """`ask` has a judge list the input sets of a problem."""
        self._ask = ask
        self._listed: OrderedDict[str, Examination] = OrderedDict()

    async def list_shapes(self, problem: ReferenceModule) -> tuple[Shape, ...]:
        """The shapes of a problem; empty if `problem.source` is all. Raises ShapesUnknown, and
        what `ask` raises."""
        shapes: list[Shape] = []
        is_listed = False
        for shape in problem.shapes or (Shape(name="", source=problem.source),):
            if not has_input_sets(shape.source):
                shapes.append(shape)
                continue
            is_listed = True
            names = await self._names(replace(problem, source=shape.source, shapes=()))
            for number, name in enumerate(names):
                title = ": ".join(filter(None, (shape.name, name)))
                source = select_input_set(shape.source, number)
                shapes.append(Shape(name=title, source=source))
        if len(shapes) > MAX_SHAPES:
            message = f"{len(shapes)} shapes; at most {MAX_SHAPES}"
            raise ShapesUnknown(message, flags={Flag.UNSUPPORTED: message})
        return tuple(shapes) if is_listed else problem.shapes

    async def _names(self, problem: ReferenceModule) -> tuple[str, ...]:
        found = self._listed.get(problem.source)
        if found is None:
            found = await self._ask(problem)
            if not PASSING & found.flags.keys():
                self._listed[problem.source] = found
            while len(self._listed) > MAX_LISTED:
                self._listed.popitem(last=False)
        if found.flags or not found.shapes:
            facts = next(iter(found.flags.values()), "no set was listed")
            flags = found.flags or {Flag.DOES_NOT_RUN: facts}
            raise ShapesUnknown(f"get_input_sets() of {problem.problem_id}: {facts}", flags=flags)
        return found.shapes
