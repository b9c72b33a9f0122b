# pyright: strict
"""Index ranges that cover a tensor, each of as many elements as are cheap at once, and the threads
that share them.

Used by everything in this room that makes several passes over a tensor. On a card a block is as
large as memory allows; on a CPU it is as small as a core's cache, since a pass over fresh memory
costs five times one over memory that is at hand. Such blocks are too small for torch's own threads,
which wait for each other behind each operation: a thread has blocks of its own instead.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Future

    import torch

CHUNK = 1 << 25
"""Elements at once on a card: their squares and differences in float64 take about 1 GB."""
CACHED = 1 << 17
"""Elements at once on a CPU: 1 MB in float64."""
BACKLOG = 2
"""Calls that wait for each of several threads before the caller works itself."""

Block = tuple[slice, ...]
Found = TypeVar("Found")
Given = ParamSpec("Given")


def limit_on(device: torch.device) -> int:
    """Elements that are computed at once there."""
    return CACHED if device.type == "cpu" else CHUNK


def blocks_of(tensor: torch.Tensor) -> Iterator[Block]:
    """Index ranges that cover a tensor, in order."""
    return blocks(tuple(tensor.shape), limit_on(tensor.device))


def blocks(shape: Sequence[int], limit: int) -> Iterator[Block]:
    """Index ranges that cover `shape`, each of at most `limit` elements, in order."""
    if math.prod(shape) <= limit or not shape:
        yield tuple(slice(0, size) for size in shape)
        return
    inner = math.prod(shape[1:])
    if inner > limit:
        for index in range(shape[0]):
            for rest in blocks(shape[1:], limit):
                yield (slice(index, index + 1), *rest)
        return
    step = max(1, limit // inner)
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])), *(slice(0, n) for n in shape[1:]))


class Threads:
    """Threads of this process: one, until `use` gives it more."""

    def __init__(self) -> None:
        self.num = 1
        self._others: ThreadPoolExecutor | None = None

    def use(self, num: int) -> None:
        """Computes with as many from now on, each operation of torch too."""
        import torch

        if num != self.num and self._others is not None:
            self._others.shutdown()
            self._others = None
        self.num = num
        torch.set_num_threads(num)

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Within, an operation of torch has one thread."""
        if self.num == 1:
            yield
            return
        import torch

        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self.num)

    def share_out(
        self, found: Sequence[Block], work: Callable[[Sequence[Block]], Found]
    ) -> list[Found]:
        """Results of `work` on consecutive shares of the blocks, one for each thread, in order."""
        if self.num == 1 or len(found) < self.num:
            return [work(found)]
        size = -(-len(found) // self.num)
        first, *others = (found[at : at + size] for at in range(0, len(found), size))
        with self.held_back():
            running = [self._pool().submit(_without_gradients, work, one) for one in others]
            try:
                return [work(first), *(one.result() for one in running)]
            finally:
                wait(running)

    @contextmanager
    def each(self, work: Callable[Given, None]) -> Generator[Callable[Given, None]]:
        """Within, calls of `work` in another thread, if there is one, beside what the caller does;
        in the caller's while the others have enough to do. All have ended behind the block."""
        if self.num == 1:
            yield work
            return
        with self.held_back():
            running: list[Future[None]] = []

            def begin(*given: Given.args, **named: Given.kwargs) -> None:
                if len(running) >= BACKLOG * self.num and not running[-BACKLOG * self.num].done():
                    work(*given, **named)
                    return
                running.append(self._pool().submit(_without_gradients, work, *given, **named))

            try:
                yield begin
            finally:
                wait(running)
            for one in running:
                one.result()

    def _pool(self) -> ThreadPoolExecutor:
        """The threads beside the caller's."""
        if self._others is None:
            self._others = ThreadPoolExecutor(self.num - 1)
        return self._others


def _without_gradients(
    work: Callable[Given, Found], *given: Given.args, **named: Given.kwargs
) -> Found:
    import torch

    with torch.no_grad():  # each thread has a mode of its own
        return work(*given, **named)


THREADS = Threads()
"""The threads of this process, which serves one problem at a time."""
