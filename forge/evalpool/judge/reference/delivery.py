"""Writes a draw into memory of the judge, most of it while the rest is computed.

Called by the oracle on a CPU. Writing is page faults of fresh memory, as much as half of the time
that a draw itself takes, and needs no lock of Python's: a thread writes the large tensors of an
input set as soon as the set is made. The others are written behind the last set. Nothing stays
mapped, so the judge can seal the memory.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from forge.evalpool.judge.channel.shm import ALIGNMENT_BYTES
from forge.evalpool.judge.numbers.called import leaves, memory_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from forge.evalpool.judge.wide.sets import InputSet

    Placed = tuple[torch.Tensor, int]
    """A tensor and its first byte in the memory."""

LARGE_BYTES = 1 << 20
"""Tensors that a thread writes."""


class Delivery:
    """One draw in the memory behind a descriptor, which is closed in the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._room = os.fstat(fd).st_size
        self._end = 0
        self._placed: dict[tuple[int, int], Placed] = {}
        """By address and bytes: as long as a tensor is held here, no other has its address."""
        self._thread = ThreadPoolExecutor(1, "delivery")
        self._running: list[Future[None]] = []

    def restart(self) -> None:
        """Forgets all of it: the draw begins again."""
        self._wait()
        self._placed.clear()
        self._end = 0

    def add(self, made: InputSet) -> None:
        """Begins to write the large tensors of a set, which do not change any more. Raises
        MemoryError."""
        if torch.get_num_threads() == 1:
            return
        for tensor in (*leaves(made.inputs), *made.outputs, *(made.wide or ())):
            one = _in_order(tensor.detach())
            if one.nbytes >= LARGE_BYTES and one.is_contiguous() and _key(one) not in self._placed:
                self._running.append(self._thread.submit(self._write, [self._place(one)]))

    def finish(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Writes the contiguous `tensors` that are not written. Returns the first byte of each; all
        is written behind the call. Raises MemoryError."""
        left = {_key(one): one for one in tensors if one.nbytes}
        self._write([self._place(one) for key, one in left.items() if key not in self._placed])
        self._wait()
        self._thread.shutdown()
        os.close(self._fd)
        return [self._placed[_key(one)][1] if one.nbytes else 0 for one in tensors]

    def _place(self, tensor: torch.Tensor) -> Placed:
        start = -(-self._end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._end = start + tensor.nbytes
        if self._end > self._room:
            raise MemoryError(f"a draw of more than {self._room} bytes")
        self._placed[_key(tensor)] = tensor, start
        return tensor, start

    def _write(self, placed: Sequence[Placed]) -> None:
        """Writes tensors that lie side by side."""
        if not placed:
            return
        last, start = placed[-1]
        first = placed[0][1] // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(self._fd, start + last.nbytes - first, offset=first) as memory:
            for tensor, at in placed:
                _copy(tensor, memory, at - first)

    def _wait(self) -> None:
        """Waits for the thread; raises its error."""
        running, self._running = self._running, []
        for one in running:
            one.result()


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with its axes in the order of memory, as a layout has it."""
    order = memory_order(tensor)
    return tensor if order is None else tensor.permute(order)


def _key(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.nbytes


def _copy(tensor: torch.Tensor, memory: mmap.mmap, start: int) -> None:
    """Copies bytes; behind it nothing refers to the mapping."""
    source: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    np.copyto(np.frombuffer(memory, np.uint8, count=len(source), offset=start), source)
