# pyright: strict
"""Examines many problems with the judges of one pool.

Called by `forge problems check` and by a run that prepares GRPO on problems from a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

from forge.records.examination import Flag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.records.examination import Examination
    from forge.records.problem import ReferenceModule

DOUBTED = frozenset({Flag.OUT_OF_MEMORY, Flag.SLOW})
"""Flags that a problem may get only because others were examined on the same card."""


class Examines(Protocol):
    """A pool of judges that examine problems."""

    @property
    def num_judges(self) -> int:
        """Number of judges: each examines one problem alone on its card, or on its core."""
        ...

    @property
    def num_examined(self) -> int:
        """Number of problems to examine at once; several share a card."""
        ...

    async def examine(self, problem: ReferenceModule) -> Examination:
        """The examination of one problem."""
        ...


async def examine_all(
    pool: Examines, problems: Sequence[ReferenceModule], *, done: Callable[[], None]
) -> list[Examination]:
    """Examines problems in a pool, several at a time. Where problems share a card, those that may
    have lacked memory or time for it are examined again, each alone on a card.

    Args:
        done: called after the first examination of each.

    Returns:
        One examination a problem, in the order of `problems`.
    """
    found: dict[int, Examination] = {}

    async def examine(index: int, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            is_first = index not in found
            found[index] = await pool.examine(problems[index])
        if is_first:
            done()

    async def examine_some(indices: Sequence[int], *, num_at_once: int) -> None:
        limiter = anyio.CapacityLimiter(num_at_once)
        async with anyio.create_task_group() as tasks:
            for index in indices:
                tasks.start_soon(examine, index, limiter)

    await examine_some(range(len(problems)), num_at_once=pool.num_examined)
    if pool.num_examined > pool.num_judges:
        doubted = [index for index, each in found.items() if not DOUBTED.isdisjoint(each.flags)]
        await examine_some(sorted(doubted), num_at_once=pool.num_judges)
    return [found[index] for index in range(len(problems))]
