"""Which card does what: `place` turns `[devices]` and a machine into cards by role, with the reasons
and the bytes that each role needs on each card.

Pure in the experiment and the machine. `plan` shows it, `run` hands the cards out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.process.devices import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Cards by role. Without arguments: a run on the CPU."""

    engine: str = "llama"
    """What `serve.engine = "auto"` came to."""
    serve: tuple[tuple[Gpu, ...], ...] = ()
    """Of each replica; empty where replicas run on the CPU."""
    judge: tuple[Gpu, ...] = ()
    """One a judge; empty where judges run on the CPU."""
    train: tuple[Gpu, ...] = ()
    """One a rank of the trainer; empty where it runs on the CPU."""
    shared: frozenset[str] = frozenset()
    """UUIDs of cards with more than one role: work on them is done under their lease."""
    sleeps: bool = False
    """Whether engines free their memory while the trainer steps."""
    memory_share: float | None = None
    """Of a card, what an engine may take; absent means serve.memory_share."""
    reasons: tuple[str, ...] = ()
    """Why so, in words, for what the experiment left open."""
    bytes_by_gpu: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """UUID to role (`serve`, `judge`, `train`) to bytes at the widest moment."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card in use, once."""
        cards = (*(gpu for replica in self.serve for gpu in replica), *self.judge, *self.train)
        return tuple({gpu.uuid: gpu for gpu in cards}.values())

    @property
    def serve_uuids(self) -> tuple[tuple[str, ...], ...]:
        """As `open_replicas` takes them."""
        return tuple(tuple(gpu.uuid for gpu in replica) for replica in self.serve)

    @property
    def train_uuids(self) -> tuple[str, ...]:
        """As `open_trainer` takes them."""
        return tuple(gpu.uuid for gpu in self.train)
