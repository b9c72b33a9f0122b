"""Plants in parameters and saved buffers. Called by the oracle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from forge.evalpool.judge.wide.domain import MIN_ROW, Domain
from forge.evalpool.judge.wide.plants import (
    MAX_SHARE,
    MIN_PLANTS,
    NEAR,
    Ground,
    element_values,
    rms_of,
)
from forge.evalpool.judge.wide.rows import COPIES, ROWS
from forge.evalpool.judge.wide.sought import Looks

if TYPE_CHECKING:
    from collections.abc import Mapping

GROWN = 0.9
"""Share of draws in which parameters of few elements exceed a bound that they may have."""

INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
STATE_ROWS = ("zero row", "same row", "equal row", "scaled row", "scaled row", "balanced row")
"""Kinds of rows of a parameter, the first where no others are borne."""


def plant_state(
    model: torch.nn.Module, before: Mapping[str, torch.Tensor], *, has_rows: bool, has_indices: bool
) -> None:
    """Plants into parameters and saved buffers of a model, in place: a few zeros, ties, other signs
    and sizes; of a few elements all grow. Some that were constant `before` they were moved get that
    back in a part. Vectors of one sign stay so: biases below a maximum. A matrix gets a column of
    zeros and, where asked, rows of several kinds; of integers that are no indices anything."""
    trained = {one.data_ptr() for one in model.parameters()}
    has_defaults, is_head = random.random() < 0.5, random.random() < 0.7
    for name, value in model.state_dict().items():
        size = value.numel()
        is_whole = value.dtype in INTEGERS
        if is_whole and value.ndim > 1 and (value.itemsize < 4 or not has_indices):
            _plant_integers(value)
        if not value.is_floating_point() or not value.is_contiguous():
            continue
        if size < MIN_ROW:
            if value.data_ptr() in trained and random.random() < GROWN:
                value.add_(value.sign() * random.uniform(1, 4)).mul_(random.choice((1, -1)))
            continue
        flat, default = value.view(-1), before[name].flatten()
        domain = Domain.of([value], permutes=False)
        if domain.form != "free":
            continue
        if has_defaults and bool((default == default[0]).all()):
            part = torch.arange(size) < random.randint(size // 8, size - 1)
            flat.copy_(torch.where(part if is_head else ~part, default, flat))
        ground = Ground(value=value, domain=domain, looks=Looks(), rms=rms_of(value), size=NEAR + 1)
        has_sign = size == max(value.shape) and domain.low * domain.high > 0
        kinds = ["tie"] if has_sign else ["zero", "tie", "small"]
        kinds += ["large"]  # a bound of a scale, a bias or a matrix
        kinds += ["sign"] if value.data_ptr() in trained and not has_sign else []
        at = torch.randint(1, size, (max(min(12, size // 2), size // 64),)).unique()
        for number, kind in enumerate(kinds):
            own = at[number :: len(kinds)]
            own = own if kind != "large" or size == max(value.shape) else own[:MIN_PLANTS]
            flat[own] = ground.cast(element_values(ground, kind, own))
        if size > max(value.shape) and min(value.shape[0], value.shape[-1]) >= MIN_ROW:
            rows, old = value.view(-1, value.shape[-1]), value.clone().view(-1, value.shape[-1])
            kinds = STATE_ROWS if has_rows else STATE_ROWS[:1]
            for kind, at in zip(kinds, torch.randperm(len(rows)).tolist(), strict=False):
                source = old[at - 1 if kind in COPIES else at].double()
                rows[at] = ground.cast(ROWS[kind][1](ground, source))
            value[..., random.randrange(value.shape[-1])] = 0


def _plant_integers(value: torch.Tensor) -> None:
    """Integers of any size and sign that the type has, in some places of more than two values."""
    if len(value.unique()) > 2:
        bits = torch.iinfo(value.dtype).bits
        drawn = torch.randint(-(1 << 63), (1 << 63) - 1, value.shape)
        some = (drawn >> torch.randint(64 - bits, 64, value.shape)).to(value.dtype)
        value.copy_(torch.where(torch.rand(value.shape) < 1 / MAX_SHARE, some, value))
