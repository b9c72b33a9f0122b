"""Special functions that numpy lacks: error functions and the normal distribution.

`erf` has a vectorised approximation; the others go through Python's `math` and `statistics`, an
element at a time (0.1 to 0.5 us).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Array

CHUNK = 16384
"""Elements for which the intermediate arrays of a polynomial fit into a core's cache."""

ERF_LIMIT = 3.93
"""Beyond it erf rounds to 1 in float32."""
ERF_NUMERATOR = (
    1.128379169,
    0.1851477626,
    0.05425475273,
    0.003840297369,
    0.0003771677332,
    4.620060722e-06,
    -1.285798807e-08,
)
ERF_DENOMINATOR = (
    1.0,
    0.4974163397,
    0.1138869833,
    0.01543484848,
    0.001302410652,
    6.250088916e-05,
)
"""`erf(x) = x P(x²) / Q(x²)` for `|x| < ERF_LIMIT`: a least-squares fit of our own, relative error
2e-9."""


def erf(array: Array) -> Array:
    """Error function."""
    if array.dtype == np.float64:
        return elementwise(math.erf, array)
    flat = array.reshape(-1)
    result = np.empty(flat.shape, np.float32)
    for start in range(0, len(flat), CHUNK):
        x = np.clip(flat[start : start + CHUNK].astype(np.float64), -ERF_LIMIT, ERF_LIMIT)
        square = x * x
        quotient = _polynomial(square, ERF_NUMERATOR) / _polynomial(square, ERF_DENOMINATOR)
        result[start : start + CHUNK] = x * quotient
    return np.clip(result, -1, 1, out=result).reshape(array.shape)


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Value of a polynomial with coefficients from the constant upwards (Horner)."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result *= x
        result += coefficient
    return result


def elementwise(function: Callable[..., float], *arrays: Array) -> Array:
    """A Python function of floats, of each element; NaN where it raises for NaN or the domain."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))

    def guarded(*values: float) -> float:
        try:
            return function(*values)
        except (ValueError, ZeroDivisionError):
            return math.nan
        except OverflowError:
            return math.inf

    called: Any = np.frompyfunc(guarded, len(arrays), 1)
    result = called(*(array.astype(np.float64) for array in arrays))
    return np.asarray(result, np.float64).reshape(shape).astype(arrays[0].dtype)


def of_elements(function: Callable[..., float]) -> Callable[..., Array]:
    """A function of arrays that calls a function of floats for each element."""
    return partial(elementwise, function)


def _quantile(p: float) -> float:
    """Inverse of the normal distribution function (Wichura's AS 241, in `statistics`)."""
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    return NormalDist().inv_cdf(p)


def _erfinv(y: float) -> float:
    if abs(y) < 1e-5:
        return y * math.sqrt(math.pi) / 2 * (1 + math.pi * y * y / 12)
    return -math.copysign(_quantile((1 - abs(y)) / 2), -y) / math.sqrt(2)


def _normcdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


erfc = of_elements(math.erfc)
erfinv = of_elements(_erfinv)
normcdf = of_elements(_normcdf)
normcdfinv = of_elements(_quantile)
