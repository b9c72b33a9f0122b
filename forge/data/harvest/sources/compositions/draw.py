"""Draws compositions: endless, the same for a seed and a number on every machine; and their source,
`compositions:NUMBER[@SEED]`. Before that, their operations: single ones, the form of KernelBench's
level 1; products and convolutions, with which a chain begins; and what follows: activations,
arithmetic, norms, pooling, reductions, softmax. Each takes a value to a value. `follow` draws one
that fits: it keeps out what would make the problem trivial, such as a rectifier of what is
positive, a mean over what a norm or a softmax has made constant, a clamp that saturates. Moments
are rough estimates for that purpose alone.

Inputs of a single operation are `name:sizes`, sizes being letters of the vocabulary's kinds; one
letter is one size in a problem. After the sizes stands what the tensor holds, as for
`ModuleWriter.input`: `?` a mask, `+` positive, `1` between 0 and 1, `=` probabilities, `-` signs,
`<V` indices below V, `#` a number.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from forge.data.harvest.kernelbench import marks
from forge.data.harvest.records import Found
from forge.data.harvest.sources.compositions.writer import (
    ONE,
    Dim,
    Given,
    ModuleWriter,
    Number,
    Operation,
    SizeDraw,
    Value,
    count,
    number,
    section,
    vocabulary,
)
from forge.errors import ConfigError

Facts = frozenset[int]


# single operations

_LETTERS = re.compile(r"[A-Z]8?|\d+")


def single(w: ModuleWriter) -> Value:
    """One of the operations on inputs of its own."""
    table, often = section("singles"), vocabulary()["often"]["singles"]
    name = w.rng.choices(list(table), weights=[20 if one in often else 1 for one in table])[0]
    one = table[name]
    declared = [each.partition(":") for each in one.inputs.split()]
    letters = re.findall(r"[A-Z]8?", " ".join(text for _, _, text in declared))
    letters += re.findall(r"\$([A-Z]8?)\b", " ".join(one.forms))
    dims: dict[str, Dim] = {letter: w.size(letter) for letter in dict.fromkeys(letters)}
    given: dict[str, Given] = {**dims}
    values: list[Value] = []
    for each, _, text in declared:
        match = re.fullmatch(r"([A-Z0-9,]*?)(\?|\+|=|-|#|<[A-Z]|1)?", text)
        assert match is not None
        sizes = [dims.get(size) or number(size) for size in match[1].split(",") if size]
        kind = match[2] or ""
        value = w.input(
            sizes, kind=kind[:1], below=dims[kind[1:]] if kind[1:] else None,
            name=w.rng.choice(vocabulary()["inputs"].get(each, [each])),
        )  # fmt: skip
        given[each] = value
        values.append(value)
    if one.work:
        w.flops += 2.0 * count([dims[letter] for letter in _LETTERS.findall(one.work)])
    if one.room:
        sizes = [dims.get(part) or number(part) for part in _LETTERS.findall(one.room)]
        room = math.prod(size.size for size in sizes)
        w.largest, w.num_bytes = max(w.largest, room), w.num_bytes + 4 * room
    w.ops.append(name)
    w.phrases.append(name.replace("_", " "))
    text = w.write(one, name if len(name) < 14 else "", **given)
    return w.let(values[0], text)


# products and convolutions

_HALF = 0.577
"""Standard deviation after a layer with torch's initial weights, of inputs with 1."""
SIDES = {1: "L", 2: "HW", 3: "ZHW"}
"""Kinds of the sides by their number."""


def lone_product(w: ModuleWriter) -> Value:
    """A matrix product that stands alone: most are of two inputs."""
    return w.rng.choice((*[_two_inputs] * 6, *[_of_tensor] * 3, *[_batched] * 2, _rows))(w)


def _rows(w: ModuleWriter) -> Value:
    first, second = w.rng.choice((("D", "E"), ("D8", "E8"), ("D8", "E8")))
    return _linear(w, w.input((w.size("B"), w.size(first))), w.size(second))


def _tokens(w: ModuleWriter) -> Value:
    return _linear(w, w.input((w.size("B"), w.size("T"), w.size("D8"))), w.size("E8"))


def _linear(w: ModuleWriter, start: Value, into: Dim) -> Value:
    """`x @ w.T + b` for the last dimension, or without `b`."""
    dims = start.dims
    name = w.rng.choice((*["linear"] * 5, "linear_no_bias"))
    w.ops.append(name)
    hint = w.rng.choice(("linear", "linear", "fc", "gemm", "gemm", "matmul", "matmul"))
    w.flops += 2.0 * count(dims) * into.size
    w.num_bytes += 4 * dims[-1].size * into.size
    w.weight_std = -1.0
    one = section("products")[name]
    layers = tuple(form for form in one.forms if " <- " in form)
    one = replace(one, forms=layers) if w.rng.random() < 0.6 else one
    found = w.apply(one, start, hint, D=dims[-1], E=into)
    std = _std_after(w, start, dims[-1].least)
    facts = {"std": std, "mean": 0.0, "is_positive": False, "flat": Facts()}
    return replace(found, dims=(*dims[:-1], into), **facts)


def _std_after(w: ModuleWriter, x: Value, fan_in: int) -> float:
    """Standard deviation after a product with the last parameter, or with a layer's weights."""
    size = math.hypot(x.mean, x.std)
    if w.weight_std < 0:
        return _HALF * size
    return size * (w.weight_std * math.sqrt(fan_in) or 1.0)


def _two_inputs(w: ModuleWriter) -> Value:
    """A product of two inputs, neither a parameter."""
    m, k, n = (w.size(letter) for letter in w.rng.choice(("MDE", "MQN", "MQN")))
    ends = ("a_b", "a_b", "a_bt", "a_bt", "at_b", "at_b", "at_bt", "at_bt", "square", "vector")
    end = w.rng.choice((*ends, "diagonal", "triangles"))
    shapes = {
        "at_b": ((k, m), (k, n)), "at_bt": ((k, m), (n, k)), "a_bt": ((m, k), (n, k)),
        "vector": ((m, k), (k, ONE)), "diagonal": ((m,), (m, n)), "triangles": ((m, m), (m, m)),
        "square": ((m, m), (m, m)),
    }  # fmt: skip
    kind = w.rng.choice(("", "u", "l")) if end == "triangles" else ""
    x, y = _two(w, *shapes.get(end, ((m, k), (k, n))), kind=kind)
    inner = {"diagonal": ONE, "triangles": m, "square": m}.get(end, k)
    dims = (m, ONE if end == "vector" else m if end in ("triangles", "square") else n)
    name = "a_b" if end == "square" else end
    return _multiplied(w, f"matmul_{name}", x, y, dims, inner)


def _two(
    w: ModuleWriter, first: tuple[Dim, ...], second: tuple[Dim, ...], *, kind: str = ""
) -> tuple[Value, Value]:
    left, right = w.rng.choice((*[("A", "B")] * 4, ("a", "b"), ("x", "y")))
    return w.input(first, name=left, kind=kind), w.input(second, name=right, kind=kind)


def _of_tensor(w: ModuleWriter) -> Value:
    """A product of a tensor with three or four axes and a matrix."""
    rows = tuple(w.size(letter) for letter in w.rng.choice(("BT", "BM", "BGT", "BGT")))
    k, n = (w.size(letter) for letter in w.rng.choice(("DE", "QN")))
    turned = w.rng.choice(("", "_turned"))
    x, y = _two(w, (*rows, k), (n, k) if turned else (k, n))
    return _multiplied(w, f"matmul_{len(rows) + 1}d{turned}", x, y, (*rows, n), k)


def _batched(w: ModuleWriter) -> Value:
    b, m, k, n = (w.size(letter) for letter in w.rng.choice(("BTKS", "BMQN")))
    name = w.rng.choice(("bmm", "bmm_turned", "bmm_first_turned", "bmm_both_turned"))
    is_first, is_second = (
        "first" in name or "both" in name,
        name in ("bmm_turned", "bmm_both_turned"),
    )
    x, y = _two(w, (b, k, m) if is_first else (b, m, k), (b, n, k) if is_second else (b, k, n))
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
    *(*[_rows] * 8, _tokens, *[_two_inputs] * 3, _batched, _of_tensor),
)


def image_input(w: ModuleWriter, num_sides: int) -> Value:
    """An image, a signal or a volume with channels."""
    w.is_volume = num_sides == 3
    dims = [w.size("B"), w.size("C"), *(w.size(letter) for letter in SIDES[num_sides])]
    if num_sides == 2 and w.rng.random() < 0.4:
        dims[3] = dims[2]
    name = w.rng.choice(("x", "x", "x", "x", "x", "x", "x", "input", "img"))
    return replace(w.input(dims, name=name), is_channels_first=True)


def convolution(w: ModuleWriter) -> Value:
    """A convolution in one, two or three dimensions, plain or transposed."""
    x = image_input(w, w.rng.choice((1, 2, 2, 2, 3, 3, 3)))
    if w.rng.random() < 0.46:
        return _transposed(w, x, w.size("O"))
    kinds = {"plain": 7, "grouped": 1, "depthwise": 2, "dilated": 2, "pointwise": 1, "separable": 1}
    return _convolved(w, x, w.rng.choices([*kinds], weights=[*kinds.values()])[0])


def _windows(w: ModuleWriter, n: int, choices: Sequence[int]) -> tuple[int, ...]:
    """A number for each side, in three of ten cases not the same for all."""
    if w.rng.random() < 0.3:
        return tuple(w.rng.choice(choices) for _ in range(n))
    return (w.rng.choice(choices),) * n


def _convolved(w: ModuleWriter, x: Value, kind: str) -> Value:
    rng, n, channels = w.rng, len(x.sides), x.dims[1]
    is_point, is_deep = kind == "pointwise", kind in ("depthwise", "separable")
    kernels = _windows(w, n, (1,) if is_point else (3, 3, 3, 2, 5, 7) if n < 3 else (3, 3, 2, 5))
    if n > 1 and rng.random() < 0.1:
        kernels = (*kernels[:-1], 1)
    strides = _windows(w, n, (1,) if is_point else (1, 1, 1, 2, 3))
    dilations = _windows(w, n, (1, 2, 3)) if kind == "dilated" and max(kernels) < 5 else (1,) * n
    sames = [d * (k - 1) // 2 if k % 2 else 0 for k, d in zip(kernels, dilations, strict=True)]
    paddings = rng.choice(((0,) * n, tuple(sames), tuple(sames), (0 if is_point else 1,) * n))
    groups = rng.choice((2, 4)) if kind == "grouped" else 1
    out = channels if is_deep else w.size("O")
    own = not is_deep and kind != "grouped" and rng.random() > max(w.style.layer_share, 0.85)
    one = section("products")["depthwise" if is_deep else "conv_own" if own else "conv"]
    w.ops.append(f"conv{n}d{'' if kind == 'plain' else '_' + kind}_k{kernels[0]}s{strides[0]}")
    sides = tuple(
        x.dims[i] if s == 1 and 2 * p == d * (k - 1)
        else x.dims[i].strided(kernel=k, stride=s, padding=p, dilation=d)
        for i, k, s, p, d in zip(x.sides, kernels, strides, paddings, dilations, strict=True)
    )  # fmt: skip
    dims = (x.dims[0], out, *sides)
    w.flops += 2.0 * count(dims) * math.prod(kernels) * (1 if is_deep else channels.size // groups)
    found = _built(
        w, x, dims, one, ("conv", "conv", "conv1", f"conv{n}d", f"conv{n}d"), kernels, own=own,
        fan_in=math.prod(kernels) * (1 if is_deep else channels.least // groups), stride=strides,
        padding=paddings, dilation=dilations, **{} if is_deep else {"groups": (groups,)},
    )  # fmt: skip
    return _convolved(w, found, "pointwise") if kind == "separable" else found


def _transposed(w: ModuleWriter, x: Value, out: Dim) -> Value:
    rng, n = w.rng, len(x.sides)
    kernels = _windows(w, n, (2, 3, 3, 4, 5) if n < 3 else (2, 3, 3, 5))
    strides = _windows(w, n, (1, 2, 2, 3) if n < 3 else (1, 2, 2))
    if n == 3:  # eight times as many places after it
        halved = {i for i, stride in zip(x.sides, strides, strict=True) if stride > 1}
        dims = (w.halved(dim) if i in halved else dim for i, dim in enumerate(x.dims))
        x = replace(x, dims=(*dims,))
    paddings = _windows(w, n, (0, 1)) if min(kernels) > 2 else (0,) * n
    dilations = _windows(w, n, (1, 1, 1, 2, 3)) if max(kernels) < 4 else (1,) * n
    extra = int(min(strides) > 1 and rng.random() < 0.35)
    groups = rng.choice((1, 1, 1, 1, 2, 4))
    own = groups == 1 and rng.random() > max(w.style.layer_share, 0.9)
    one = section("products")["transposed_own" if own else "transposed"]
    w.ops.append(f"conv_transpose{n}d_k{kernels[0]}s{strides[0]}")
    names = ("conv_transpose", f"conv_transpose{n}d", f"conv{n}d_transpose", "deconv", "conv")
    sides = tuple(
        x.dims[i].times(s, d * (k - 1) + 1 + extra - s - 2 * p)
        for i, k, s, p, d in zip(x.sides, kernels, strides, paddings, dilations, strict=True)
    )
    w.flops += 2.0 * count(x.dims) * math.prod(kernels) * out.size / groups
    return _built(
        w, x, (x.dims[0], out, *sides), one, names, kernels, own=own, fan_in=x.dims[1].least * 2,
        stride=strides, padding=paddings, output_padding=(extra,) * n, dilation=dilations,
        groups=(groups,),
    )  # fmt: skip


_USUAL = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1, "bias": True}


def _built(
    w: ModuleWriter, x: Value, dims: tuple[Dim, ...], one: Operation, names: Sequence[str],
    kernels: tuple[int, ...], *, own: bool, fan_in: int, **windows: tuple[int, ...],
) -> Value:  # fmt: skip
    """A convolution with its keyword arguments in place of `$end`; with a weight of its `own` it is
    a function, which takes no word about a bias. One number stands where it is that of all sides,
    but beside some kernels with several, and a kernel with one number may be a tuple of it."""
    rng = w.rng
    whole = len({*kernels}) > 1 and rng.random() < 0.5
    values: dict[str, Number] = {
        name: each if len({*each}) > 1 or (whole and len(each) > 1) else max(each)
        for name, each in windows.items()
    }
    if not own:
        values["bias"] = rng.random() > 0.55
    shown = [n for n, each in values.items() if w.style.is_explicit or each != _USUAL[n]]
    size, text = kernels if len({*kernels}) > 1 else kernels[0], "%kernel_size"
    if (
        len(kernels) > 1
        and len({*kernels} - {1}) == 1
        and rng.random() < 0.2 + 0.5 * (1 in kernels)
    ):
        size = max(kernels)
        text = f"({', '.join('%kernel_size' if k > 1 else '1' for k in kernels)})"
    one = one.formed("$end", "".join(f", {name}=%{name}" for name in shown))
    w.weight_std = -1.0
    found = w.apply(
        one.formed("%kernel_size", text, kernel_size=size, **values), x, rng.choice(names),
        C=x.dims[1], O=dims[1], nd=f"{len(kernels)}d", ones=", ".join(map(str, kernels)),
        units=", ".join(["1"] * len(kernels)),
    )  # fmt: skip
    std = _std_after(w, x, fan_in)
    found = replace(found, dims=dims, std=std, mean=0.0, is_positive=False, flat=Facts())
    w.note(found)
    return found


# what follows


def pointwise(w: ModuleWriter, x: Value, name: str) -> Value:
    """An activation or another function of each element."""
    activations = section("activations")
    one = activations.get(name) or section("elementwise")[name]
    hint = w.rng.choice((name, "act", "activation")) if name in activations else name
    mean, std, is_positive = _moments(x, one.effect)
    return w.step(name, one, x, hint, mean=mean, std=std, is_positive=is_positive, flat=Facts())


def _moments(x: Value, effect: str) -> tuple[float, float, bool]:
    """Mean, standard deviation and sign after an effect."""
    mean, std = x.mean, x.std
    match effect:
        case "rectify":
            return max(mean, 0.4 * std), 0.6 * std, True
        case "rectify_softly":
            return max(mean, 0.3 * std), 0.6 * std, False
        case "unit":
            return 0.5, min(0.2, 0.22 * std), True
        case "squash":
            return min(mean, 0.7), min(std, 0.6), x.is_positive
        case "shrink":
            return 0.5 * mean, 0.5 * std, x.is_positive
        case "positive":
            return abs(mean) + std, std, True
        case "grow":
            return mean, 2 * std, x.is_positive
        case _:
            return mean, std, False


# arithmetic


def scale(w: ModuleWriter, x: Value) -> Value:
    """A product with a number, or a quotient."""
    factor = w.rng.choice((2.0, 1.5, 3.0) if x.std < 0.4 else (0.5, 0.7, 1.5))
    factor = factor * 10 if x.std < 0.05 else factor
    name = w.rng.choice(("scale", "scale_factor", "multiplier", "gain", "divisor", "temperature"))
    value = round(1 / factor, 2) if name in ("divisor", "temperature") else factor
    one = replace(section("arithmetic")[name], constants={name: (value,)})
    return w.step("scale", one, x, "scaled", mean=x.mean * factor, std=x.std * factor)


def shift(w: ModuleWriter, x: Value) -> Value:
    """A sum with a number, or a difference."""
    by = w.rng.choice((0.5, 1.0, 0.1, 2.0, 0.25))
    name = w.rng.choice(("shift", "offset", "add_value", "subtract_value", "margin"))
    one = replace(section("arithmetic")[name], constants={name: (by,)})
    is_less = name in ("subtract_value", "margin")
    mean, is_positive = x.mean - by if is_less else x.mean + by, x.is_positive and not is_less
    return w.step("shift", one, x, "shifted", mean=mean, is_positive=is_positive)


def clamp(w: ModuleWriter, x: Value) -> Value:
    """A clamp inside of the values' spread, so that it does something."""
    low = _rounded(x.mean - w.rng.choice((0.5, 1.0)) * x.std)
    high = _rounded(x.mean + w.rng.choice((0.7, 1.2)) * x.std)
    high = high if high > low else low + max(0.1, _rounded(x.std))
    kind = w.rng.choice(("both", "both", "below", "above"))
    lows = ("min_value", "clamp_min", "low", "min_val", "lower")
    highs = ("max_value", "clamp_max", "high", "max_val", "upper")
    constants = dict.fromkeys(lows, (low,)) | dict.fromkeys(highs, (high,))
    one = replace(section("arithmetic")[kind], constants=constants)
    is_positive = x.is_positive or (low >= 0 and kind != "above")
    return w.step(
        "clamp", one, x, "clamped", std=0.6 * x.std, flat=Facts(), is_positive=is_positive
    )


def _rounded(number: float) -> float:
    """A number that a person would write."""
    return float(f"{number:.1g}") or 0.0


def extreme(w: ModuleWriter, x: Value) -> Value:
    """The larger or smaller of the value and a number."""
    bound = _rounded(x.mean + w.rng.choice((-0.3, 0.2)) * x.std)
    name = w.rng.choice(("minimum", "maximum"))
    constants = dict.fromkeys(("bound", "cap", "floor", "limit"), (bound,))
    one = replace(section("arithmetic")[name], constants=constants)
    return w.step(name, one, x, name[:3], std=0.6 * x.std, flat=Facts())


def parameter(w: ModuleWriter, x: Value) -> Value:
    """Arithmetic with a learned vector, one number a channel."""
    name = w.rng.choice(("add", "add", "add", "mul", "mul", "sub", "div", "affine", "max"))
    sizes = ", ".join(["$C", *["1"] * (x.rank - 1 - x.channel)])
    if x.is_channels_first and w.rng.random() < 0.3:
        sizes = f"1, {sizes}"
    ones = ", 1" * len(x.sides)
    shown = w.rng.choice(
        (*[f"[{sizes}]"] * 8, "[1]", f"[$C].view(1, -1{ones})" if ones else "[$C]")
    )
    one, hint = section("parameters")[name].formed("§", shown), "biased" * (name == "add")
    given = {"C": x.dims[x.channel]}
    return w.step(
        f"{name}_parameter", one, x, hint, given, std=1.3 * x.std, flat=Facts(), is_positive=False
    )


def residual(w: ModuleWriter, x: Value, first: Value | None) -> Value:
    """A sum or product with the input of the chain, with another input, or with itself."""
    hint = w.rng.choice(("summed", "res", "gated", "combined"))
    gates = section("gates")
    if first and first.text != x.text and first.dims == x.dims and w.rng.random() < 0.7:
        other, name = first, "residual"
    elif all(dim.text and dim.text != "1" for dim in x.dims) and w.rng.random() < 0.6:
        names = ("residual", "y", "other", "skip", "z", "addend")
        other, name = w.input(x.dims, name=w.rng.choice(names)), "other_input"
    else:
        return w.step("self_gate", gates["self"], x, hint, flat=Facts(), is_positive=False)
    return w.step(
        name, gates["other"], x, hint, {"y": other},
        std=1.2 * x.std, flat=Facts(), is_positive=False,
    )  # fmt: skip


def gated_halves(w: ModuleWriter, x: Value) -> Value:
    """A gate of one half of the features by the other."""
    half = Dim("", x.dims[x.channel].size // 2, x.dims[x.channel].least // 2)
    return w.step(
        "gated_halves", section("gates")["halves"], x, "gated", {"at": str(x.channel)},
        dims=(*x.dims[: x.channel], half, *x.dims[x.channel + 1 :]),
        std=0.5 * x.std, flat=Facts(), is_positive=False,
    )  # fmt: skip


# norms

LAYERS = {"group_norm": 24, "batch_norm": 12, "instance_norm": 6, "layer_norm": 4, "rms_norm": 2}
"""Weights of norms that are asked for more than others."""


def norm(w: ModuleWriter, x: Value) -> Value:
    """A normalisation with or without parameters."""
    flat = norms(x)
    name = w.rng.choices(sorted(flat), weights=[LAYERS.get(name, 1) for name in sorted(flat)])[0]
    dim, one = x.dims[x.channel], section("norms")[name]
    if not dim.text:
        one = replace(one, forms=tuple(form for form in one.forms if "$C" not in form))
    nd = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}.get(x.rank, "")
    hint = w.rng.choice(("norm", "normed", "normalized", name))
    shape = w.shape("normalized_shape", x.dims[1:]) if name == "layer_norm_sides" else ""
    given: dict[str, Given] = {"C": dim, "at": str(x.channel), "nd": nd, "shape": shape}
    is_signed = name not in ("lrn", "l1_normalize", "l2_normalize", "rms_norm", "max_normalize")
    std = {"lrn": x.std * 0.8, "l2_normalize": 0.2, "l1_normalize": 0.05}.get(name, 1.0)
    mean = 0.0 if is_signed else min(x.mean, 0.5)
    is_positive = x.is_positive and not is_signed
    return w.step(
        name, one, x, hint, given, mean=mean, std=std, flat=flat[name], is_positive=is_positive
    )


def norms(x: Value) -> dict[str, Facts]:
    """Norms that fit the value, and the dimensions along which each makes the sum constant."""
    at, dim, sides = x.channel, x.dims[x.channel], x.sides
    if x.rank < 2 or dim.least < 4:
        return {}
    found = {
        "l2_normalize": Facts(), "max_normalize": Facts(), "standardise": Facts({at}),
        "l1_normalize": Facts({at}) if x.is_positive else Facts(), "centre": Facts({at}),
    }  # fmt: skip
    if at == x.rank - 1 and dim.text:
        found |= {"layer_norm": Facts({at}), "rms_norm": Facts()}
    if dim.text and (sides or x.rank == 2):
        if x.rank != 3:
            found["batch_norm"] = Facts({0, *sides})
        if dim.multiple >= 4:
            found["group_norm"] = Facts({1, *sides})
        if not sides:
            found["instance_norm_rows"] = Facts({at})
    if sides and all(x.dims[i].text for i in (1, *sides)):
        found["layer_norm_sides"] = Facts({1, *sides})
    if any(x.dims[i].least > 1 for i in sides):
        found |= {"instance_norm": Facts(sides), "lrn": Facts()}
    return {name: flat for name, flat in found.items() if not flat & x.flat}


# windows and layout


def pool(w: ModuleWriter, x: Value) -> Value:
    """A window over the sides, or all of them."""
    nd, is_flat = f"{len(x.sides)}d", bool(x.flat & set(x.sides))
    name = w.rng.choice((*["max_pool"] * 2, *["avg_pool"] * 2, "global"))
    if name == "global":
        return reduce(w, x, at=x.sides, is_global=True)
    name = name.replace("avg", "max") if is_flat else name
    is_max = name == "max_pool"
    side = min(x.dims[i].least for i in x.sides)
    kernel = min(w.rng.choice((2, 2, 3, 3, 4, 5, 7) if len(x.sides) < 3 else (2, 2, 3)), side)
    stride = w.rng.choice((kernel, kernel, 2, 1))
    padding = w.rng.choice((0, 0, 1, kernel // 2)) if kernel > 2 else 0
    dilation = w.rng.choice((1, 1, 2, 3)) if is_max else 1
    dilation = 1 if dilation * (kernel - 1) >= side else dilation
    size = w.rng.choice(("kernel_size", "kernel_size", "pool_kernel_size", "pool_size"))
    is_usual, shows_all = stride == kernel and w.rng.random() < 0.6, w.rng.random() < 0.4
    last = w.rng.choice(("", "ceil_mode", "return_indices" if is_max else "count_include_pad"))
    given: list[tuple[str, Number, bool]] = [
        ("stride", None if is_usual else stride, not is_usual), ("padding", padding, padding > 0),
        ("dilation", dilation, dilation > 1), (last, False, padding > 0 and not is_max),
    ]  # fmt: skip
    given = [each for each in given if each[0] and (each[2] or shows_all)]
    given = [each for each in given if is_max or each[0] != "dilation"]
    end = w.rng.choice((f"%{size}", f"kernel_size=%{size}"))
    end += "".join(f", {word}=%{word}" for word, *_ in given)
    one = section("pools")[name].formed(
        "$end", end, **{size: kernel}, **{word: value for word, value, _ in given}
    )
    found = w.step(name, one, x, "pool", {"nd": nd})
    sides = tuple(
        x.dims[i].strided(kernel=kernel, stride=stride, padding=padding, dilation=dilation)
        for i in x.sides
    )
    mean = x.mean + 0.7 * x.std * is_max
    return replace(found, dims=(*x.dims[:2], *sides), mean=mean, std=0.7 * x.std, flat=Facts())


def pool_rows(w: ModuleWriter, x: Value) -> Value:
    """A window over the features of rows."""
    name, kernel = w.rng.choice(("max_pool_rows", "avg_pool_rows")), w.rng.choice((2, 3, 4))
    size = w.rng.choice(("kernel_size", "pool_kernel_size", "pool_size"))
    end = w.rng.choice((f"%{size}", f"kernel_size=%{size}"))
    one = section("pools")[name].formed("$end", end, **{size: kernel})
    last = x.dims[1].strided(kernel=kernel, stride=kernel, padding=0)
    mean = x.mean + 0.7 * x.std * (name == "max_pool_rows")
    facts = {"mean": mean, "std": 0.7 * x.std, "flat": Facts()}
    return w.step(name, one, x, "pool", dims=(x.dims[0], last), **facts)


# reductions and softmax


def softmax(w: ModuleWriter, x: Value) -> Value:
    """A softmax, its logarithm or a relative."""
    at = x.channel if w.rng.random() < 0.7 else w.rng.choice(tuple(range(1, x.rank)))
    at = at if x.dims[at].least >= 3 else x.channel
    name = w.rng.choice(("softmax", "softmax", "log_softmax", "softmin"))
    shown = w.rng.choice((at, -1)) if at == x.rank - 1 else at
    hint = "probs" if name == "softmax" else "scores"
    found = w.step(name, section("softmaxes")[name], x, hint, {"at": str(shown)}, flat=Facts())
    if name == "log_softmax":
        return replace(found, mean=-2.0, is_positive=False)
    least = x.dims[at].least
    return replace(found, mean=1 / least, std=x.std / least, is_positive=True, flat=Facts({at}))


def reduce(
    w: ModuleWriter, x: Value, *, at: tuple[int, ...] = (), is_global: bool = False
) -> Value:
    """A reduction of the given dimensions, or of one, of the sides, or of all but the batch."""
    kept_share = 0.8 if x.rank > 2 and (is_global or not at) else 0.5  # half of those alone
    options = [(x.channel,), (x.channel,), x.sides or (x.rank - 1,)] * 3
    options.append(tuple(range(1, x.rank)))
    at = at or w.rng.choice(options)
    if any(x.dims[i].least <= 1 for i in at):
        at = tuple(range(1, x.rank))
    if all(x.dims[i].least <= 1 for i in at):
        return pointwise(w, x, "tanh")
    name = w.rng.choice(_reductions(x, at, is_global=is_global))
    keeps = w.rng.random() < kept_share
    shown = str(at[0]) if len(at) == 1 else w.rng.choice((str(at), str(list(at))))
    shown = "-1" if at == (x.rank - 1,) and w.rng.random() < 0.5 else shown
    one = section("reductions")[name[1:] if len(at) == 1 and name in ("amax", "amin") else name]
    if len(at) > 2:  # `torch.norm` takes two dimensions for those of a matrix, and no more
        one = replace(one, forms=tuple(form for form in one.forms if "torch.norm" not in form))
    if is_global and name == "mean" and keeps:
        w.ops.append("global_mean")
        ones, one = f"({', '.join('1' for _ in at)},)", section("pools")["global_mean"]
        found = w.apply(one, x, "pool", nd=f"{len(at)}d", at=shown, ones=ones.replace("1,)", "1)"))
    else:
        w.ops.append(name)
        is_given = len(at) == 1 and w.rng.random() < 0.5  # by the constructor
        dim = ("dim=%dim" if is_given else f"dim={shown}") + (", keepdim=True" if keeps else "")
        one = one.formed("$dim", dim, dim=min(at))
        found = w.apply(one, x, {"amax": "peak", "amin": "low"}.get(name, name))
    least = math.prod(x.dims[i].least for i in at)
    mean, std = {
        "sum": (x.mean * least, x.std * least**0.5), "mean": (x.mean, x.std / least**0.5),
        "amax": (x.mean + 2 * x.std, 0.4 * x.std), "amin": (x.mean - 2 * x.std, 0.4 * x.std),
        "logsumexp": (2.0, 0.3 * x.std), "norm": (x.std * least**0.5, 0.7 * x.std),
        "var": (x.std**2, 0.3 * x.std**2), "std": (x.std, 0.3 * x.std),
    }[name]  # fmt: skip
    return replace(
        found, mean=mean, std=std,
        dims=tuple(ONE if i in at else d for i, d in enumerate(x.dims) if keeps or i not in at),
        flat=x.flat - Facts(at) if keeps and name in ("mean", "sum") else Facts(),
        is_positive=name in ("norm", "var", "std") or (x.is_positive and name != "logsumexp"),
        is_channels_first=x.is_channels_first and keeps,
    )  # fmt: skip


def _reductions(x: Value, at: tuple[int, ...], *, is_global: bool) -> list[str]:
    names = ["sum", "mean", "amax", "amin", "logsumexp", "logsumexp"] * 2 + ["norm", "var", "std"]
    if x.flat & set(at):
        names = ["amax", "amin", "logsumexp"]
    elif is_global:
        names = ["mean", "mean", "amax", "sum", "logsumexp"]
    return [name for name in names if x.std >= 0.3 or name != "logsumexp"]


# which


def follow(w: ModuleWriter, x: Value, first: Value | None) -> Value:
    """One step that fits the value, drawn by weight."""
    options: list[tuple[float, Callable[[], Value]]] = [
        (30, lambda: pointwise(w, x, w.rng.choice(_fitting(x, section("activations"))))),
        (3, lambda: pointwise(w, x, w.rng.choice(_fitting(x, section("elementwise"))))),
        (12, lambda: scale(w, x)),
        (6, lambda: shift(w, x)),
        (7, lambda: residual(w, x, first)),
    ]
    if x.std > max(0.02, abs(x.mean) / 2):  # else it saturates at other sizes
        options += [(9, lambda: clamp(w, x)), (4, lambda: extreme(w, x))]
    if x.rank > 1 and x.dims[x.channel].text not in ("", "1"):
        options.append((13, lambda: parameter(w, x)))
    if x.rank == 2 and not x.is_channels_first and x.dims[1].text not in ("", "1"):
        options += [(4, lambda: _linear(w, x, w.size("E8"))), (4, lambda: pool_rows(w, x))]
    if norms(x):
        options.append((32, lambda: norm(w, x)))
    if x.is_signal:
        options.append((32, lambda: pool(w, x)))
    if x.rank > 1 and x.dims[x.channel].least > 2 and x.channel not in x.flat:
        options.append((6, lambda: softmax(w, x)))
    if x.rank > 1 and any(dim.least > 1 for dim in x.dims[1:]):
        options.append((30, lambda: reduce(w, x)))
    if x.rank > 1 and x.dims[x.channel].multiple >= 4:
        options.append((3, lambda: gated_halves(w, x)))
    weights = [weight for weight, _ in options]
    return w.rng.choices([option for _, option in options], weights=weights)[0]()


def _fitting(x: Value, table: dict[str, Operation]) -> list[str]:
    """Names of those that do something to the value, and do not overflow; common ones often."""
    unfit, often = vocabulary()["unfit"], vocabulary()["often"]["activations"]
    is_large = abs(x.mean) + 1.5 * x.std > 3
    facts = {
        "positive": x.is_positive,
        "large": is_large,
        "narrow": x.std < 0.3,
        "flat": x.std < 0.1,
    }
    out = {name for fact, holds in facts.items() if holds for name in unfit[fact]}
    return [name for name in table if name not in out for _ in range(1 + 3 * often.count(name))]


NUM_OPERATIONS = {1: 34, 2: 12, 3: 19, 4: 16, 5: 12, 6: 7}
"""Shares of the compositions by number of operations."""
BANDWIDTH, RATE = 4.8e12, 60e12
"""Bytes and floating-point operations a second of an H200, the fastest card in use."""
WANTED_S = 120e-6
"""Time of a composition at large sizes, with a margin over 100 us."""
MAX_BYTES, MAX_ELEMENTS = 3_000_000_000, 1 << 28
"""Inputs, parameters and outputs together, and one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedModule:
    """One module, and definitions of its constants at other sizes."""

    level: int
    ops: tuple[str, ...]
    """Names of its operations in order."""
    text: str
    other: str
    """Other small sizes, where the constructor does not get them."""
    large: str
    """Sizes that keep a card busy for 100 us."""


def compose(seed: int, number: int) -> ComposedModule:
    """The composition of a number."""
    key = f"{seed}/{number}"
    num = Random(key).choices(list(NUM_OPERATIONS), weights=list(NUM_OPERATIONS.values()))[0]
    small, text = _write(key, num, SizeDraw(key))
    while _is_kernelbenchs(small.ops, text):
        key += "/again"
        small, text = _write(key, num, SizeDraw(key))
    other = _write(key, num, SizeDraw(key, is_other=True))[0].sizes
    return ComposedModule(
        level=1 if num == 1 else 2, ops=tuple(small.ops), text=text,
        other=_definitions({n: v for n, v in other.items() if n not in small.fixed}, text),
        large=_definitions(_large(key, num), text),
    )  # fmt: skip


def _is_kernelbenchs(ops: Sequence[str], text: str) -> bool:
    """True if KernelBench has the composition, in these words or in others."""
    is_told = summary(ops) in section("kernelbench")["level_2"].forms
    return is_told or marks().same_operations(ast.parse(text)) is not None


def summary(ops: Sequence[str]) -> str:
    """The operations in the words of KernelBench's level 2, separated by spaces."""
    words: list[str] = []
    for name in ops:
        if match := re.match(r"conv(_transpose)?(\d)d", name):
            words.append(f"conv{'transpose' if match[1] else ''}{match[2]}d")
        elif name.startswith(("linear", "matmul")):
            words.append("gemm")
        else:
            words.append(vocabulary()["words"].get(name, name.replace("_", "")))
    return " ".join(words)


def _definitions(sizes: Mapping[str, int | str], text: str) -> str:
    """The sizes that the text has, as lines of it."""
    found = {n: re.search(rf"^(?:\w+, )*{n}(?:, \w+)* = ", text, re.MULTILINE) for n in sizes}
    return "\n".join(f"{n} = {v}" for n, v in sizes.items() if found[n])


def _large(key: str, num: int) -> Mapping[str, int | str]:
    """Sizes whose batch makes the time, within the room."""
    factor = 1.0
    w = _write(key, num, SizeDraw(key, factor=factor))[0]
    for _ in range(8):
        seconds = w.num_bytes / BANDWIDTH + w.flops / RATE
        room = min(MAX_BYTES / w.num_bytes, MAX_ELEMENTS / w.largest)
        if room < 1:
            factor *= 0.9 * room
        elif seconds < WANTED_S and room > 1.5:
            factor *= min(8.0, 0.9 * room, 1.1 * WANTED_S / seconds)
        else:
            break
        w = _write(key, num, SizeDraw(key, factor=factor))[0]
    return w.sizes


def _write(key: str, num: int, sizes: SizeDraw) -> tuple[ModuleWriter, str]:
    writer = ModuleWriter(Random(key), sizes)
    return writer, writer.finish(_lone(writer) if num == 1 else _chain(writer, num))


def _lone(w: ModuleWriter) -> Value:
    """One operation."""
    kinds = {
        "table": 42, "convolution": 14, "product": 11, "reduction": 11, "pool": 5, "pointwise": 7,
        "norm": 8, "softmax": 2,
    }  # fmt: skip
    kind = w.rng.choices(list(kinds), weights=list(kinds.values()))[0]
    if kind == "table":
        return single(w)
    if kind in ("convolution", "product"):
        return lone_product(w) if kind == "product" else convolution(w)
    if kind == "pool":
        return pool(w, image_input(w, w.rng.choice((1, 2, 3))))
    x = _tensor(w, IMAGES if kind == "norm" else TENSORS)
    if kind == "reduction":
        return reduce(w, x, at=(w.rng.randrange(x.rank),))
    names = [*section("activations")] * 3 + [*section("elementwise")]
    steps = {
        "norm": norm, "softmax": softmax,
        "pointwise": lambda w, x: pointwise(w, x, w.rng.choice(names)),
    }  # fmt: skip
    return steps[kind](w, x)


TENSORS = (*("BD", "BTD", "BTD", "BCHW", "MD", "BGTK", "BCL", "BCZHW", "BL", "BIJ", "BIJ", "BFIJ"),)
IMAGES = (*("BFIJ", "BFIJ", "BCHW", "BCHW", "BCL", "BCZHW", "BD", "BTD", "MD"),)
"""Letters of the sizes of an input: of any, and of one that a norm takes."""


def _tensor(w: ModuleWriter, shapes: Sequence[str] = TENSORS) -> Value:
    """An input of one of the shapes."""
    letters = w.rng.choice(shapes)
    w.is_volume = "Z" in letters
    x = w.input([w.size(letter) for letter in letters])
    return replace(x, is_channels_first=letters[1] in "CF", is_positive=False)


def _chain(w: ModuleWriter, num: int) -> Value:
    """Several operations; of eight, seven begin with a product or a convolution."""
    if w.rng.random() < 0.88:
        is_short = num == 2 and w.rng.random() < 0.6  # products of two inputs, too
        product = lone_product if is_short else w.rng.choice(_PRODUCTS)
        x = product(w) if w.rng.random() < 0.45 else convolution(w)
    else:
        x = _tensor(w)
    first: Value | None = None
    while len(w.ops) < num:
        if w.ops and not first and w.rng.random() < 0.3 and num - len(w.ops) > 1 and x.rank > 1:
            names = ("residual", "identity", "original_x", "original_x", "saved", "shortcut")
            name = w.rng.choice(names)
            x, first = w.kept(x, name)
        before = x
        w.note(x)
        x = follow(w, x, first)
        if before.dims != x.dims:
            first = first if first is not None and first.dims == x.dims else None
    return x


PART = 100
"""Compositions of a unit: 0.15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compositions:
    """The first compositions of a seed. A unit is a range of them."""

    num: int
    seed: int

    @property
    def name(self) -> str:
        """With the seed, so that the problems of two harvests have ids of their own."""
        return f"compositions@{self.seed}"

    def facts(self) -> dict[str, Any]:
        return {"source": "compositions", "num": self.num, "seed": self.seed}

    def units(self) -> Sequence[str]:
        return [str(start) for start in range(0, self.num, PART)]

    def read(self, unit: str) -> Iterator[Found]:
        for place in range(int(unit), min(int(unit) + PART, self.num)):
            made = compose(self.seed, place)
            yield Found(
                text=made.text, origin=str(place), name="_".join(made.ops),
                kind=f"compositions level {made.level}", level=made.level,
                others=(made.other,) if made.other else (), large=made.large,
            )  # fmt: skip


def open_compositions(rest: str) -> Compositions:
    """The source that `compositions:REST` names. Raises ConfigError for another form."""
    match = re.fullmatch(r"([1-9]\d*)(?:@(\d+))?", rest)
    if match is None:
        raise ConfigError(
            f"compositions:{rest}: expected compositions:NUMBER or compositions:NUMBER@SEED, "
            "such as compositions:5000@7"
        )
    return Compositions(num=int(match[1]), seed=int(match[2] or 0))
