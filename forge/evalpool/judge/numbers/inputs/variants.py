"""Distributions of floating inputs that wrong kernels fail on, written in place.

Called by `input_sets.py`. Each takes an input as the problem gives it and needs no second copy of
it unless its domain has a form of its own (domain.py), so that a tensor of gigabytes can be drawn
again from its seed instead of being kept.

    spiked    a few dozen large values at secret, stratified positions over a small background, so
              that a sum, mean, norm or maximum is its spikes
    unlike    rows, columns and every other axis of unlike scale
    near_one  positive values near 1: products of thousands neither vanish nor overflow
    centred, shifted, wide   other means and sizes
    faint     norms below 1, which bounds of norms leave as they are, and beside which a bias counts
    huge      for products in TF32: a few elements of one input overflow fp16, in which a candidate
              may compute
    vast      all of an input for references without scores: no constant factor fits it and usual
              values into fp16
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.numbers.blocks import limit_on
from forge.evalpool.judge.numbers.called import is_categorical
from forge.evalpool.judge.numbers.finite import widened
from forge.evalpool.judge.numbers.inputs.discrete import Part
from forge.evalpool.judge.numbers.inputs.domain import Domain, Form, settle
from forge.evalpool.judge.numbers.inputs.edges import SHIFTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.numbers.inputs.edges import Edges, Kinds

NUM_SPIKES, MAX_SPIKES = 48, 4096
SPIKE_SHARE = 8
"""At most one element in so many is a spike."""
ELEMENTS_A_SPIKE = 256
"""Elements for each spike of a large tensor. With one spike a row, an arg-max shows that many
columns."""
MANY_SPIKES, END_SIZES = 1024, (0.75, 1.1, 1.5)
"""With more spikes, those at the first and the last element of all are larger than the rest, or a
sum without its last block would be within the tolerance. Their sizes differ, or those of two inputs
would cancel in each second set."""
PEAK, MILD_PEAK = 32.0, 6.0
"""Mean size of a spike, in rms of the tensor as given. exp(1.5 · PEAK) is finite in fp32."""
MIN_RATIO, MAX_RATIO = 64.0, 4096.0
"""Limits for the ratio of a spike to the background's rms; larger tensors, whose background sums to
more, have a larger one."""
SUM_SHARE = 2.0
"""Sum of all spikes relative to the background's absolute sum, if MAX_RATIO allows it."""
OUTER_RANGE, INNER_RANGE = 3.0, 1.5
"""Scales of `unlike` lie within two to the power of ± these: on the first and the last axis, and on
those between."""
NEAR_ONE = 0.25
"""Largest standard deviation of the logarithms of `near_one`."""
FAINT_NORM = (2.0**-6, 2.0**-2)
"""Norm of a whole input of `faint`."""
HUGE_VALUE, NUM_HUGE, MANY_PLACES = 2.0**17, 3, 64
"""Size of the elements of `huge`, twice the largest of fp16, how many there are, and among how
many places they are looked for. Of each row of scores most are usual ones then: an honest kernel
masks by -1e9, which would not be the lowest where all are huge."""
BESIDE = 0.6
"""Size of an element beside a huge one, in `HUGE_VALUE`: clamped to fp16 both are the same, and a
row of scores has another maximum."""
VAST_VALUE = 2.0**32
"""The largest element of `vast`: a third power of sums of products is finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freedom:
    """How far a set may leave the inputs as the problem gives them."""

    signs: bool = True
    """Values that were never negative may be."""
    unit: bool = True
    """Values that were within [0, 1] may lie outside."""
    discrete: bool = True
    """Masks and indices are drawn anew."""
    is_mild: bool = False
    """Smaller spikes and ranges of scale."""
    part: Part = Part.WHOLE
    """Part of constants that is drawn anew."""
    kinds: Kinds = frozenset()
    """Edge values that are planted (edges.py)."""
    scalars: bool = False
    """Numbers among the arguments take other values."""
    forms: bool = False
    """Probabilities, sorted rows and matrices of a form need not stay such."""


def vary_(
    value: torch.Tensor,
    variant: str,
    freedom: Freedom,
    *,
    domain: Domain | None = None,
    edges: Edges | None = None,
    is_raised: bool = False,
) -> torch.Tensor:
    """A floating input of `variant`, written over `value`, which must be contiguous.

    Categorical values and single numbers stay as they are.

    Args:
        domain: of `value`, where it is known.
        edges: plants the kinds of `freedom` in a tensor of no form; None plants none.
        is_raised: the tensor that has the raised and lowered values, if there are any.
    """
    if variant == "given" or value.numel() < 2:
        return value
    if (wide := widened(value)) is not value:  # torch computes nothing in types of one byte
        limit = torch.finfo(value.dtype).max
        vary_(wide, variant, freedom, domain=domain, edges=edges, is_raised=is_raised)
        return value.copy_(wide.clamp_(-limit, limit))
    domain = domain or Domain.of(value)
    if domain.form is Form.CATEGORICAL:
        return value
    if freedom.forms:
        domain = replace(domain, form=Form.FREE)
    if domain.form is Form.DEFINITE:
        return _congruent_(value, variant, freedom)
    if domain.form is Form.PROBABILITIES:
        value.clamp_(min=1e-7).log_()
    is_free = freedom.signs or not domain.is_non_negative
    is_huge = variant == "huge" and domain.form is Form.FREE
    change = _huge_elements if is_huge else VARIANTS[variant]
    change(value, is_free, freedom.is_mild)
    settle(value, domain, signs=not freedom.signs, unit=not freedom.unit)
    if edges is not None and domain.form is Form.FREE:
        kinds = freedom.kinds if is_raised else freedom.kinds - SHIFTED
        edges.plant_(value, kinds=kinds, signs=is_free)
    return value


def size_of(value: torch.Tensor) -> float:
    """The rms of finite values; 1 where there is none."""
    norm = float(torch.linalg.vector_norm(value.float() if value.itemsize < 4 else value))
    size = norm / math.sqrt(max(1, value.numel()))
    return size if math.isfinite(size) and size > 0 else 1.0


def _given(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    pass


def _centred(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    value.sub_(value.mean()).mul_(3).add_(0.5)


def _shifted(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    value.add_(1.5)


def _wide(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    value.mul_(4 if is_mild else 10)


def _huge(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    _grow(value, HUGE_VALUE)


def _huge_elements(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    """`huge` for a tensor of no form."""
    if torch.finfo(value.dtype).max < HUGE_VALUE:
        return
    flat = value.view(-1)
    places = torch.randint(len(flat), (MANY_PLACES,), device=value.device)
    places = places[flat[places] != 0][:NUM_HUGE]
    beside = (places + 1) % len(flat)
    flat[beside] = flat[beside].sign() * HUGE_VALUE * BESIDE
    flat[places] = flat[places].sign() * HUGE_VALUE


def _vast(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    _grow(value, HUGE_VALUE if is_mild else VAST_VALUE)


def _grow(value: torch.Tensor, wanted: float) -> None:
    largest = float(value.abs().max())
    if 0 < largest < wanted:
        value.mul_(wanted / largest)


def _faint(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    norm = size_of(value) * math.sqrt(value.numel())
    if value.itemsize > 2:  # halves would lose their last bits
        value.mul_(random.uniform(*FAINT_NORM) / norm)


def _near_one(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    spread = min(NEAR_ONE, 2 / math.sqrt(max(value.shape)))
    value.sub_(value.mean())
    value.mul_(spread / size_of(value)).exp_()


def _spiked(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    size = size_of(value)
    if is_free:
        value.sub_(value.mean())
    places = spike_places(tuple(value.shape)).to(value.device)
    ratio = SUM_SHARE * value.numel() / len(places)
    ratio = min(max(ratio, MIN_RATIO), MAX_RATIO if value.itemsize > 2 else MIN_RATIO)
    peak = MILD_PEAK if is_mild else PEAK
    value.mul_(peak / ratio)
    spikes = size * peak * (torch.rand(len(places), device=value.device) + 0.5)
    if is_free:
        signs = torch.randint(0, 2, (len(places),), device=value.device).mul_(2).sub_(1)
        spikes *= signs
    flat = value.view(-1)
    if len(places) <= MANY_SPIKES:
        flat[places] = spikes.to(value.dtype)
        return
    flat[places] = (spikes / 2).to(value.dtype)
    for end, spike in zip((0, -1), spikes[:2].tolist(), strict=True):
        flat[end] = math.copysign(random.choice(END_SIZES) * size * peak, spike)


def _unlike(value: torch.Tensor, is_free: bool, is_mild: bool) -> None:
    if is_free:
        value.sub_(value.mean())
    last = value.ndim - 1
    for axis, length in enumerate(value.shape):
        reach = OUTER_RANGE if axis in (0, last) else INNER_RANGE
        if is_mild or value.itemsize < 4:
            reach /= 2
        if length > 1:
            sizes = [length if a == axis else 1 for a in range(value.ndim)]
            powers = (torch.rand(sizes, device=value.device) * 2 - 1) * reach
            value.mul_(powers.exp2_().to(value.dtype))


VARIANTS: dict[str, Callable[[torch.Tensor, bool, bool], None]] = {
    "given": _given,
    "spiked": _spiked,
    "unlike": _unlike,
    "near_one": _near_one,
    "centred": _centred,
    "shifted": _shifted,
    "wide": _wide,
    "faint": _faint,
    "huge": _huge,
    "vast": _vast,
}
"""By name. Each writes over a contiguous tensor; its flags say if values may change their signs and
if changes are mild."""


def spike_places(shape: tuple[int, ...]) -> torch.Tensor:
    """[num] flat indices, at least one: stratified on each axis, with both ends of each among them.

    Any range of a share s of one axis has about s · num of them.
    """
    size = math.prod(shape)
    num = max(NUM_SPIKES, min(size // ELEMENTS_A_SPIKE, MAX_SPIKES))
    num = max(1, min(num, size // SPIKE_SHARE))
    flat = torch.zeros(num, dtype=torch.int64)
    for length in shape:
        strata = torch.randperm(num).double() + torch.rand(num, dtype=torch.float64)
        index = (strata * (length / num)).long().clamp_(0, length - 1)
        if num > 1 and length > 1:
            index[index.argmin()] = 0
            index[index.argmax()] = length - 1
        flat = flat * length + index
    return flat.unique()


def avoid_bf16_(value: torch.Tensor) -> torch.Tensor:
    """fp32 operands that TF32 keeps and bf16 rounds down, each by 3/8 of its last bit: an error
    of 0.3 % in products of any sign. Written in place; other types and categorical values stay."""
    if value.dtype is not torch.float32 or not value.numel() or is_categorical(value):
        return value
    for flat in value.view(-1).split(limit_on(value.device)):
        is_tiny = flat.abs() < torch.finfo(torch.float32).tiny
        flat.view(torch.int32).bitwise_and_(-(1 << 16)).bitwise_or_(0b011 << 13)
        flat.masked_fill_(is_tiny, 0.0)
    return value


def _congruent_(value: torch.Tensor, variant: str, freedom: Freedom) -> torch.Tensor:
    """D A D of symmetric positive definite matrices, which stay so."""
    length = value.shape[-1]
    scale = torch.ones(*value.shape[:-2], length, 1, device=value.device, dtype=value.dtype)
    if variant == "spiked":
        places = spike_places(tuple(scale.shape)).to(value.device)
        scale.view(-1)[places] = MILD_PEAK
    elif variant == "near_one":
        scale.add_(torch.rand_like(scale) * NEAR_ONE)
    else:
        reach = 0.5 if freedom.is_mild else INNER_RANGE
        scale = ((torch.rand_like(scale) * 2 - 1) * reach).exp2_()
    return value.mul_(scale * scale.mT)  # symmetric to the bit
