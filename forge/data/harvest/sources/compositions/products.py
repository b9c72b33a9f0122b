"""Products and convolutions that a composition begins with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.data.harvest.sources.compositions.values import ONE
from forge.data.harvest.sources.compositions.vocabulary import section
from forge.data.harvest.sources.compositions.writer import count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.data.harvest.sources.compositions.values import Dim, Value
    from forge.data.harvest.sources.compositions.vocabulary import Number, Operation
    from forge.data.harvest.sources.compositions.writer import ModuleWriter

_HALF = 0.577
"""Standard deviation after a layer with torch's initial weights, of inputs with 1."""
SIDES = {1: "L", 2: "HW", 3: "ZHW"}
"""Kinds of the sides by their number."""


def product(w: ModuleWriter) -> Value:
    """A matrix product in one of its forms."""
    return w.rng.choice(_PRODUCTS)(w)


def _rows(w: ModuleWriter) -> Value:
    first, second = w.rng.choice((("D", "E"), ("D8", "E8"), ("D8", "E8")))
    return _linear(w, (w.size("B"), w.size(first)), w.size(second))


def _tokens(w: ModuleWriter) -> Value:
    return _linear(w, (w.size("B"), w.size("T"), w.size("D8")), w.size("E8"))


def _linear(w: ModuleWriter, dims: tuple[Dim, ...], into: Dim) -> Value:
    """`x @ w.T + b` for the last dimension, or without `b`."""
    start = w.input(dims)
    name = w.rng.choice(("linear", "linear_no_bias"))
    w.ops.append(name)
    hint = w.rng.choice(("linear", "linear", "fc", "gemm", "gemm", "matmul", "matmul"))
    w.flops += 2.0 * count(dims) * into.size
    w.num_bytes += 4 * dims[-1].size * into.size
    w.weight_std = -1.0
    found = w.apply(section("products")[name], start, hint, D=dims[-1], E=into)
    std = _std_after(w, start, dims[-1].least)
    return replace(found, dims=(*dims[:-1], into), std=std, mean=0.0, is_positive=False)


def _std_after(w: ModuleWriter, x: Value, fan_in: int) -> float:
    """Standard deviation after a product with the last parameter, or with a layer's weights."""
    size = math.hypot(x.mean, x.std)
    if w.weight_std < 0:
        return _HALF * size
    return size * (w.weight_std * math.sqrt(fan_in) or 1.0)


def _two_inputs(w: ModuleWriter) -> Value:
    """A product of two inputs, neither a parameter."""
    m, k, n = w.size("M"), w.size("D"), w.size("E")
    ends = ("a_b", "a_b", "a_bt", "at_b", "at_bt", "vector", "diagonal", "triangles")
    end = w.rng.choice(ends)
    shapes = {
        "at_b": ((k, m), (k, n)), "at_bt": ((k, m), (n, k)), "a_bt": ((m, k), (n, k)),
        "vector": ((m, k), (k, ONE)), "diagonal": ((m,), (m, n)), "triangles": ((m, m), (m, m)),
    }  # fmt: skip
    x, y = _two(w, *shapes.get(end, ((m, k), (k, n))))
    inner = {"diagonal": ONE, "triangles": m}.get(end, k)
    dims = (m, ONE if end == "vector" else m if end == "triangles" else n)
    return _multiplied(w, f"matmul_{end}", x, y, dims, inner)


def _two(w: ModuleWriter, first: tuple[Dim, ...], second: tuple[Dim, ...]) -> tuple[Value, Value]:
    left, right = ("A", "A", "A", "a", "x"), ("B", "B", "B", "b", "y")
    return w.input(first, name=w.rng.choice(left)), w.input(second, name=w.rng.choice(right))


def _of_tensor(w: ModuleWriter) -> Value:
    """A product of a tensor with three or four axes and a matrix."""
    rows = tuple(w.size(letter) for letter in w.rng.choice(("BT", "BT", "BGT")))
    k, n = w.size("D"), w.size("E")
    x, y = _two(w, (*rows, k), (k, n))
    return _multiplied(w, f"matmul_{len(rows) + 1}d", x, y, (*rows, n), k)


def _batched(w: ModuleWriter) -> Value:
    b, m, k, n = w.size("B"), w.size("T"), w.size("K"), w.size("S")
    name = w.rng.choice(("bmm", "bmm_turned"))
    x, y = _two(w, (b, m, k), (b, k, n) if name == "bmm" else (b, n, k))
    return _multiplied(w, name, x, y, (b, m, n), k)


def _multiplied(
    w: ModuleWriter, name: str, x: Value, y: Value, dims: tuple[Dim, ...], inner: Dim
) -> Value:
    hint = w.rng.choice(("product", "scores", "out", "sim"))
    w.ops.append(name)
    w.flops += 2.0 * count(dims) * inner.size
    text = w.write(section("products")[name], hint, x=x, y=y)
    std = math.hypot(x.mean, x.std) * math.hypot(y.mean, y.std) * math.sqrt(inner.least)
    mean = x.mean * y.mean * inner.least
    return w.let(replace(x, dims=dims, std=std, mean=mean, is_positive=mean > 0), text, hint)


_PRODUCTS: tuple[Callable[[ModuleWriter], Value], ...] = (
    *(_rows, _rows, _rows, _rows, _tokens, _two_inputs, _two_inputs, _batched, _of_tensor),
)


def image_input(w: ModuleWriter, num_sides: int) -> Value:
    """An image, a signal or a volume with channels."""
    dims = [w.size("B"), w.size("C"), *(w.size(letter) for letter in SIDES[num_sides])]
    if num_sides == 2 and w.rng.random() < 0.4:
        dims[3] = dims[2]
    name = w.rng.choice(("x", "x", "x", "x", "x", "x", "x", "input", "img"))
    return replace(w.input(dims, name=name), is_channels_first=True)


def convolution(w: ModuleWriter) -> Value:
    """A convolution in one, two or three dimensions, plain or transposed."""
    x = image_input(w, w.rng.choice((1, 2, 2, 2, 3, 3)))
    if w.rng.random() < 0.38:
        return _transposed(w, x, w.size("O"))
    kinds = (*["plain"] * 7, "grouped", "depthwise", "dilated", "dilated", "pointwise", "separable")
    kind = w.rng.choice(kinds)
    return _convolved(w, x, kind)


def _windows(w: ModuleWriter, n: int, choices: Sequence[int]) -> tuple[int, ...]:
    """A number for each side, in one of five cases not the same for all."""
    if w.rng.random() < 0.2:
        return tuple(w.rng.choice(choices) for _ in range(n))
    return (w.rng.choice(choices),) * n


def _shown(values: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where it is that of all sides."""
    return values if len(set(values)) > 1 else values[0]


def _convolved(w: ModuleWriter, x: Value, kind: str) -> Value:
    rng, n, channels = w.rng, len(x.sides), x.dims[1]
    is_point = kind == "pointwise"
    kernels = _windows(w, n, (1,) if is_point else (3, 3, 3, 2, 5) if n < 3 else (3, 3, 2))
    strides = _windows(w, n, (1,) if is_point else (1, 1, 1, 2))
    dilations = _windows(w, n, (1, 2)) if kind == "dilated" and max(kernels) < 5 else (1,) * n
    sames = [d * (k - 1) // 2 if k % 2 else 0 for k, d in zip(kernels, dilations, strict=True)]
    paddings = rng.choice(((0,) * n, tuple(sames), tuple(sames), (0 if is_point else 1,) * n))
    groups = rng.choice((2, 4)) if kind == "grouped" else 1
    is_deep = kind in ("depthwise", "separable")
    out = channels if is_deep else w.size("O")
    is_plain = kind in ("plain", "dilated", "pointwise")
    own = is_plain and rng.random() > max(w.style.layer_share, 0.5)
    one = section("products")["depthwise" if is_deep else "conv_own" if own else "conv"]
    values = {
        "stride": _shown(strides), "padding": _shown(paddings), "dilation": _shown(dilations),
    }  # fmt: skip
    values |= {} if is_deep else {"groups": groups}
    end = ", padding_mode='reflect'" if kind == "reflect" and any(paddings) else ""
    name = f"conv{n}d" + ("" if kind == "plain" else f"_{kind}")
    w.ops.append(f"{name}_k{kernels[0]}s{strides[0]}")
    w.weight_std = -1.0
    found = w.apply(
        _ending(w, one, end, own=own, kernel_size=_shown(kernels), **values), x,
        rng.choice(("conv", "conv", "conv1", f"conv{n}d", f"conv{n}d")), C=channels, O=out,
        nd=f"{n}d", ones=", ".join(map(str, kernels)), units=", ".join(["1"] * n),
    )  # fmt: skip
    sides = tuple(
        x.dims[i] if s == 1 and 2 * p == d * (k - 1)
        else x.dims[i].strided(kernel=k, stride=s, padding=p, dilation=d)
        for i, k, s, p, d in zip(x.sides, kernels, strides, paddings, dilations, strict=True)
    )  # fmt: skip
    dims = (x.dims[0], out, *sides)
    fan_in = 1 if is_deep else channels.size // groups
    w.flops += 2.0 * count(dims) * math.prod(kernels) * fan_in
    w.note(replace(found, dims=dims))
    std = _std_after(w, x, math.prod(kernels) * (1 if is_deep else channels.least // groups))
    found = replace(found, dims=dims, std=std, mean=0.0, is_positive=False, flat=frozenset())
    return _convolved(w, found, "pointwise") if kind == "separable" else found


def _transposed(w: ModuleWriter, x: Value, out: Dim) -> Value:
    rng, n = w.rng, len(x.sides)
    kernels = _windows(w, n, (2, 3, 3, 4) if n < 3 else (2, 3, 3))
    strides = _windows(w, n, (1, 2, 2))
    paddings = _windows(w, n, (0, 1)) if min(kernels) > 2 else (0,) * n
    is_two = {*strides} == {2} and {*paddings} == {1} and {*kernels} == {3}
    extra = 1 if is_two and rng.random() < 0.5 else 0
    own = rng.random() > max(w.style.layer_share, 0.7)
    one = section("products")["transposed_own" if own else "transposed"]
    values = {"stride": _shown(strides), "padding": _shown(paddings), "output_padding": extra}
    w.ops.append(f"conv_transpose{n}d_k{kernels[0]}s{strides[0]}")
    w.weight_std = -1.0
    names = ("conv_transpose", f"conv_transpose{n}d", f"conv{n}d_transpose", "deconv", "conv")
    found = w.apply(
        _ending(w, one, "", own=own, kernel_size=_shown(kernels), **values), x, rng.choice(names),
        C=x.dims[1], O=out, nd=f"{n}d", ones=", ".join(map(str, kernels)),
    )  # fmt: skip
    sides = tuple(
        x.dims[i].times(s, k + extra - s - 2 * p)
        for i, k, s, p in zip(x.sides, kernels, strides, paddings, strict=True)
    )
    w.flops += 2.0 * count(x.dims) * math.prod(kernels) * out.size
    dims = (x.dims[0], out, *sides)
    w.note(replace(found, dims=dims))
    std = _std_after(w, x, x.dims[1].least * 2)
    return replace(found, dims=dims, std=std, mean=0.0, is_positive=False)


_USUAL = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1, "bias": True}


def _ending(w: ModuleWriter, one: Operation, end: str, *, own: bool, **values: Number) -> Operation:
    """A convolution with its keyword arguments in place of `$end`; with a weight of its `own` it is
    a function, which takes no word about a bias."""
    if not own:
        values["bias"] = w.rng.random() > 0.55
    shown = [n for n, each in values.items() if n in _USUAL]
    shown = [n for n in shown if w.style.is_explicit or values[n] != _USUAL[n]]
    end = "".join(f", {name}=%{name}" for name in shown) + end
    forms = tuple(form.replace("$end", end) for form in one.forms)
    return replace(one, forms=forms, constants={name: (each,) for name, each in values.items()})
