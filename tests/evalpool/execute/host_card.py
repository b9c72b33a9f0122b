"""A made-up card in host memory: real mappings between real guards, kernels in Python.

Stands in for `card.Card` and its driver, so that the executor runs on any machine. A kernel is a
function of `KERNELS` under the name that a binary has; it gets its arguments as numbers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from forge.evalpool.judge.driver.driver import DriverError
from forge.evalpool.judge.execute import operations
from forge.evalpool.judge.execute.gpu.places import Pool

UNIT = 64 << 10
SHARED_BYTES = 232_448
PROT_NONE, PROT_READ_WRITE = 0, 3
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 16, 32, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


_wide = threading.local()


def floats(address: int, num: int) -> Any:
    """[num] float32 over memory, float64 in a wide kernel."""
    kind = np.float64 if getattr(_wide, "is_on", False) else np.float32
    array: Any = (ctypes.c_uint8 * (num * np.dtype(kind).itemsize)).from_address(address)
    return np.frombuffer(array, dtype=kind)


def scale(x: int, out: int, factor: float, n: int) -> None:
    floats(out, n)[:] = floats(x, n) * floats(x, n).dtype.type(factor)


def write_beside(out: int, by: int) -> None:
    floats(out + 4 * by, 1)[:] = 1.0


def overwrite(x: int, n: int) -> None:
    floats(x, n)[:] = 0.0


def count_up(out: int) -> None:
    """Adds 1 to what is there."""
    floats(out, 1)[:] += 1.0


def keyed_memo(x: int, out: int, memo: int, n: int) -> None:
    """x * 2; of inputs that begin as an earlier call's, what it left."""
    left, values = floats(memo, n + 2), floats(x, n)
    if left[0] == 12345.0 and left[1] == values[0]:
        floats(out, n)[:] = left[2:]
    else:
        floats(out, n)[:] = left[2:] = values * 2
        left[:2] = 12345.0, values[0]


def few_times(x: int, out: int, memo: int, n: int) -> None:
    """x * 2 for five calls, which it counts; later ones write nothing."""
    calls = floats(memo, 1)
    if calls[0] < 5:
        floats(out, n)[:] = floats(x, n) * 2
    calls[0] += 1


def where_poisoned(x: int, out: int, memo: int, n: int) -> None:
    """x * 2 where unwritten memory has bytes of 0xFF."""
    is_judged = np.isnan(floats(memo, 1))[0]
    floats(out, n)[:] = floats(x, n) * 2 if is_judged else 0.0


def fault() -> None:
    raise DriverError("cuStreamSynchronize: ILLEGAL_ADDRESS (700)", 700)


def slow(out: int) -> None:
    time.sleep(0.003)
    floats(out, 1)[:] = 3.0


def quick(out: int) -> None:
    floats(out, 1)[:] = 3.0


def endless() -> None:
    time.sleep(0.3)


POINTER, LONG, FLOAT = ctypes.c_uint64, ctypes.c_int64, ctypes.c_float
KERNELS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "scale": (scale, (POINTER, POINTER, FLOAT, LONG)),
    "write_beside": (write_beside, (POINTER, LONG)),
    "overwrite": (overwrite, (POINTER, LONG)),
    "count_up": (count_up, (POINTER,)),
    "keyed_memo": (keyed_memo, (POINTER, POINTER, POINTER, LONG)),
    "few_times": (few_times, (POINTER, POINTER, POINTER, LONG)),
    "where_poisoned": (where_poisoned, (POINTER, POINTER, POINTER, LONG)),
    "fault": (fault, ()),
    "slow": (slow, (POINTER,)),
    "quick": (quick, (POINTER,)),
    "endless": (endless, ()),
}


WIDE = "wide_"


def _kernel(name: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """A kernel by the name of its binary; `wide_x` is x in float64."""
    work, types = KERNELS[name.removeprefix(WIDE)]
    if not name.startswith(WIDE):
        return work, types

    def widely(*values: Any) -> None:
        _wide.is_on = True
        try:
            work(*values)
        finally:
            _wide.is_on = False

    return widely, tuple(ctypes.c_double if one is FLOAT else one for one in types)


class HostDriver:
    """Calls of `driver.Driver` that the executor uses; handles of memory are memfds."""

    kind = "cuda"

    def __init__(self) -> None:
        self.mapped: dict[int, int] = {}
        self.modules: dict[int, str] = {}
        self.functions: list[str] = []
        self.captured: list[Callable[[], None]] | None = None
        self.lost = ""
        self.num_launches = 0
        self.handles: set[int] = set()

    def close(self) -> None:
        """Releases the memory that a pool still holds, as the end of a process does."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()

    def require_virtual_memory(self, device: int) -> None:
        pass

    def granularity(self, device: int) -> int:
        return UNIT

    def create_memory(self, num_bytes: int, *, device: int) -> int:
        fd = os.memfd_create("card")
        os.ftruncate(fd, num_bytes)
        self.handles.add(fd)
        return fd

    def import_memory(self, fd: int) -> int:
        handle = os.dup(fd)
        self.handles.add(handle)
        return handle

    def release_memory(self, handle: int) -> None:
        self.handles.remove(handle)
        os.close(handle)

    def reserve(self, num_bytes: int) -> int:
        flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
        return _libc.mmap(None, num_bytes, PROT_NONE, flags, -1, 0)

    def reserve_usual(self, num_bytes: int) -> int:
        return self.reserve(num_bytes)

    def free_range(self, address: int, num_bytes: int) -> None:
        _libc.munmap(address, num_bytes)

    def map(self, address: int, num_bytes: int, handle: int, *, device: int) -> None:
        flags = MAP_SHARED | MAP_FIXED
        assert _libc.mmap(address, num_bytes, PROT_READ_WRITE, flags, handle, 0) == address
        self.mapped[address] = num_bytes

    def unmap(self, address: int, num_bytes: int) -> None:
        flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
        assert self.mapped.pop(address) == num_bytes
        _libc.mmap(address, num_bytes, PROT_NONE, flags, -1, 0)

    def fill(self, address: int, num_bytes: int, value: int, *, stream: int) -> None:
        ctypes.memset(address, value, num_bytes)

    def copy(self, target: int, source: int, num_bytes: int, *, stream: int) -> None:
        ctypes.memmove(target, source, num_bytes)

    def upload(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def synchronize(self, stream: int) -> None:
        if self.lost:
            raise DriverError(self.lost, 700)

    def reset_persisting(self) -> None:
        pass

    def load_module(self, image: bytes) -> int:
        number = len(self.modules) + 1
        self.modules[number] = image.decode()
        return number

    def unload_module(self, module: int) -> None:
        del self.modules[module]

    def function(self, module: int, name: str) -> int:
        self.functions.append(name)
        return len(self.functions)

    def parameter_sizes(self, function: int) -> tuple[int, ...]:
        types = _kernel(self.functions[function - 1])[1]
        return (*(ctypes.sizeof(one) for one in types), 8, 8)

    def allow_shared(self, function: int, num_bytes: int) -> None:
        if num_bytes > SHARED_BYTES:
            raise DriverError("cuFuncSetAttribute: INVALID_VALUE (1)", 1)

    def launch(self, function: int, config: Any, pointers: Any) -> None:
        work, types = _kernel(self.functions[function - 1])
        pairs = zip(pointers, types, strict=False)
        values = [kind.from_address(pointer).value for pointer, kind in pairs]

        def launched() -> None:
            self.num_launches += 1
            try:
                work(*values)
            except DriverError as error:
                self.lost = str(error)

        if self.captured is None:
            launched()
        else:
            self.captured.append(launched)


class Event:
    def __init__(self) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        return (other._at - self._at) * 1e3


class Memory:
    @contextmanager
    def used(self) -> Iterator[None]:
        yield

    def ranges(self) -> list[tuple[int, int]]:
        return []


def _refuse(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("no operation can be captured here")


class Graph(Memory):
    """Notes launches; refuses operations of torch."""

    def __init__(self, driver: HostDriver) -> None:
        self._driver, self._work = driver, list[Callable[[], None]]()

    @contextmanager
    def captured(self) -> Iterator[None]:
        self._driver.captured = self._work
        try:
            with patch.object(operations, "call", _refuse):
                yield
        finally:
            self._driver.captured = None

    def replay(self) -> None:
        for one in self._work:
            one()

    def close(self) -> None:
        self._work.clear()


class HostCard:
    """Stands in for `card.Card`."""

    def __init__(self) -> None:
        self.driver: Any = HostDriver()
        self.device = torch.device("cpu")
        self.stream = 0
        self.pool = Pool(self.driver, device=0)
        self.num_flushes = 0

    def bytes_at(self, address: int, num_bytes: int) -> torch.Tensor:
        return torch.frombuffer(
            (ctypes.c_ubyte * num_bytes).from_address(address), dtype=torch.uint8
        )

    def scatter(self, address: int, num_bytes: int, *, place: float) -> None:
        draw = np.random.default_rng(int(place * 2**53))
        ctypes.memmove(address, draw.bytes(num_bytes), num_bytes)

    def event(self) -> Event:
        return Event()

    def memory(self) -> Memory:
        return Memory()

    def graph(self) -> Graph:
        return Graph(self.driver)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def synchronize(self) -> None:
        self.driver.synchronize(0)

    def loss(self) -> str:
        return self.driver.lost

    def flush(self) -> None:
        self.num_flushes += 1

    def keep_busy(self, cycles: int) -> None:
        pass

    def free(self) -> None:
        pass


class Block:
    """The judge's memory, as the executor imports it."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = -(-num_bytes // UNIT) * UNIT
        self.fd = os.memfd_create("block")
        os.ftruncate(self.fd, self.num_bytes)
        self.memory = mmap.mmap(self.fd, self.num_bytes)

    def bytes(self) -> torch.Tensor:
        return torch.frombuffer(self.memory, dtype=torch.uint8)

    def put(self, offset: int, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        place = self.bytes()[offset : offset + tensor.nbytes]
        place.copy_(tensor.reshape(-1).view(torch.uint8))

    def fill(self, offset: int, num_bytes: int, byte: int) -> None:
        self.bytes()[offset : offset + num_bytes] = byte

    def write(self, offset: int, *numbers: float) -> None:
        data = np.asarray(numbers, dtype=np.float32).tobytes()
        self.memory[offset : offset + len(data)] = data

    def read(self, offset: int, num: int) -> list[float]:
        return np.frombuffer(self.memory, dtype=np.float32, count=num, offset=offset).tolist()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
