# pyright: strict
"""GPU memory of one judgement, counted before anything starts.

Called by the owner of the card. The set-up is one of three, the first that fits:

    KEPT      all input sets with their expected outputs stay on the card
    RESTORED  one set at a time: inputs are written into the candidate's buffers from their seed,
              the reference runs on them, then the candidate, and blocks are compared
    (none)    the reference itself is larger than the card: unjudgeable, with its bytes

and so are eager's own errors: of the whole outputs, of a slice of the batch, or unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WORKSPACE_BYTES = 2 << 30
"""One block's squares and differences in float64 (slabs.py), and what libraries allocate."""
CONTEXTS_BYTES = 3 << 29
"""CUDA contexts of the three processes on a card: reference, executor, comparer."""
DOUBLE = 2
"""Size of float64 relative to fp32."""


class Residence(StrEnum):
    """Memory that input sets take between two calls."""

    KEPT = "kept"
    RESTORED = "restored"


class ErrorSample(StrEnum):
    """Part of the outputs whose own errors are measured against float64."""

    WHOLE = "whole"
    SLICE = "slice"
    """A slice of the batch, if the reference treats its rows alike (own_error.py)."""
    NONE = "none"


class TooLarge(Exception):
    """The reference does not fit on the card: `unjudgeable`, no machine fault."""

    def __init__(self, needed_bytes: int, card_bytes: int) -> None:
        needed, card = (f"{one / 1e9:.3g} GB" for one in (needed_bytes, card_bytes))
        super().__init__(
            f"the reference and an answer need {needed} of GPU memory; this card has {card}; "
            "--override gives a problem smaller sizes"
        )
        self.needed_bytes = needed_bytes
        self.card_bytes = card_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one problem, at its own precision."""

    inputs: int
    outputs: int
    state: int
    """Parameters and buffers."""
    temporary: int
    """The most that one call of the reference allocates, beside its outputs."""
    batch: int = 1
    """Rows that inputs and outputs have in common on their first axis; 1 if none."""

    @property
    def one_set(self) -> int:
        return self.inputs + self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Plan for the memory of one problem on one card."""

    residence: Residence
    errors: ErrorSample
    num_sets: int
    peak_bytes: int
    rows: int
    """Rows of the batch in a slice; all of them unless `errors` is SLICE."""


def plan(sizes: Sizes, *, num_sets: int, card_bytes: int, kept_share: float = 0.3) -> Budget:
    """The plan for a problem. Raises TooLarge.

    Args:
        sizes: of the problem.
        num_sets: input sets that are wanted; at least two stay.
        card_bytes: memory of the card that nobody else holds.
        kept_share: of the card that sets may take when they stay.
    """
    room = card_bytes - CONTEXTS_BYTES - WORKSPACE_BYTES
    answer = sizes.one_set + sizes.state  # the candidate's buffers
    running = sizes.state + sizes.outputs + sizes.temporary
    least = answer + max(running, sizes.inputs)  # to draw inputs takes a copy of them, once
    if least > room:
        raise TooLarge(least + CONTEXTS_BYTES + WORKSPACE_BYTES, card_bytes)
    kept_bytes = num_sets * sizes.one_set
    is_kept = kept_bytes <= kept_share * card_bytes and kept_bytes + least <= room
    base = answer + sizes.state + sizes.outputs + (kept_bytes if is_kept else 0)
    errors, rows, extra = _errors(sizes, room - base)
    return Budget(
        residence=Residence.KEPT if is_kept else Residence.RESTORED,
        errors=errors,
        num_sets=max(2, num_sets),
        peak_bytes=max(base + extra, least + (kept_bytes if is_kept else 0)),
        rows=rows,
    )


def _errors(sizes: Sizes, room: int) -> tuple[ErrorSample, int, int]:
    """The part of the outputs to measure, its rows, and the bytes that it takes in float64:
    inputs, parameters, outputs and temporaries, and the differences of two results."""
    fixed = DOUBLE * sizes.state
    moving = DOUBLE * (sizes.inputs + 2 * sizes.outputs + sizes.temporary)
    if fixed + moving <= room:
        return ErrorSample.WHOLE, sizes.batch, fixed + moving
    rows = max(0, room - fixed) * sizes.batch // max(1, moving)
    if sizes.batch > 1 and rows >= 1:
        return ErrorSample.SLICE, rows, fixed + moving * rows // sizes.batch
    return ErrorSample.NONE, 0, 0
