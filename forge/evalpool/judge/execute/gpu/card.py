"""One card as torch has it: context, stream, events, graphs, memory of a program's operations.

Made once a process by `child.py`. All of torch's device calls of this room are here, so that its
other files run on a made-up card in tests. `torch.cuda` is HIP on an AMD card.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from forge.evalpool.judge.driver.gpu_memory import DeviceBytes, torch_driver
from forge.evalpool.judge.execute.gpu.places import Pool

RUN_CYCLES = 2_000_000
"""About 1 ms: keeps the card busy until the host has queued a run."""
REPLAY_CYCLES = 200_000
"""About 0.1 ms: likewise for the replay of a graph. A flush alone (60 us on an H200) is shorter
than the host takes now and then, and the wait for it would be part of the time."""
FLUSH_BYTES_PER_L2 = 4
MIN_FLUSH_BYTES = 256 << 20
"""The size that `do_bench` of Triton flushes with."""


RANDOM_BYTES, RANDOM_ALIGNMENT = 4 << 20, 16
"""Random bytes that memory is poisoned with, and the alignment of a place in them."""


class Memory:
    """Memory that torch gives to one program's operations: results and workspaces."""

    def __init__(self) -> None:
        self._pool = torch.cuda.MemPool()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, torch allocates here."""
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def ranges(self) -> list[tuple[int, int]]:
        """(address, bytes) of all of it, what torch keeps for later included."""
        return _ranges(self._pool.id)


class Graph:
    """A captured run, with memory of its own."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Inside, work is noted, not done. Raises RuntimeError for what cannot be captured."""
        self._graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()

    def ranges(self) -> list[tuple[int, int]]:
        return _ranges(self._graph.pool())

    def close(self) -> None:
        self._graph.reset()


class Card:
    """The first visible card, with this process's context on it."""

    def __init__(self) -> None:
        """Makes the context; torch works in a stream of ours from now on. Raises Unsupported."""
        torch.set_grad_enabled(False)
        torch.cuda.init()
        self.device = torch.device("cuda", torch.cuda.current_device())
        stream = torch.cuda.Stream()
        torch.cuda.set_stream(stream)
        self.stream: int = stream.cuda_stream
        self.driver = torch_driver()
        self.pool = Pool(self.driver, device=torch.cuda.current_device())
        self.driver.shrink_buffers()
        self._flush: torch.Tensor | None = None
        own = torch.Generator(self.device).manual_seed(secrets.randbits(63))
        self._random = torch.randint(
            256, (RANDOM_BYTES,), dtype=torch.uint8, device=self.device, generator=own
        )
        self._views: dict[tuple[int, int], torch.Tensor] = {}
        self._warm_up()

    def bytes_at(self, address: int, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8 over memory that is mapped whenever the tensor is used. The same tensor
        for the same memory until `free`."""
        key = (address, num_bytes)
        if key not in self._views:
            self._views[key] = torch.as_tensor(DeviceBytes(address, num_bytes), device=self.device)
        return self._views[key]

    def scatter(self, address: int, num_bytes: int, *, place: float) -> None:
        """Fills memory with random bytes, asynchronously: those of this process, from a place
        between 0 and 1 on, again and again."""
        source = self._random.data_ptr()
        first = int(place * RANDOM_BYTES / 2) // RANDOM_ALIGNMENT * RANDOM_ALIGNMENT
        done = min(num_bytes, RANDOM_BYTES // 2)
        if done:
            self.driver.copy(address, source + first, done, stream=self.stream)
        while done < num_bytes:
            size = min(done, num_bytes - done)
            self.driver.copy(address + done, address, size, stream=self.stream)
            done += size

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def memory(self) -> Memory:
        return Memory()

    def graph(self) -> Graph:
        return Graph()

    def seed(self, seed: int) -> None:
        torch.cuda.default_generators[self.pool.device].manual_seed(seed)

    def synchronize(self) -> None:
        """Waits for our stream. Raises DriverError."""
        self.driver.synchronize(self.stream)

    def loss(self) -> str:
        try:
            torch.cuda.current_stream().query()
        except RuntimeError as error:
            return str(error).split("\n")[0][:500]
        return ""

    def flush(self) -> None:
        """Writes several times the L2 cache, asynchronously."""
        if self._flush is None:
            properties = torch.cuda.get_device_properties()
            l2_bytes = int(getattr(properties, "L2_cache_size", 0) or 0)
            size = max(MIN_FLUSH_BYTES, FLUSH_BYTES_PER_L2 * l2_bytes)
            self._flush = torch.empty(size // 4, dtype=torch.int32, device=self.device)
        self._flush.zero_()

    def keep_busy(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)

    def free(self) -> None:
        self._views.clear()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def _warm_up(self) -> None:
        """Loads the modules of torch's kernels that checks need. A program that calls products
        loads their libraries: that takes as long as the context."""
        flat = torch.zeros(1 << 12, dtype=torch.uint8, device=self.device)
        wide = flat.view(torch.int64)
        torch.stack([(flat != 1).any(), (wide != wide.clone()).any()]).tolist()
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            flat.view(kind).copy_(wide.clone().view(kind))
        self.free()


def _ranges(pool: Any) -> list[tuple[int, int]]:
    return [
        (int(segment["address"]), int(segment["total_size"]))
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment.get("segment_pool_id", ())) == tuple(pool)
    ]
