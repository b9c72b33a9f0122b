"""Rounding to narrow formats against torch and against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge.evalpool.judge.ttir.semantics.formats import FORMATS, Rounding, round_to
from forge.evalpool.judge.ttir.types import Scalar
from forge.evalpool.judge.ttir.values import decode

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E5M2": torch.float8_e5m2,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
}
"""Formats in which torch does not saturate, in any of its versions."""


def many_floats() -> np.ndarray:
    """Floats of every exponent: around each number of 16 bits, and random ones."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint64)
    bits = [high, high | 0x7FFF, high | 0x8000, high | 0x8001, random.astype(np.uint32)]
    return np.concatenate(bits).view(np.float32)


def same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    equal = (left == right) & (np.signbit(left) == np.signbit(right))
    return equal | (np.isnan(left) & np.isnan(right))


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("name", TORCH)
def test_rounding_to_nearest_equals_that_of_torch(name: str, wide: type) -> None:
    values = many_floats()
    wanted = torch.from_numpy(values).to(TORCH[name]).float().numpy()
    with np.errstate(all="ignore"):
        found = round_to(values.astype(wide), name)
    assert same(found, wanted).all()


@pytest.mark.parametrize("name", ["f16", "f8E4M3FN", "f8E5M2"])
def test_saturation_keeps_numbers_finite(name: str) -> None:
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 1.0], np.float32)
    limit = FORMATS[name].max
    for wide in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            found = round_to(values.astype(wide), name, saturate=True)
        assert same(found, np.array([limit, -limit, limit, -limit, np.nan, 1], np.float32)).all()


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("f8")])
def test_every_number_of_8_bits_rounds_to_itself(name: str) -> None:
    numbers = decode(np.arange(256, dtype=np.uint8), Scalar(name))
    with np.errstate(all="ignore"):
        assert same(round_to(numbers, name), numbers).all()
    finite = numbers[np.isfinite(numbers)]
    assert finite.max() == FORMATS[name].max


def rounded(value: Fraction, name: str, rounding: Rounding) -> Fraction:
    """Rounding of a small positive or negative number, by its definition."""
    form = FORMATS[name]
    size = abs(value)
    exponent = form.min_exponent
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    step = Fraction(2) ** (exponent - form.mantissa_bits)
    below, rest = divmod(size, step)
    half = step / 2
    up = {
        Rounding.NEAREST_EVEN: rest > half or (rest == half and below % 2 == 1),
        Rounding.NEAREST_AWAY: rest >= half,
        Rounding.ZERO: False,
        Rounding.UP: rest > 0 and value > 0,
        Rounding.DOWN: rest > 0 and value < 0,
    }[rounding]
    return (below + up) * step * (1 if value > 0 else -1)


@given(
    value=st.floats(-200, 200, width=32),
    name=st.sampled_from(["f16", "bf16", "tf32", "f8E4M3FN", "f8E5M2", "f8E4M3FNUZ"]),
    rounding=st.sampled_from(list(Rounding)),
)
def test_every_direction_rounds_as_defined(value: float, name: str, rounding: Rounding) -> None:
    with np.errstate(all="ignore"):
        found = round_to(np.array([value], np.float32), name, rounding=rounding)[0]
    if abs(value) > 1e-30:
        assert Fraction(float(found)) == rounded(Fraction(value), name, rounding)
