# pyright: strict
"""Choice of the replica for a request. A plain object: callers pass facts and the time.

Owned by `served.Served`, for replicas and for servers behind URLs. Rules, in this order:

1. A replica that was silent while others answered is avoided, then tried with one request.
2. A prompt goes to the replica that evaluated its longest prefix, unless that one is much busier.
3. Otherwise to the least loaded one, a load being weighted by how much slower the replica is.

Promises: among equals without a prefix cache, the first of the least loaded is chosen; a replica
that alone is up is chosen in any case.
"""

from __future__ import annotations

from collections import OrderedDict, deque
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
SLOWER = 1.5
"""Ratio of paces from which a replica counts as slower: a smaller one is noise."""
SLOWEST = 16.0
"""Maximum ratio that counts: such a replica gets hardly any request."""
SMOOTHING = 0.2
"""Weight of the newest answer in a replica's smoothed pace."""
PATIENCE = 4.0
"""An answer may take this many times as long as the slowest recent one, and longer if more tokens
are allowed than any recent one had..."""
LEAST_PATIENCE_S = 5.0
"""...and at least this long: a full garbage collection or a compilation takes as much."""
REMEMBERED_ANSWERS = 64
FIRST_AVOIDED_S = 10.0
"""Seconds without requests after a silence. Doubles with each further silence."""
LONGEST_AVOIDED_S = 160.0


class ReplicaLoad(NamedTuple):
    """One replica that is up. Made for each replica at each request, in half of the time of a
    frozen dataclass."""

    name: str
    samples: int
    """Samples requested and not answered."""
    slots: int
    """Samples that it decodes together."""


@dataclass(frozen=True, slots=True)
class _Pace:
    """Time and tokens of an answer, smoothed over several. Separate, so that short answers weigh
    little."""

    seconds: float
    num_tokens: float
    """Tokens of the longest sample."""

    def towards(self, newest: _Pace) -> _Pace:
        return _Pace(
            self.seconds + SMOOTHING * (newest.seconds - self.seconds),
            self.num_tokens + SMOOTHING * (newest.num_tokens - self.num_tokens),
        )

    @property
    def token_s(self) -> float:
        return self.seconds / self.num_tokens


@dataclass(slots=True)
class _Silence:
    """A replica that did not answer while others did."""

    until: float
    """Time before which it gets no request."""
    times: int
    """Silences in a row."""


@dataclass(slots=True, kw_only=True)
class Router:
    """Chooses among the replicas of a stage, which it knows by name only."""

    has_prefix_cache: bool = False
    """True if the engine reuses evaluated prefixes for later prompts."""
    _paces: dict[str, _Pace] = field(default_factory=dict[str, _Pace])
    _answers: deque[_Pace] = field(default_factory=lambda: deque(maxlen=REMEMBERED_ANSWERS))
    """The last answers of all replicas."""
    _slowest_s: float = 0.0
    """Longest time of these answers: asked for more often than there are answers."""
    _longest: float = 0.0
    """Most tokens of these answers."""
    _silences: dict[str, _Silence] = field(default_factory=dict[str, _Silence])
    _blocks: OrderedDict[int, set[str]] = field(default_factory=OrderedDict[int, set[str]])
    """Replicas that evaluated a prefix, by the hash of its blocks. Least recently used first."""

    def choose(self, up: Sequence[ReplicaLoad], prompt_ids: Sequence[int], *, now: float) -> int:
        """Index in `up` of the replica to ask. It counts as having evaluated the prompt."""
        allowed = [index for index, load in enumerate(up) if self._may_ask(load, now=now)]
        allowed = allowed or list(range(len(up)))
        fastest_s = self._fastest_s(up)
        busy = {  # samples with one more, multiplied by how much slower the replica is
            index: (up[index].samples + 1) * self._slowness(up[index].name, fastest_s=fastest_s)
            for index in allowed
        }
        least = min(allowed, key=lambda index: busy[index])
        chosen = least
        if self.has_prefix_cache:
            blocks = _hash_blocks(prompt_ids)
            near = [index for index in allowed if not _is_spilling(up[index], busy, index, least)]
            known = {index: self._num_known(up[index].name, blocks) for index in near}
            chosen = max(near, key=lambda index: (known[index], -busy[index]))
            self._remember(up[chosen].name, blocks)
        return chosen

    def answered(self, name: str, *, seconds: float, num_tokens: int) -> None:
        """Record an answer: `num_tokens` of the longest sample took `seconds`, with waiting."""
        pace = _Pace(seconds, max(num_tokens, 1))
        self._paces[name] = self._paces.get(name, pace).towards(pace)
        self._answers.append(pace)
        self._slowest_s = max(each.seconds for each in self._answers)
        self._longest = max(each.num_tokens for each in self._answers)
        self._silences.pop(name, None)

    def patience_s(self, max_tokens: int) -> float | None:
        """Seconds until another replica is asked too; None before the first answer."""
        if not self._answers:
            return None
        slowest_s = PATIENCE * self._slowest_s * max(1.0, max_tokens / self._longest)
        return max(LEAST_PATIENCE_S, slowest_s)

    def was_silent(self, name: str, *, now: float) -> None:
        """Record that a replica did not answer in time while another one did."""
        if self.is_avoided(name, now=now):
            return  # one of several requests that were lost together
        times = 1 + (self._silences[name].times if name in self._silences else 0)
        pause_s = min(FIRST_AVOIDED_S * 2 ** (times - 1), LONGEST_AVOIDED_S)
        self._silences[name] = _Silence(until=now + pause_s, times=times)

    def is_avoided(self, name: str, *, now: float) -> bool:
        """True if it was silent lately."""
        silence = self._silences.get(name)
        return silence is not None and now < silence.until

    def forget(self, name: str) -> None:
        """Forget a replica that died: its successor is another process of the same name."""
        self._paces.pop(name, None)
        self._silences.pop(name, None)
        self.forget_prefixes(name)

    def forget_prefixes(self, name: str) -> None:
        """Forget what a replica evaluated: it serves other weights now. A block that no other one
        has goes, too: a run with one replica would keep 65,536 of them, 26 MB."""
        for names in self._blocks.values():
            names.discard(name)
        for block in [block for block, names in self._blocks.items() if not names]:
            del self._blocks[block]

    def _may_ask(self, load: ReplicaLoad, *, now: float) -> bool:
        silence = self._silences.get(load.name)
        return silence is None or (now >= silence.until and load.samples == 0)

    def _fastest_s(self, among: Sequence[ReplicaLoad]) -> float:
        """Seconds per token of the fastest replica; 0 if none is known."""
        paces = (self._paces.get(each.name) for each in among)
        return min((pace.token_s for pace in paces if pace is not None), default=0.0)

    def _slowness(self, name: str, *, fastest_s: float) -> float:
        pace = self._paces.get(name)
        if pace is None or fastest_s <= 0.0:
            return 1.0
        ratio = pace.token_s / fastest_s
        return min(ratio, SLOWEST) if ratio > SLOWER else 1.0

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


def _is_spilling(load: ReplicaLoad, busy: dict[int, float], index: int, least: int) -> bool:
    """True if it is too busy for what its cache would save."""
    excess = busy[index] - busy[least]
    return busy[index] > SPILL * busy[least] and excess > load.slots / SPILL_SLOTS


def _hash_blocks(prompt_ids: Sequence[int]) -> list[int]:
    """A number per prefix of whole blocks; equal prefixes have equal numbers."""
    found: list[int] = []
    before = 0
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        before = hash((before, *prompt_ids[start : start + BLOCK_TOKENS]))
        found.append(before)
    return found
