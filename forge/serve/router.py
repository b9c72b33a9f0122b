# pyright: strict
"""Choice of the replica for a request, from their loads and the prefixes that they evaluated.

Owned by `served.Served`, for replicas and for servers behind URLs. A prompt goes to the replica
that evaluated its longest prefix, unless that one is much busier; otherwise to the least loaded
one. A slow replica answers later, so its load stays and it gets fewer requests. Promise: among
equals without a prefix cache, the first of the least loaded is chosen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK_TOKENS = 64
"""Prefixes are compared in blocks of this many tokens."""
MAX_BLOCKS = 65_536
"""Blocks remembered over all replicas: 4 M tokens, the most that KV caches of a machine hold."""
SPILL = 1.25
"""A prompt leaves the replica with its prefix if that is this many times as busy as another..."""
SPILL_SLOTS = 8
"""...and by more than 1 / SPILL_SLOTS of its slots: below that a step takes as long."""


class ReplicaLoad(NamedTuple):
    """One replica that is up. Made for each replica at each request, in half of the time of a
    frozen dataclass."""

    name: str
    samples: int
    """Samples requested and not answered."""
    slots: int
    """Samples that it decodes together."""


@dataclass(slots=True, kw_only=True)
class Router:
    """Chooses among the replicas of a stage, which it knows by name only."""

    has_prefix_cache: bool = False
    """True if the engine reuses evaluated prefixes for later prompts."""
    _blocks: OrderedDict[int, set[str]] = field(default_factory=OrderedDict[int, set[str]])
    """Replicas that evaluated a prefix, by the hash of its blocks. Least recently used first."""

    def choose(self, up: Sequence[ReplicaLoad], prompt_ids: Sequence[int]) -> int:
        """Index in `up` of the replica to ask. It counts as having evaluated the prompt."""
        least = min(range(len(up)), key=lambda index: up[index].samples)
        if not self.has_prefix_cache:
            return least
        blocks = _hash_blocks(prompt_ids)
        near = [index for index in range(len(up)) if not _is_spilling(up[index], up[least])]
        known = {index: self._num_known(up[index].name, blocks) for index in near}
        chosen = max(near, key=lambda index: (known[index], -up[index].samples))
        self._remember(up[chosen].name, blocks)
        return chosen

    def forget(self, name: str) -> None:
        """Forget what a replica evaluated: it serves other weights now, or is another process. A
        block that no other one has goes, too: a run with one replica would keep 65,536 of them, 26
        MB."""
        for names in self._blocks.values():
            names.discard(name)
        for block in [block for block, names in self._blocks.items() if not names]:
            del self._blocks[block]

    def _num_known(self, name: str, blocks: Sequence[int]) -> int:
        for count, block in enumerate(blocks):
            if name not in self._blocks.get(block, ()):
                return count
        return len(blocks)

    def _remember(self, name: str, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._blocks.setdefault(block, set()).add(name)
            self._blocks.move_to_end(block)
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)


def _is_spilling(load: ReplicaLoad, least: ReplicaLoad) -> bool:
    """True if it is too busy for what its cache would save."""
    excess = load.samples - least.samples
    return load.samples + 1 > SPILL * (least.samples + 1) and excess > load.slots / SPILL_SLOTS


def _hash_blocks(prompt_ids: Sequence[int]) -> list[int]:
    """A number per prefix of whole blocks; equal prefixes have equal numbers."""
    found: list[int] = []
    before = 0
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, *prompt_ids[start : start + BLOCK_TOKENS]))
        found.append(before)
    return found
