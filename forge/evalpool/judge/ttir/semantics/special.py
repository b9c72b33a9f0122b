"""Special functions that numpy lacks: error functions, gamma, Bessel functions, normal quantiles.

`erf` has a vectorised approximation; the others go through Python's `math` and `statistics`, an
element at a time (0.1 to 0.5 us), or are summed from their definitions in float64.
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


def of_fixed_order(function: Callable[[int, Array], Array], order: int) -> Callable[..., Array]:
    """A Bessel function of one order, computed in float64, with the type of its argument."""

    def call(x: Array) -> Array:
        return function(order, x.astype(np.float64)).astype(x.dtype)

    return call


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _tgamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.gamma(x)


def _erfcx(x: float) -> float:
    """`exp(x²) erfc(x)`; beyond 25 by the first terms of its asymptotic series."""
    if x < 25:
        return math.exp(x * x) * math.erfc(x)
    return (1 - 0.5 / (x * x) * (1 - 1.5 / (x * x))) / (x * math.sqrt(math.pi))


def _quantile(p: float) -> float:
    """Inverse of the normal distribution function (Wichura's AS 241, in `statistics`)."""
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    return NormalDist().inv_cdf(p)


def _erfinv(y: float) -> float:
    if abs(y) < 1e-5:
        return y * math.sqrt(math.pi) / 2 * (1 + math.pi * y * y / 12)
    return -math.copysign(_quantile((1 - abs(y)) / 2), -y) / math.sqrt(2)


def _erfcinv(y: float) -> float:
    return -_quantile(y / 2) / math.sqrt(2)


def _normcdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


erfc = of_elements(math.erfc)
erfcx = of_elements(_erfcx)
erfinv = of_elements(_erfinv)
erfcinv = of_elements(_erfcinv)
normcdf = of_elements(_normcdf)
normcdfinv = of_elements(_quantile)
lgamma = of_elements(_lgamma)
tgamma = of_elements(_tgamma)

HANKEL = 25.0
"""Beyond it Bessel functions of orders 0 and 1 have ten digits by Hankel's expansion."""
NODES = 64
"""Nodes of the trapezoidal rule, which converges exponentially for periodic functions."""


def bessel_j(order: int, x: Array) -> Array:
    """Bessel function of the first kind, of float64.

    Bessel's integral, `1/pi` times that of `cos(n t - x sin t)` over `[0, pi]`, by the trapezoidal
    rule (DLMF 10.9.2), and Hankel's expansion for large arguments (DLMF 10.17.3).
    """
    sign = -1.0 if order % 2 else 1.0
    large = _hankel(order, np.maximum(np.abs(x), HANKEL), np.cos, np.sin)
    near = np.clip(x, -HANKEL - order, HANKEL + order)
    total = np.zeros(x.shape)
    for k in range(NODES):
        angle = math.pi * (k + 0.5) / NODES
        total += np.cos(order * angle - near * math.sin(angle))
    far = np.where(x < 0, sign * large, large)
    return np.where(np.abs(x) > HANKEL + order, far, total / NODES)


def bessel_y(order: int, x: Array) -> Array:
    """Bessel function of the second kind, of float64 and order 0 or above.

    Neumann's series for orders 0 and 1 (DLMF 10.8), Hankel's expansion for large arguments,
    recurrence for higher orders. NaN below 0.
    """
    if order > 1:
        below, value = bessel_y(0, x), bessel_y(1, x)
        for n in range(1, order):
            below, value = value, 2 * n / x * value - below
        return value
    large = _hankel(order, np.maximum(x, HANKEL), np.sin, _minus_cosine)
    near = np.clip(x, 0, HANKEL)
    logarithm = np.log(near / 2) + np.euler_gamma
    if order == 0:
        small = logarithm * bessel_j(0, near)
        for k in range(1, 24):
            small -= 2 * (-1) ** k / k * bessel_j(2 * k, near)
    else:
        small = (logarithm - 1) * bessel_j(1, near) - bessel_j(0, near) / near
        for k in range(1, 24):
            small -= (-1) ** k * (2 * k + 1) / (k * (k + 1)) * bessel_j(2 * k + 1, near)
    value = np.where(x > HANKEL, large, 2 / math.pi * small)
    return np.where(x == 0, -np.inf, np.where(x < 0, np.nan, value))


def _minus_cosine(x: Array) -> Array:
    return -np.cos(x)


def _hankel(
    order: int, x: Array, first: Callable[..., Array], second: Callable[..., Array]
) -> Array:
    """Hankel's expansion `sqrt(2 / pi x) (P first(w) - Q second(w))`, ten terms."""
    phase = x - (order / 2 + 0.25) * math.pi
    term = np.ones_like(x)
    even, odd = np.zeros_like(x), np.zeros_like(x)
    for k in range(20):
        if k % 2 == 0:
            even += (-1) ** (k // 2) * term
        else:
            odd += (-1) ** (k // 2) * term
        term = term * (4 * order * order - (2 * k + 1) ** 2) / (8 * (k + 1) * x)
    return np.sqrt(2 / (math.pi * x)) * (even * first(phase) - odd * second(phase))


def bessel_i(order: int, x: Array) -> Array:
    """Modified Bessel function of the first kind (DLMF 10.32.3), of float64."""
    total = np.zeros(x.shape)
    for k in range(4 * NODES):
        angle = math.pi * (k + 0.5) / (4 * NODES)
        total += np.exp(x * math.cos(angle)) * math.cos(order * angle)
    return total / (4 * NODES)


def of_given_order(function: Callable[[int, Array], Array]) -> Callable[..., Array]:
    """A Bessel function of an array of orders and one of arguments; NaN for negative orders."""

    def call(order: Array, x: Array) -> Array:
        orders, values = np.broadcast_arrays(order, x.astype(np.float64))
        result = np.full(values.shape, np.nan)
        for one in np.unique(orders[orders >= 0]):
            chosen = orders == one
            result[chosen] = function(int(one), values[chosen])
        return result

    return call
