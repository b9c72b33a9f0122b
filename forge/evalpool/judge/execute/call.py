"""One call of a program as the judge asks the executor for it. Pure; both ends use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLOCK_ALIGNMENT_BYTES = 256
"""Alignment of everything in the block that the judge and the executor share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the judge asks for it. Pairs are (storage or tensor, offset in the block)."""

    fills: tuple[tuple[int, int], ...] = ()
    """Storages to fill: inputs and parameters."""
    takes: tuple[tuple[int, int], ...] = ()
    """Tensors to copy out afterwards, each contiguous."""
    copies: tuple[tuple[int, int], ...] = ()
    """Storages to copy out afterwards, as they are: inputs that the reference changes in place."""
    intact: tuple[tuple[int, int], ...] = ()
    """Storages that must afterwards equal the block's bytes."""
    seed: int = 0
    """Seed of torch's random operations."""
    slack: int = 0xFF
    """Byte beside the buffers, which must stay."""
    poison: int = 0
    """Seed of the random bytes in memory that nothing has written; 0 for bytes of 0xFF."""
    is_kept: bool = False
    """True for a call on what the one before left, as a model is called twice: nothing but `fills`
    is written anew, and `init` does not run. Its placement and slack are those of that one."""
    placement: str = "start"
    """`end` or `start` of its mapping, for every buffer; timed calls have them at the start."""
    choices: tuple[tuple[int, int], ...] = ()
    """Pairs of a choice's step and the alternative that runs in place of the winner."""

    def body(self) -> dict[str, Any]:
        """The call as a message has it."""
        return {
            "fills": self.fills,
            "takes": self.takes,
            "copies": self.copies,
            "intact": self.intact,
            "seed": self.seed,
            "slack": self.slack,
            "poison": self.poison,
            "kept": self.is_kept,
            "placement": self.placement,
            "choices": self.choices,
        }

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Call:
        """Inverse of `body`, lists in place of tuples. Raises KeyError, TypeError or ValueError."""

        def pairs(name: str) -> tuple[tuple[int, int], ...]:
            return tuple((int(number), int(offset)) for number, offset in body[name])

        return cls(
            fills=pairs("fills"),
            takes=pairs("takes"),
            copies=pairs("copies"),
            intact=pairs("intact"),
            seed=int(body["seed"]),
            slack=int(body["slack"]) & 0xFF,
            poison=int(body["poison"]),
            is_kept=bool(body["kept"]),
            placement=str(body["placement"]),
            choices=pairs("choices"),
        )
