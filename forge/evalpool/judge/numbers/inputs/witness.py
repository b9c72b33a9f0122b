"""Inputs on which the first and the last elements matter, so that a window that misses them shows.

Called by the oracle. A maximum over all but the last column is right where the last does not hold
it: in most rows of most draws. For each floating input, axis and end (and for the axes from one on,
taken as one), this file asks the reference: does the output change where that slice repeats its
neighbour? An extremum or a pooling that skips the slice computes just that. Where no input set so
far tells the two apart, lines of the next are replanted until it does: all values near one anchor
(the least, mean and greatest of the tensor), the first or last at another. Nothing new lies outside
of the range that the tensor had.

Problems without such blind spots, nearly all, keep their inputs as they were drawn. Not covered: a
gap in the middle, which random draws show, and spots that no planting reaches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from forge.evalpool.judge.numbers.called import is_categorical
from forge.evalpool.judge.numbers.finite import are_finite, widened

Outputs = list[torch.Tensor]
Runs = Callable[[list[Any]], Outputs | None]
"""The reference; None where it does not bear the inputs."""

MAX_ATTEMPTS = 48
MAX_RUNS, MIN_RUNS = 512, 32
"""Calls of the reference in one search: MAX_RUNS for inputs of up to RUN_BYTES, fewer for larger
ones. No clock decides, or a slow machine would see less."""
RUN_BYTES = 1 << 20
FLOPS_A_BYTE = 32
"""Floating-point operations that take as long as a byte of the inputs."""
MAX_SEARCH_BYTES = 64 << 20
"""Limit for the inputs. Above it each of the many runs would cost tens of milliseconds, and there
are so many windows that random draws show what is missed."""
SPREAD, NARROW_SPREAD = 0.2, 0.02
"""Share of a line's own variation that is left. Equal values would make ties, which argmax may
break either way."""
JITTER = 1e-3
"""Share of the way back to the line by which witnesses differ from each other."""
MIN_STEPS = 1e5
"""Steps of the type, near the anchor, within the variation that is left: with fewer, some of a
line's values round to equal ones. Such a line stays as it is."""
MIN_TIED = 3
"""Values of a line most of which are equal by more than chance."""
ANCHORS = tuple(itertools.permutations(("mean", "max", "min"), 2))
"""Pairs of the value that a line is near and the value of its witness: for every elementwise
function of the input, some pair puts the greatest of the line at the witness and some other the
least."""


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A slice at one end of an input."""

    tensor: int
    """Position among the inputs."""
    axis: int
    is_joint: bool
    """The axes from `axis` on, as if they were one."""
    is_last: bool


def spots_of(inputs: list[Any]) -> set[Spot]:
    """Every spot of the floating inputs."""
    found: set[Spot] = set()
    for number, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        for axis, is_last in itertools.product(range(value.ndim), (False, True)):
            for is_joint in (False, True) if axis < value.ndim - 1 else (False,):
                if _length(value, axis, is_joint) > 1 and value.numel():
                    found.add(Spot(number, axis, is_joint, is_last))
    return found


def blind_spots(
    run: Runs,
    inputs: list[Any],
    spots: set[Spot],
    *,
    agree: Callable[[Outputs, Outputs], bool],
    outputs: Outputs | None = None,
) -> set[Spot]:
    """The `spots` that the outputs do not depend on; all that are left once `run` has no runs
    left.

    Args:
        outputs: of `inputs`, where they are known.
    """
    if not spots:
        return set()
    outputs = run(inputs) if outputs is None else outputs
    if outputs is None or not are_finite(outputs):
        return spots
    found: set[Spot] = set()
    for spot in sorted(spots):
        try:
            other = run(_repeated(inputs, spot))
        except NoRunsLeft:
            return found | {one for one in spots if one >= spot}
        if other is not None and agree(outputs, other):
            found.add(spot)
    return found


class NoRunsLeft(Exception):
    """A search has used the calls of the reference that it may make."""


class Search:
    """Over the input sets of one draw: which spots none of them shows yet.

    Args:
        run: the reference.
        agree: True if the judge would accept one result for the other.
        flops: of one call of the reference, beside its bytes.
        is_decided: equal values leave nothing of the answer open.
    """

    def __init__(
        self,
        run: Runs,
        *,
        agree: Callable[[Outputs, Outputs], bool],
        flops: int = 0,
        is_decided: bool = True,
    ) -> None:
        self._reference = run
        self._agree = agree
        self._is_decided = is_decided
        self._flops = flops
        self._blind: set[Spot] | None = None
        self._runs_left = 0
        """Runs left to the search under way; each has its own."""

    def note(self, inputs: list[Any], outputs: Outputs | None = None) -> None:
        """Takes note of inputs that will be judged on, and of their outputs if known."""
        self._start(inputs)
        every = spots_of(inputs) if self._runs_left else set[Spot]()
        spots = every if self._blind is None else self._blind & every
        self._runs_left -= outputs is not None and self._runs_left > 0  # they were a run, too
        self._blind = self._left(inputs, spots, outputs)

    def improve(
        self, inputs: list[Any], *, kept: Collection[int] = frozenset()
    ) -> list[Any] | None:
        """Inputs like these that show more; None where there is nothing to show, or no way.

        Args:
            kept: positions of inputs that stay as they are, as those of two values do: masks.
        """
        two_valued = {
            number
            for number, one in enumerate(inputs)
            if isinstance(one, torch.Tensor)
            and one.is_floating_point()
            and one.numel() > 2
            and is_categorical(one)
        }
        hidden = {spot for spot in self._blind or () if spot.tensor not in {*kept, *two_valued}}
        if not hidden:
            return None
        self._start(inputs)
        best: list[Any] | None = None
        try:
            left = self._left(inputs, hidden & spots_of(inputs))
            for attempt in range(MAX_ATTEMPTS):
                if not left:
                    break
                planted = plant(
                    best or inputs, hidden, attempt=attempt, is_decided=self._is_decided
                )
                blind = self._left(planted, hidden)
                if len(blind) < len(left):
                    best, left = planted, blind
        except NoRunsLeft:
            pass
        return best

    def _start(self, inputs: list[Any]) -> None:
        cost = max(_num_bytes(inputs), self._flops // FLOPS_A_BYTE, 1)
        num = min(MAX_RUNS, max(MIN_RUNS, MAX_RUNS * RUN_BYTES // cost))
        self._runs_left = num if cost <= MAX_SEARCH_BYTES else 0

    def _run(self, inputs: list[Any]) -> Outputs | None:
        if self._runs_left <= 0:
            raise NoRunsLeft
        self._runs_left -= 1
        return self._reference(inputs)

    def _left(
        self, inputs: list[Any], spots: set[Spot], outputs: Outputs | None = None
    ) -> set[Spot]:
        return blind_spots(self._run, inputs, spots, agree=self._agree, outputs=outputs)


def plant(
    inputs: list[Any], spots: set[Spot], *, attempt: int, is_decided: bool = True
) -> list[Any]:
    """A copy in which lines along the axes of one of `spots` have their witness at one end. The
    shortest lines are tried first, with several pairs of anchors: they leave most as it was.

    Args:
        is_decided: lines may have equal values, as probabilities of 0 are, where others were.
    """
    groups = {(spot.tensor, spot.axis, spot.is_joint) for spot in spots}
    shortest = sorted(groups, key=lambda one: (_length(inputs[one[0]], *one[1:]), one))
    num_turns = max(1, MAX_ATTEMPTS // len(groups))
    tensor, axis, is_joint = shortest[attempt // num_turns % len(groups)]
    turn = attempt % num_turns
    value = widened(inputs[tensor]).clone(memory_format=torch.contiguous_format)
    anchors = {"mean": value.float().mean().to(value.dtype), "max": value.max(), "min": value.min()}
    lines = _lines(value, axis, is_joint=is_joint)
    flat = lines.reshape(-1, lines.shape[-1])  # a copy, unless the axis is the last one
    for number, line in enumerate(_chosen(len(flat))):
        kind = turn + number // 2
        near, witness = (anchors[name] for name in ANCHORS[kind % len(ANCHORS)])
        spread = SPREAD
        if kind >= len(ANCHORS):  # a function that oscillates: any two values, close together
            near, witness = value.flatten()[torch.randint(value.numel(), (2,), device=value.device)]
            spread = NARROW_SPREAD
        if _would_tie(flat[line], near, spread) or not (is_decided or _varies(flat[line])):
            continue
        flat[line] = near + spread * (flat[line] - near)
        is_first = (turn if len(flat) == 1 else number) % 2
        flat[line, 0 if is_first else -1] = witness + JITTER * float(torch.rand(())) * (
            near - witness
        )
    if flat.data_ptr() != value.data_ptr():
        lines.copy_(flat.view(lines.shape))
    value = value.to(inputs[tensor].dtype)
    return [value if number == tensor else one for number, one in enumerate(inputs)]


def _would_tie(line: torch.Tensor, near: torch.Tensor, spread: float) -> bool:
    """True if values of a line, most of which differ, would be equal so close to an anchor."""
    variation = spread * (line - line.median()).abs().median()
    step = torch.finfo(line.dtype).eps * near.abs()
    return bool((variation > 0) & (variation < MIN_STEPS * step))


def _varies(line: torch.Tensor) -> bool:
    """True if most values of a line differ from its median."""
    return len(line) < MIN_TIED or int((line == line.median()).sum()) * 2 <= len(line)


def _chosen(num_lines: int) -> list[int]:
    """Lines to plant, at most half of them: the last, whose witness is its last element, the first,
    and others, in turns."""
    others = torch.randperm(max(0, num_lines - 2)) + 1
    chosen = [num_lines - 1, 0, *others.tolist()]
    return chosen[: max(min(2, num_lines), min(2 * len(ANCHORS), num_lines // 2))]


def _length(value: torch.Tensor, axis: int, is_joint: bool) -> int:
    return math.prod(value.shape[axis:]) if is_joint else value.shape[axis]


def _num_bytes(inputs: list[Any]) -> int:
    return sum(value.nbytes for value in inputs if isinstance(value, torch.Tensor))


def _lines(value: torch.Tensor, axis: int, *, is_joint: bool) -> torch.Tensor:
    """[..., length] a view of a contiguous tensor, whose last axis is what a spot is an end of."""
    return value.flatten(axis) if is_joint else value.movedim(axis, -1)


def _repeated(inputs: list[Any], spot: Spot) -> list[Any]:
    """A copy in which the spot's slice has the values of its neighbour."""
    value = inputs[spot.tensor].clone(memory_format=torch.contiguous_format)
    lines = _lines(value, spot.axis, is_joint=spot.is_joint)
    end, neighbour = (-1, -2) if spot.is_last else (0, 1)
    lines[..., end] = lines[..., neighbour]
    return [value if number == spot.tensor else one for number, one in enumerate(inputs)]
