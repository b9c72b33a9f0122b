"""Products and convolutions that a composition begins with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.data.harvest.sources.compositions.vocabulary import section
from forge.data.harvest.sources.compositions.writer import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.data.harvest.sources.compositions.values import Dim, Value
    from forge.data.harvest.sources.compositions.vocabulary import Operation
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
    name = w.rng.choice(("linear", "linear", "linear", "linear_no_bias"))
    w.ops.append(name)
    hint = w.rng.choice(("linear", "fc", "proj", "gemm", "matmul", "dense", "lin", "fc1"))
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


def _low_rank(w: ModuleWriter) -> Value:
    """A layer and a product with two thin parameters, as adapters have them."""
    batch, dim, into = w.size("B"), w.size("D8"), w.size("E8")
    x = w.bound(w.input((batch, dim)))
    w.ops.append("low_rank")
    w.flops += 2.0 * count((batch, dim)) * into.size
    base = w.write(section("products")["linear_no_bias"], D=dim, E=into, x=x)
    rank = w.rng.choice(("4", "8"))
    one = section("products")["low_rank"]
    text = w.write(one, x=x, y=base if base.startswith("self.") else f"({base})", D=dim, E=into, R=rank)  # noqa: E501  # fmt: skip
    like = replace(x, dims=(batch, into), std=5.0, mean=0.0, is_positive=False)
    return w.let(like, text, "out")


def _two_inputs(w: ModuleWriter) -> Value:
    """A product of two inputs, neither a parameter."""
    m, k, n = w.size("M"), w.size("D"), w.size("E")
    name = w.rng.choice(("matmul_a_b", "matmul_a_bt", "matmul_at_b"))
    left, right = ("A", "a", "x", "lhs"), ("B", "b", "y", "rhs", "w")
    x = w.input((k, m) if name.endswith("at_b") else (m, k), name=w.rng.choice(left))
    y = w.input((n, k) if name.endswith("bt") else (k, n), name=w.rng.choice(right))
    return _multiplied(w, name, x, y, (m, n), k)


def _batched(w: ModuleWriter) -> Value:
    b, m, k, n = w.size("B"), w.size("T"), w.size("K"), w.size("S")
    name = w.rng.choice(("bmm", "bmm_turned"))
    x = w.input((b, m, k), name=w.rng.choice(("q", "a", "x", "queries", "left")))
    shape = (b, k, n) if name == "bmm" else (b, n, k)
    y = w.input(shape, name=w.rng.choice(("k", "b", "y", "keys", "right")))
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
    *(_rows, _rows, _rows, _tokens, _tokens, _two_inputs, _batched, _low_rank),
)


def image_input(w: ModuleWriter, num_sides: int) -> Value:
    """An image, a signal or a volume with channels."""
    dims = [w.size("B"), w.size("C"), *(w.size(letter) for letter in SIDES[num_sides])]
    if num_sides == 2 and w.rng.random() < 0.4:
        dims[3] = dims[2]
    name = w.rng.choice(("x", "x", "x", "input", "img", "image", "inp", "features", "fmap"))
    return replace(w.input(dims, name=name), is_channels_first=True)


def convolution(w: ModuleWriter) -> Value:
    """A convolution in one, two or three dimensions, plain or transposed."""
    x = image_input(w, w.rng.choice((1, 2, 2, 2, 3)))
    if w.rng.random() < 0.3:
        return _transposed(w, x, w.size("O"))
    kinds = ("plain",) * 6
    kind = w.rng.choice((*kinds, "grouped", "depthwise", "dilated", "pointwise", "separable", "reflect"))  # noqa: E501  # fmt: skip
    return _convolved(w, x, kind)


def _convolved(w: ModuleWriter, x: Value, kind: str) -> Value:
    rng, n, channels = w.rng, len(x.sides), x.dims[1]
    kernel = 1 if kind == "pointwise" else rng.choice((3, 3, 3, 2, 5) if n < 3 else (3, 3, 2))
    stride = 1 if kind == "pointwise" else rng.choice((1, 1, 1, 2))
    dilation = 2 if kind == "dilated" and kernel < 5 else 1
    same = dilation * (kernel - 1) // 2 if kernel % 2 else 0
    padding = rng.choice((0, same, same, 1 if kernel > 1 else 0))
    groups = rng.choice((2, 4)) if kind == "grouped" else 1
    is_deep = kind in ("depthwise", "separable")
    out = channels if is_deep else w.size("O")
    is_plain = kind in ("plain", "dilated", "pointwise")
    own = is_plain and rng.random() > w.style.layer_share
    one = section("products")["depthwise" if is_deep else "conv_own" if own else "conv"]
    values = {"stride": stride, "padding": padding, "dilation": dilation}
    values |= {} if is_deep else {"groups": groups}
    end = ", padding_mode='reflect'" if kind == "reflect" and padding else ""
    w.ops.append(f"conv{n}d" + ("" if kind == "plain" else f"_{kind}") + f"_k{kernel}s{stride}")
    w.weight_std = -1.0
    found = w.apply(
        _ending(w, one, end, own=own, kernel_size=kernel, **values), x,
        rng.choice(("conv", "conv", "conv1", f"conv{n}d", "layer")), C=channels, O=out, nd=f"{n}d",
        ones=_list(kernel, n), units=_list(1, n),
    )  # fmt: skip
    is_same = stride == 1 and 2 * padding == dilation * (kernel - 1)
    sides = tuple(
        x.dims[i] if is_same
        else x.dims[i].strided(kernel=kernel, stride=stride, padding=padding, dilation=dilation)
        for i in x.sides
    )  # fmt: skip
    dims = (x.dims[0], out, *sides)
    fan_in = 1 if is_deep else channels.size // groups
    w.flops += 2.0 * count(dims) * kernel**n * fan_in
    w.note(replace(found, dims=dims))
    std = _std_after(w, x, kernel**n * (1 if is_deep else channels.least // groups))
    found = replace(found, dims=dims, std=std, mean=0.0, is_positive=False, flat=frozenset())
    return _convolved(w, found, "pointwise") if kind == "separable" else found


def _transposed(w: ModuleWriter, x: Value, out: Dim) -> Value:
    rng, n = w.rng, len(x.sides)
    kernel = rng.choice((2, 3, 3, 4) if n < 3 else (2, 3, 3))
    stride = rng.choice((1, 2, 2))
    padding = rng.choice((0, 1)) if kernel > 2 else 0
    extra = 1 if (stride, padding, kernel) == (2, 1, 3) and rng.random() < 0.5 else 0
    own = rng.random() > max(w.style.layer_share, 0.5)
    one = section("products")["transposed_own" if own else "transposed"]
    values = {"stride": stride, "padding": padding, "output_padding": extra}
    w.ops.append(f"conv_transpose{n}d_k{kernel}s{stride}")
    w.weight_std = -1.0
    found = w.apply(
        _ending(w, one, "", own=own, kernel_size=kernel, **values), x,
        rng.choice(("conv_transpose", "deconv", "up", "upconv", "convt")), C=x.dims[1], O=out,
        nd=f"{n}d", ones=_list(kernel, n),
    )  # fmt: skip
    less = kernel + extra - stride - 2 * padding
    sides = tuple(x.dims[i].times(stride, less) for i in x.sides)
    w.flops += 2.0 * count(x.dims) * kernel**n * out.size
    dims = (x.dims[0], out, *sides)
    w.note(replace(found, dims=dims))
    std = _std_after(w, x, x.dims[1].least * 2)
    return replace(found, dims=dims, std=std, mean=0.0, is_positive=False)


_USUAL = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1, "bias": True}


def _ending(w: ModuleWriter, one: Operation, end: str, *, own: bool, **values: int) -> Operation:
    """A convolution with its keyword arguments in place of `$end`; with a weight of its `own` it is
    a function, which takes no word about a bias."""
    if not own:
        values["bias"] = w.rng.random() > 0.25
    shown = [n for n, each in values.items() if n in _USUAL]
    shown = [n for n in shown if w.style.is_explicit or values[n] != _USUAL[n]]
    end = "".join(f", {name}=%{name}" for name in shown) + end
    forms = tuple(form.replace("$end", end) for form in one.forms)
    return replace(one, forms=forms, constants={name: (each,) for name, each in values.items()})


def _list(number: int, times: int) -> str:
    return ", ".join([str(number)] * times)
