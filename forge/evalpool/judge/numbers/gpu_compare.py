"""Comparison of an output on a GPU with the reference: `compare.py` in torch, block by block.

Called on the judge's own copy of an output. The same tolerance and words; fp32 and narrower are
compared in fp32, whose rounding is 1,000 times below the tightest tolerance, fp64 in its own type.
Integers and bools must be equal. Beside the two tensors it takes memory for one block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from forge.evalpool.judge.channel.regions import region
from forge.evalpool.judge.numbers.blocks import THREADS, blocks_of
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.slabs import Slabs, largest_size, root_mean_squares, unpack_errors
from forge.evalpool.judge.numbers.tolerance import ERROR_FACTOR, floors_of, tolerance
from forge.evalpool.judge.wide.look import Look, Values, spread
from forge.evalpool.judge.wide.patterns import describe, explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from forge.evalpool.judge.numbers.blocks import Block
    from forge.evalpool.judge.wide.look import Operands


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The tolerance of one output, without the output."""

    close: float
    """Relative to scale + |ref|; 0 for integers."""
    scales: Slabs | None
    errors: Slabs | None
    """Eager's own; None where they are unknown."""
    least: float = 0.0
    """Accepted difference of every element, whatever its value and its slabs."""
    num_rounded: int = 0
    """Integers that may be off by one (errors/rounded.py)."""

    @classmethod
    def of(cls, expected: torch.Tensor, error: torch.Tensor, *, precision: str) -> Allowed:
        """For `expected`, whose own errors and least scales are packed (shares.py), or empty."""
        if not expected.is_floating_point():
            return cls(close=0.0, scales=None, errors=None, num_rounded=int(error.sum()))
        shape = tuple(expected.shape)
        errors, floors = unpack_errors(shape, error)
        is_known = errors is not None
        floors = floors or floors_of(_name(expected.dtype), precision, shape)
        close = tolerance(_name(expected.dtype), precision, is_error_known=is_known)
        scales = root_mean_squares(widened(expected), floors=floors)
        least = close * scales.least() + (ERROR_FACTOR * errors.least() if errors else 0.0)
        return cls(close=close, scales=scales, errors=errors, least=least)

    def at(self, block: Block, expected: torch.Tensor) -> torch.Tensor:
        """Largest accepted difference from one block of the reference, in its type."""
        assert self.scales is not None
        kind = expected.dtype
        allowed = expected.abs().mul_(self.close)
        allowed.add_(self.scales.at(block, factor=self.close, kind=kind))
        if self.errors is not None:
            allowed.add_(self.errors.at(block, factor=ERROR_FACTOR, kind=kind))
        return allowed.clamp_(max=torch.finfo(kind).max)  # an infinite reference allows nothing


SAMPLE = 256
"""Elements that differ of which a block's places are kept, for their pattern."""


@dataclass(slots=True)
class Differences:
    """Differences found in all blocks together."""

    along: list[NDArray[np.bool_]]
    """By axis, True for each index that has an element that differs."""
    places: list[torch.Tensor] = field(default_factory=list["torch.Tensor"])
    """Numbers of some of them in memory's order."""
    num_differing: int = 0
    first: tuple[int, ...] = ()
    """Index of the first that differs."""
    largest: float | None = None
    """Largest absolute error among finite ones."""
    num_unset: int = 0
    """NaN where the reference has none."""

    @classmethod
    def of(cls, shape: Sequence[int]) -> Differences:
        """None so far, in a tensor of this shape."""
        return cls(along=[np.zeros(size, np.bool_) for size in shape])


def values_of(tensor: torch.Tensor, *, name: str = "output") -> Values:
    """A tensor whose elements are fetched where they are needed."""

    def take(found: NDArray[np.int64]) -> NDArray[np.float64]:
        index = torch.from_numpy(found.reshape(-1)).to(tensor.device)
        part = tensor.reshape(-1)[index]
        return part.double().cpu().numpy().reshape(found.shape)

    kind = _name(tensor.dtype)
    return Values(shape=tuple(tensor.shape), take=take, dtype=kind, name=name)


def mismatch(
    got: torch.Tensor,
    expected: torch.Tensor,
    *,
    allowed: Allowed,
    name: str = "output",
    operands: Operands = tuple,
) -> str | None:
    """None when it agrees; else the first mismatch with statistics, in one line, and the pattern of
    what differs in a second one.

    Args:
        got, expected: [shape], of one type.
        allowed: of `expected`.
        operands: what the output is made from, asked where it is wrong.
    """
    if found := _shape_mismatch(got, expected, name):
        return found
    if expected.numel() == 0:
        return None
    got, expected = _bytes_of_bools(got, expected)
    if _largest_difference(got, expected) <= allowed.least:
        return None
    found = Differences.of(expected.shape)
    for block in blocks_of(expected):
        _add(found, got[block], expected[block], allowed, block)
    if found.num_differing <= allowed.num_rounded and (found.largest or 0.0) <= 1.0:
        return None
    return _described(found, got, expected, name, operands)


def allclose_mismatch(
    got: torch.Tensor, expected: torch.Tensor, *, tolerance: float, name: str = "output"
) -> str | None:
    """The first mismatch in the sense of `torch.allclose(reference, candidate)`, as
    `protocols.allclose_mismatch` finds it: NaN differs from everything, and the relative tolerance
    is of the candidate's value. Booleans must be equal."""
    if found := _shape_mismatch(got, expected, name):
        return found
    if expected.numel() == 0:
        return None
    tolerance = 0.0 if expected.dtype is torch.bool else tolerance
    got, expected = _bytes_of_bools(got, expected)
    found = Differences.of(expected.shape)
    for block in blocks_of(expected):
        _add_far(found, got[block], expected[block], tolerance, block)
    return _described(found, got, expected, name)


def _shape_mismatch(got: torch.Tensor, expected: torch.Tensor, name: str) -> str | None:
    """In one line, where the shape depends on the input set's values and `got` has another one."""
    if got.shape == expected.shape:
        return None
    return f"{name} shape is {list(got.shape)}, expected {list(expected.shape)}"


def is_near(
    got: torch.Tensor, expected: torch.Tensor, *, allowed: Allowed, margin: float = 1.0
) -> bool:
    """True if there is no mismatch; cheaper than its description.

    Args:
        margin: part of a floating difference that must be within tolerance.
    """
    if got.shape != expected.shape:
        return False
    if expected.numel() == 0:
        return True
    if not got.is_floating_point() or got.itemsize < 2:
        margin = 1.0
    with THREADS.held_back():
        return all(
            _is_near(got[block], expected[block], allowed, block, margin)
            for block in _ends_first(list(blocks_of(expected)))
        )


def _ends_first(found: list[Block]) -> list[Block]:
    """The last and the first block in front: there the results of a witness differ."""
    return [*found[-1:], *found[:-1]]


def _is_near(
    got: torch.Tensor, expected: torch.Tensor, allowed: Allowed, block: Block, margin: float
) -> bool:
    if margin != 1.0:
        got = expected + (got - expected) / margin
    if float(_difference(got, expected)) <= allowed.least:
        return True
    if not expected.is_floating_point():
        return torch.equal(got, expected)
    got, expected = got.double(), expected.double()
    near = (got - expected).abs_() <= allowed.at(block, expected)
    if bool(near.all()):
        return True
    same = (got == expected) | (got.isnan() & expected.isnan())
    return bool((near | (same & ~expected.isfinite())).all())


def is_unwritten(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if a floating output is all NaN though the reference is not."""
    if not got.is_floating_point() or expected.numel() == 0:
        return False
    return _is_all_nan(got) and not _is_all_nan(expected)


def _is_all_nan(tensor: torch.Tensor) -> bool:
    return all(bool(widened(tensor[block]).isnan().all()) for block in blocks_of(tensor))


def _bytes_of_bools(got: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of two bool tensors, since one that nothing wrote is 255 and would be true; other
    tensors as they are."""
    if expected.dtype is not torch.bool:
        return got, expected
    return got.view(torch.uint8), expected.view(torch.uint8)


def _largest_difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; NaN where one of the two is NaN, or both are the same infinity;
    of integers, 1 if any differs. Waits for the card once, and reads both tensors once."""
    return float(torch.stack(_differences(got, expected)).max())


def are_near(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor, Allowed]],
) -> list[bool]:
    """For each output, the expected one and what it is allowed: True if it surely agrees. False
    says nothing. Waits for the card once."""
    found: list[torch.Tensor] = []
    for got, expected, _ in pairs:
        if got.shape != expected.shape:
            found.append(torch.full((), torch.inf, dtype=torch.float64, device=expected.device))
        elif expected.numel():
            compared = _differences(*_bytes_of_bools(got, expected))
            found.append(torch.stack(compared).max().double())
        else:
            found.append(torch.zeros((), dtype=torch.float64, device=expected.device))
    largest: list[float] = torch.stack(found).tolist() if found else []
    return [one <= allowed.least for one, (_, _, allowed) in zip(largest, pairs, strict=True)]


def _differences(got: torch.Tensor, expected: torch.Tensor) -> list[torch.Tensor]:
    """The largest difference of each block, still on the card."""
    return [_difference(got[block], expected[block]) for block in blocks_of(expected)]


def _difference(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if not expected.is_floating_point():
        return (got != expected).any()
    wide = _compared_in(expected.dtype)
    return largest_size(got.to(wide) - expected.to(wide))


def _compared_in(kind: torch.dtype) -> torch.dtype:
    is_narrow = kind.is_floating_point and kind is not torch.float64
    return torch.float32 if is_narrow else torch.float64


def _add(
    found: Differences, got: torch.Tensor, expected: torch.Tensor, allowed: Allowed, block: Block
) -> None:
    kind = expected.dtype
    wide = _compared_in(kind)
    given = got, expected
    got, expected = got.to(wide), expected.to(wide)
    difference = (got - expected).abs_()
    if kind.is_floating_point:
        differs = (difference <= allowed.at(block, expected)).logical_not_()
    else:
        differs = given[0] != given[1]
    if not bool(differs.any()):
        return
    # Infinite and NaN elements are among those that differ so far.
    same = (got == expected) | (got.isnan() & expected.isnan())
    _count(found, differs & ~(same & ~expected.isfinite()), got, expected, block)


def _add_far(
    found: Differences, got: torch.Tensor, expected: torch.Tensor, tolerance: float, block: Block
) -> None:
    got, expected = got.double(), expected.double()
    allowed = got.abs().mul_(tolerance).add_(tolerance)
    near = ((got - expected).abs_() <= allowed) & got.isfinite()
    differs = ~(near | (got == expected))
    _count(found, differs, got, expected, block)


def _count(
    found: Differences,
    differs: torch.Tensor,
    got: torch.Tensor,
    expected: torch.Tensor,
    block: Block,
) -> None:
    """Adds the elements of one block that differ."""
    num = int(differs.count_nonzero())
    if not num:
        return
    if not found.num_differing:
        place = torch.unravel_index(differs.flatten().to(torch.uint8).argmax(), differs.shape)
        found.first = tuple(
            int(index) + part.start for index, part in zip(place, block, strict=True)
        )
    found.num_differing += num
    found.num_unset += int((got.isnan() & ~expected.isnan()).count_nonzero())
    axes = range(differs.dim())
    for axis, along in enumerate(found.along):
        others = [one for one in axes if one != axis]
        along[block[axis]] |= (differs.any(others) if others else differs).cpu().numpy()
    found.places.append(_some_places(differs, found.along, block))
    difference = (got - expected).abs_()[differs]
    finite = difference[difference.isfinite()]
    if finite.numel():
        found.largest = max(found.largest or 0.0, float(finite.max()))


def _some_places(
    differs: torch.Tensor, along: Sequence[NDArray[np.bool_]], block: Block
) -> torch.Tensor:
    """Numbers of some elements of a block that differ in memory's order of the whole tensor."""
    flat = differs.flatten().nonzero().flatten()
    flat = flat[torch.from_numpy(spread(len(flat), SAMPLE)).to(flat.device)].cpu()
    place = torch.unravel_index(flat, differs.shape)
    number = torch.zeros_like(flat)
    for index, part, size in zip(place, block, map(len, along), strict=True):
        number = number * size + index + part.start
    return number


def _described(
    found: Differences,
    got: torch.Tensor,
    expected: torch.Tensor,
    name: str,
    operands: Operands = tuple,
) -> str | None:
    """The differences in words; None without any."""
    if found.num_differing == 0:
        return None
    words = describe(
        index=found.first,
        expected=_number(expected[found.first]),
        got=_number(got[found.first]),
        num_differing=found.num_differing,
        size=expected.numel(),
        largest=found.largest,
        num_unset=found.num_unset,
        name=name,
    )
    is_part = found.num_differing > 1
    why = explained(
        Look(
            expected=values_of(expected),
            got=values_of(got),
            region=region(found.along, num=found.num_differing) if is_part else None,
            share=found.num_differing / expected.numel(),
            places=torch.cat(found.places).numpy(),
            operands=operands(),
        ),
        name=name,
    )
    return f"{words}\n{why}" if why else words


def _number(value: torch.Tensor) -> float:
    return float(value) if value.is_floating_point() else int(value)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
