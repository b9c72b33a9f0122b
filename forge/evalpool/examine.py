# pyright: strict
"""Examines many problems with the judges of one pool.

Called by `forge problems check` and by a run that prepares GRPO on problems from a directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.evalpool.pool import Pool
    from forge.records.examination import Examination
    from forge.records.problem import ReferenceModule


async def examine_all(
    pool: Pool, problems: Sequence[ReferenceModule], *, num_at_once: int, done: Callable[[], None]
) -> list[Examination]:
    """Examines problems in a pool, `num_at_once` at a time.

    Args:
        done: called after each examination.

    Returns:
        One examination a problem, in the order of `problems`.
    """
    examinations: dict[int, Examination] = {}
    limiter = anyio.CapacityLimiter(num_at_once)

    async def examine(index: int, problem: ReferenceModule) -> None:
        async with limiter:
            examinations[index] = await pool.examine(problem)
        done()

    async with anyio.create_task_group() as tasks:
        for index, problem in enumerate(problems):
            tasks.start_soon(examine, index, problem)
    return [examinations[index] for index in range(len(problems))]
