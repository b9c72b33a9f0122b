"""The port of `served`: what it asks of each server behind it.

Kept by `replica.Replica` (a child of this run) and `remote.RemoteServer` (a URL).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.records import Completion


class Server(Protocol):
    """One that answers: a replica of this run, or a URL."""

    name: str
    load: int
    """Samples asked and not answered; `Served` counts them."""
    generated_tokens: int
    """In answers that were used."""
    num_deaths: int

    @property
    def is_up(self) -> bool:
        """Whether it may be asked."""
        ...

    @property
    def busy_s(self) -> float:
        """Seconds with a request in progress."""
        ...

    async def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_token_ids: Sequence[int],
    ) -> list[Completion]:
        """Samples. Cancelled: what it had started is given up. Raises ForgeError."""
        ...
