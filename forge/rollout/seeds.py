"""Seeds for sampling: one number per request, from the run's seed and the request's place.

The same place gives the same seed. This does not make a second run equal: groups get their ids as
they begin, and the order in which flat groups end and are replaced depends on the machine. An
evaluation's place is its problem (`problem_place`), so every evaluation of a run, `forge eval` and
a resumed evaluation sample with the same seeds.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *place: int) -> int:
    """A seed in 0..2^31-1 that depends on every argument and on their order."""
    digest = hashlib.blake2b(",".join(map(str, (seed, *place))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


def problem_place(problem_id: str) -> int:
    """A number in 0..2^63-1 for a problem, which seeds may depend on."""
    digest = hashlib.blake2b(problem_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
