"""Layout of a run: the cards of each role. `placement` makes it, `gpu_fit` checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.process.devices import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Cards by role. Empty: everything runs on the CPU."""

    serve: tuple[tuple[Gpu, ...], ...] = ()
    """Cards of each replica."""
    judge: tuple[Gpu, ...] = ()
    """One card for each judge."""
    train: tuple[Gpu, ...] = ()
    """One card for each rank of the trainer."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card in use once, in the order of the roles."""
        return tuple({gpu.uuid: gpu for role in self._by_role().values() for gpu in role}.values())

    @property
    def shared(self) -> frozenset[str]:
        """UUIDs of cards with more than one process, which work there under the card's lease."""
        users = [gpu.uuid for role in self._by_role().values() for gpu in role]
        return frozenset(uuid for uuid in users if users.count(uuid) > 1)

    @property
    def serve_uuids(self) -> tuple[tuple[str, ...], ...]:
        """UUIDs by replica."""
        return tuple(tuple(gpu.uuid for gpu in replica) for replica in self.serve)

    @property
    def train_uuids(self) -> tuple[str, ...]:
        """UUIDs by rank."""
        return tuple(gpu.uuid for gpu in self.train)

    def roles_of(self, uuid: str) -> tuple[str, ...]:
        """Roles on a card."""
        return tuple(
            role for role, gpus in self._by_role().items() if uuid in {gpu.uuid for gpu in gpus}
        )

    def _by_role(self) -> dict[str, tuple[Gpu, ...]]:
        serve = tuple(gpu for replica in self.serve for gpu in replica)
        return {"serve": serve, "judge": self.judge, "train": self.train}
