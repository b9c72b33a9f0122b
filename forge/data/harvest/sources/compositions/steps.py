"""Operations that follow another one: activations, arithmetic, norms, pooling, reductions, softmax.

Each takes a value to a value. `follow` draws one that fits: it keeps out what would make the
problem trivial, such as a rectifier of what is positive, a mean over what a norm or a softmax has
made constant, a clamp that saturates. Moments are rough estimates for that purpose alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.data.harvest.sources.compositions.values import ONE, Dim, Value
from forge.data.harvest.sources.compositions.vocabulary import Operation, section

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.data.harvest.sources.compositions.writer import ModuleWriter

Facts = frozenset[int]


def pointwise(w: ModuleWriter, x: Value, name: str) -> Value:
    """An activation or another function of each element."""
    activations = section("activations")
    one = activations.get(name) or section("elementwise")[name]
    w.ops.append(name)
    hint = w.rng.choice((name, "act", "activation")) if name in activations else name
    found = w.apply(one, x, hint)
    mean, std, is_positive = _moments(x, one.effect)
    return replace(found, mean=mean, std=std, is_positive=is_positive, flat=Facts())


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
    w.ops.append("scale")
    factor = w.rng.choice((2.0, 1.5, 3.0) if x.std < 0.4 else (0.5, 0.7, 1.5))
    factor = factor * 10 if x.std < 0.05 else factor
    name = w.rng.choice(("scale", "scale_factor", "multiplier", "gain", "divisor", "temperature"))
    value = round(1 / factor, 2) if name in ("divisor", "temperature") else factor
    one = replace(section("arithmetic")[name], constants={name: (value,)})
    return replace(w.apply(one, x, "scaled"), mean=x.mean * factor, std=x.std * factor)


def shift(w: ModuleWriter, x: Value) -> Value:
    """A sum with a number, or a difference."""
    w.ops.append("shift")
    by = w.rng.choice((0.5, 1.0, 0.1, 2.0, 0.25))
    name = w.rng.choice(("shift", "offset", "add_value", "subtract_value", "margin"))
    one = replace(section("arithmetic")[name], constants={name: (by,)})
    is_less = name in ("subtract_value", "margin")
    mean = x.mean - by if is_less else x.mean + by
    return replace(w.apply(one, x, "shifted"), mean=mean, is_positive=x.is_positive and not is_less)


def clamp(w: ModuleWriter, x: Value) -> Value:
    """A clamp inside of the values' spread, so that it does something."""
    w.ops.append("clamp")
    low = _rounded(x.mean - w.rng.choice((0.5, 1.0)) * x.std)
    high = _rounded(x.mean + w.rng.choice((0.7, 1.2)) * x.std)
    high = high if high > low else low + max(0.1, _rounded(x.std))
    kind = w.rng.choice(("both", "both", "below", "above"))
    lows, highs = ("min_value", "clamp_min", "low", "min_val", "lower"), ("max_value", "clamp_max", "high", "max_val", "upper")  # noqa: E501  # fmt: skip
    constants = dict.fromkeys(lows, (low,)) | dict.fromkeys(highs, (high,))
    found = w.apply(replace(section("arithmetic")[kind], constants=constants), x, "clamped")
    is_positive = x.is_positive or (low >= 0 and kind != "above")
    return replace(found, std=0.6 * x.std, flat=Facts(), is_positive=is_positive)


def _rounded(number: float) -> float:
    """A number that a person would write."""
    return float(f"{number:.1g}") or 0.0


def extreme(w: ModuleWriter, x: Value) -> Value:
    """The larger or smaller of the value and a number."""
    bound = _rounded(x.mean + w.rng.choice((-0.3, 0.2)) * x.std)
    name = w.rng.choice(("minimum", "maximum"))
    w.ops.append(name)
    constants = dict.fromkeys(("bound", "cap", "floor", "limit"), (bound,))
    found = w.apply(replace(section("arithmetic")[name], constants=constants), x, name[:3])
    return replace(found, std=0.6 * x.std, flat=Facts())


def parameter(w: ModuleWriter, x: Value) -> Value:
    """Arithmetic with a learned vector, one number a channel."""
    name = w.rng.choice(("add", "add", "add", "mul", "mul", "sub", "div", "affine", "max"))
    w.ops.append(f"{name}_parameter")
    sizes = ", ".join(["$C", *["1"] * (x.rank - 1 - x.channel)])
    if x.is_channels_first and w.rng.random() < 0.3:
        sizes = f"1, {sizes}"
    one = section("parameters")[name]
    one = replace(one, forms=tuple(form.replace("§", f"[{sizes}]") for form in one.forms))
    found = w.apply(one, x, "biased" if name == "add" else "", C=x.dims[x.channel])
    return replace(found, std=1.3 * x.std, flat=Facts(), is_positive=False)


def residual(w: ModuleWriter, x: Value, first: Value | None) -> Value:
    """A sum or product with the input of the chain, with another input, or with itself."""
    hint = w.rng.choice(("summed", "res", "gated", "combined"))
    if first is not None and first.dims == x.dims and w.rng.random() < 0.7:
        other = first
        w.ops.append("residual")
    elif all(dim.text and dim.text != "1" for dim in x.dims) and w.rng.random() < 0.6:
        names = ("residual", "y", "other", "skip", "z", "addend")
        other = w.input(x.dims, name=w.rng.choice(names))
        w.ops.append("other_input")
    else:
        w.ops.append("self_gate")
        found = w.apply(section("gates")["self"], x, hint)
        return replace(found, flat=Facts(), is_positive=False)
    found = w.apply(section("gates")["other"], x, hint, y=other)
    return replace(found, std=1.2 * x.std, flat=Facts(), is_positive=False)


def gated_halves(w: ModuleWriter, x: Value) -> Value:
    """A gate of one half of the features by the other."""
    w.ops.append("gated_halves")
    found = w.apply(section("gates")["halves"], x, "gated", at=str(x.channel))
    half = Dim("", x.dims[x.channel].size // 2, x.dims[x.channel].least // 2)
    dims = (*x.dims[: x.channel], half, *x.dims[x.channel + 1 :])
    return replace(found, dims=dims, std=0.5 * x.std, flat=Facts(), is_positive=False)


# norms


LAYERS = frozenset({"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"})


def norm(w: ModuleWriter, x: Value) -> Value:
    """A normalisation with or without parameters."""
    flat = norms(x)
    layers = [3 if name in LAYERS else 1 for name in sorted(flat)]
    name = w.rng.choices(sorted(flat), weights=layers)[0]
    w.ops.append(name)
    dim, one = x.dims[x.channel], section("norms")[name]
    if not dim.text:
        one = replace(one, forms=tuple(form for form in one.forms if "$C" not in form))
    nd = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}.get(x.rank, "")
    hint = w.rng.choice(("norm", "normed", "normalized", name))
    found = w.apply(one, x, hint, C=dim, at=str(x.channel), nd=nd)
    is_signed = name not in ("lrn", "l1_normalize", "l2_normalize", "rms_norm", "max_normalize")
    std = {"lrn": x.std * 0.8, "l2_normalize": 0.2, "l1_normalize": 0.05}.get(name, 1.0)
    mean = 0.0 if is_signed else min(x.mean, 0.5)
    is_positive = x.is_positive and not is_signed
    return replace(found, mean=mean, std=std, flat=flat[name], is_positive=is_positive)


def norms(x: Value) -> dict[str, Facts]:
    """Norms that fit the value, and the dimensions along which each makes the sum constant."""
    at, dim, sides = x.channel, x.dims[x.channel], x.sides
    if x.rank < 2 or dim.least < 4:
        return {}
    found = {
        "l2_normalize": Facts(), "max_normalize": Facts(), "standardise": Facts({at}),
        "l1_normalize": Facts({at}) if x.is_positive else Facts(),
    }  # fmt: skip
    if at == x.rank - 1 and dim.text:
        found |= {"layer_norm": Facts({at}), "rms_norm": Facts()}
    if dim.text and (sides or x.rank == 2):
        if x.rank != 3:
            found["batch_norm"] = Facts({0, *sides})
        if sides and dim.multiple >= 4:
            found["group_norm"] = Facts({1, *sides})
    if sides:
        found |= {"instance_norm": Facts(sides), "lrn": Facts()}
    return {name: flat for name, flat in found.items() if not flat & x.flat}


# windows and layout


def pool(w: ModuleWriter, x: Value) -> Value:
    """A window over the sides, or all of them."""
    nd, is_flat = f"{len(x.sides)}d", bool(x.flat & set(x.sides))
    name = w.rng.choice(
        (*["max_pool"] * 4, *["avg_pool"] * 4, "lp_pool", "global", "global")
    )  # fmt: skip
    if name == "global":
        return reduce(w, x, at=x.sides, is_global=True)
    name = name.replace("avg", "max") if is_flat else name
    w.ops.append(name)
    one = section("pools")[name]
    kernel = w.rng.choice((2, 2, 3))
    stride = w.rng.choice((kernel, kernel, 2, 1))
    padding = w.rng.choice((0, 0, 1)) if kernel == 3 and name != "lp_pool" else 0
    size = w.rng.choice(("kernel_size", "kernel_size", "pool_kernel_size", "pool_size"))
    end = w.rng.choice((f"%{size}", f"kernel_size=%{size}" if name != "lp_pool" else f"%{size}"))
    end += "" if stride == kernel and w.rng.random() < 0.5 else ", stride=%stride"
    end += ", padding=%padding" if padding else ""
    is_avg = padding and name == "avg_pool" and w.rng.random() < 0.4
    end += ", count_include_pad=%count_include_pad" if is_avg else ""
    forms = tuple(form.replace("$end", end) for form in one.forms)
    constants = {size: (kernel,), "stride": (stride,), "padding": (padding,)}
    constants["count_include_pad"] = (False,)
    one = replace(one, forms=forms, constants=constants)
    if name == "lp_pool" and not x.is_positive:
        x = replace(w.apply(section("pools")["magnitude"], x, "magnitude"), is_positive=True)
    found = w.apply(one, x, "pool", nd=nd)
    sides = tuple(
        x.dims[i].strided(kernel=kernel, stride=stride, padding=padding) for i in x.sides
    )  # fmt: skip
    mean = x.mean + 0.7 * x.std * (name == "max_pool")
    return replace(found, dims=(*x.dims[:2], *sides), mean=mean, std=0.7 * x.std, flat=Facts())


def reshape_sides(w: ModuleWriter, x: Value) -> Value:
    """Padding, upsampling or flattening of an image."""
    name = w.rng.choice(("pad", "upsample", "flatten"))
    w.ops.append(name)
    both = ", ".join(["1", "1"] * len(x.sides))
    found = w.apply(section("layout")[name], x, name, both=both)
    if name == "flatten":
        size, least = (math.prod(d.size for d in x.dims[1:]), math.prod(d.least for d in x.dims[1:]))  # noqa: E501  # fmt: skip
        dims = (x.dims[0], Dim("", size, least))
        return replace(found, dims=dims, is_channels_first=False, flat=Facts())
    grown = [x.dims[i].times(1, 2) if name == "pad" else x.dims[i].times(2) for i in x.sides]
    return replace(found, dims=(*x.dims[:2], *grown), flat=Facts())


# reductions and softmax


def softmax(w: ModuleWriter, x: Value) -> Value:
    """A softmax, its logarithm or a relative."""
    at = x.channel if w.rng.random() < 0.7 else w.rng.choice(tuple(range(1, x.rank)))
    at = at if x.dims[at].least >= 3 else x.channel
    name = w.rng.choice(("softmax", "softmax", "log_softmax", "softmin"))
    w.ops.append(name)
    shown = w.rng.choice((at, -1)) if at == x.rank - 1 else at
    hint = "probs" if name == "softmax" else "scores"
    found = w.apply(section("softmaxes")[name], x, hint, at=str(shown))
    if name == "log_softmax":
        return replace(found, mean=-2.0, is_positive=False, flat=Facts())
    least = x.dims[at].least
    return replace(found, mean=1 / least, std=x.std / least, is_positive=True, flat=Facts({at}))


def reduce(
    w: ModuleWriter, x: Value, *, at: tuple[int, ...] = (), is_global: bool = False
) -> Value:
    """A reduction of the given dimensions, or of one, of the sides, or of all but the batch."""
    options = [(x.channel,), (x.channel,), x.sides or (x.rank - 1,)]
    at = at or w.rng.choice(options)
    if any(x.dims[i].least <= 1 for i in at):
        at = tuple(range(1, x.rank))
    if all(x.dims[i].least <= 1 for i in at):
        return pointwise(w, x, "tanh")
    name = w.rng.choice(_reductions(x, at, is_global=is_global))
    keeps = w.rng.random() < (0.8 if x.rank > 2 else 0.5)
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
        forms = tuple(form.replace("$dim", dim) for form in one.forms)
        one = replace(one, forms=forms, constants={"dim": at[:1]})
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
    names = ["sum", "mean", "amax", "amin", "logsumexp", "norm", "var", "std"]
    if x.flat & set(at):
        names = ["amax", "amin", "logsumexp"]
    elif is_global:
        names = ["mean", "mean", "amax", "sum", "logsumexp"]
    return [name for name in names if x.std >= 0.3 or name != "logsumexp"]


def running(w: ModuleWriter, x: Value) -> Value:
    """A running sum, maximum or difference along the last dimension."""
    last = x.dims[-1]
    names = [name for name in section("running") if name != "diff" or last.least >= 4]
    name = w.rng.choice(names)
    w.ops.append(name)
    found = w.apply(section("running")[name], x, name)
    dims = (*x.dims[:-1], last.times(1, -1)) if name == "diff" else x.dims
    return replace(found, dims=dims, flat=Facts(), is_positive=False, std=1.5 * x.std)


# which


def follow(w: ModuleWriter, x: Value, first: Value | None) -> Value:
    """One step that fits the value, drawn by weight."""
    options: list[tuple[float, Callable[[], Value]]] = [
        (26, lambda: pointwise(w, x, w.rng.choice(_fitting(x, section("activations"))))),
        (6, lambda: pointwise(w, x, w.rng.choice(_fitting(x, section("elementwise"))))),
        (12, lambda: scale(w, x)),
        (7, lambda: shift(w, x)),
        (9, lambda: residual(w, x, first)),
    ]
    if x.std > 0.02:
        options += [(6, lambda: clamp(w, x)), (4, lambda: extreme(w, x))]
    if x.rank > 1 and x.dims[x.channel].text not in ("", "1"):
        options.append((13, lambda: parameter(w, x)))
    if norms(x):
        options.append((9, lambda: norm(w, x)))
    if x.is_signal:
        options += [(10, lambda: pool(w, x)), (2, lambda: reshape_sides(w, x))]
    if x.rank > 1 and x.dims[x.channel].least > 2 and x.channel not in x.flat:
        options.append((6, lambda: softmax(w, x)))
    if x.rank > 1 and any(dim.least > 1 for dim in x.dims[1:]):
        options += [(12, lambda: reduce(w, x)), (2, lambda: running(w, x))]
    if x.rank > 1 and x.dims[x.channel].multiple >= 4:
        options.append((3, lambda: gated_halves(w, x)))
    weights = [weight for weight, _ in options]
    return w.rng.choices([option for _, option in options], weights=weights)[0]()


_IDLE_IF_POSITIVE = frozenset({
    "relu", "leaky_relu", "prelu", "relu6", "abs", "cone", "threshold", "elu", "selu", "celu",
    "signed_sqrt", "sqrt_abs", "symlog",
})  # fmt: skip
_NEEDS_SMALL = frozenset({
    "exp", "exp2", "expm1", "sinh", "cube", "square", "cosh_log", "squared_relu", "star_relu",
    "gaussian", "rational", "sigmoid", "hardsigmoid", "tanh", "erf", "sin", "cos", "sinc",
    "lecun_tanh", "softsign", "atan", "logit", "rsqrt", "polynomial", "snake",
})  # fmt: skip
_NEEDS_SPREAD = frozenset({"tanhshrink", "softshrink", "hardshrink", "threshold", "cone"})
_NEEDS_SOME_SPREAD = frozenset({
    "cos", "gaussian", "rational", "sinc", "rsqrt", "square", "cube", "sqrt_abs", "cosh_log",
    "squared_relu", "star_relu",
})  # fmt: skip


def _fitting(x: Value, table: dict[str, Operation]) -> list[str]:
    """Names of those that do something to the value, and do not overflow."""
    out = set[str]()
    if x.is_positive:
        out |= _IDLE_IF_POSITIVE
    if abs(x.mean) + 1.5 * x.std > 3:
        out |= _NEEDS_SMALL
    if x.std < 0.3:
        out |= _NEEDS_SPREAD
    if x.std < 0.1:
        out |= _NEEDS_SOME_SPREAD
    return [name for name in table if name not in out]
