"""Seeds of 128 bits for torch's generators, Python's and numpy's.

`torch.manual_seed` keeps 32 bits on a CPU: few enough to be tried out. Here the whole state of the
CPU's generator comes from the seed, and on a GPU Philox' offset takes the second half. (It also
records a traceback for each call while no GPU is in use, which takes longer than a small draw.)
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

SEED_BYTES = 16
WORDS = 624
"""State of the Mersenne twister in 32-bit words; torch stores each in eight bytes."""
HEADER = 24
"""Bytes before them: seed, number of words left, a flag and the next word's index."""
MASK = (1 << 62) - 4
"""Philox' offset is a multiple of four."""


def fresh_seed() -> bytes:
    """[SEED_BYTES] from the operating system."""
    return os.urandom(SEED_BYTES)


def seed_everything(seed: bytes) -> None:
    """Sets every generator that a `get_inputs` may use. The same seed gives the same values on the
    same kind of device."""
    low, high = struct.unpack("<QQ", hashlib.sha256(seed).digest()[:16])
    random.seed(seed)
    if "numpy.random" in sys.modules:  # numpy imports it late, and a sandbox may have no files
        np.random.seed(list(hashlib.sha256(b"numpy" + seed).digest()))
    torch.default_generator.manual_seed(low)
    words = random.Random(b"cpu" + seed).randbytes(4 * WORDS)
    state = torch.get_rng_state().numpy().copy()
    state[HEADER : HEADER + 8 * WORDS].view(np.uint64)[:] = np.frombuffer(words, np.uint32)
    torch.set_rng_state(torch.from_numpy(state))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(low)
        state = torch.cuda.get_rng_state().numpy().copy()
        state[:16] = np.frombuffer(struct.pack("<QQ", low, high & MASK), np.uint8)
        torch.cuda.set_rng_state(torch.from_numpy(state))


@contextmanager
def unseeded() -> Iterator[None]:
    """Within, `torch.manual_seed` does nothing: code that seeds torch draws other numbers."""
    kept = torch.manual_seed
    torch.manual_seed = torch.random.manual_seed = lambda seed: torch.default_generator
    try:
        yield
    finally:
        torch.manual_seed = torch.random.manual_seed = kept
