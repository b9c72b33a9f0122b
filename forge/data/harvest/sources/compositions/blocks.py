"""Small blocks of models, the form of KernelBench's level 3: perceptrons, gates, attention,
residual and squeeze blocks, drawn with their layers, norms and activations."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from forge.data.harvest.sources.compositions.products import image_input
from forge.data.harvest.sources.compositions.steps import pointwise
from forge.data.harvest.sources.compositions.values import Dim, Value
from forge.data.harvest.sources.compositions.vocabulary import section
from forge.data.harvest.sources.compositions.writer import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.data.harvest.sources.compositions.writer import Given, ModuleWriter

_COMMON = ("relu", "gelu", "silu", "leaky_relu", "elu", "tanh", "mish", "hardswish", "relu6",
           "gelu_tanh", "squared_relu", "celu", "softplus")  # fmt: skip
_GATES = ("F.silu", "torch.sigmoid", "F.gelu", "torch.relu", "torch.tanh", "F.mish")
"""Functions that a gate goes through."""


def block(w: ModuleWriter) -> Value:
    """One of the blocks, on inputs of its own."""
    # Several values are alive at once, so each needs a name.
    w.style = replace(w.style, renames=True, is_nested=False, is_sequential=False)
    made = w.rng.choice(_BLOCKS)
    name = made.__name__.strip("_")
    w.ops.append(name)
    w.phrases.append(name.replace("_", " "))
    return made(w)


def _do(w: ModuleWriter, name: str, like: Value, hint: str = "", **given: Given) -> Value:
    """An operation of blocks, with the facts of `like`."""
    return w.let(like, w.write(section("blocks")[name], hint, **given), hint)


def _linear(
    w: ModuleWriter, x: Value, into: Dim, hint: str = "", *, is_biased: bool | None = None
) -> Value:
    biased = w.rng.random() < 0.7 if is_biased is None else is_biased
    w.flops += 2.0 * count(x.dims) * into.size
    w.num_bytes += 4 * x.dims[-1].size * into.size
    like = replace(x, dims=(*x.dims[:-1], into), std=0.5, mean=0.0, is_positive=False)
    w.note(like)
    text = w.write(
        section("blocks")["linear" if biased else "linear_no_bias"], hint, x=x, D=x.dims[-1], E=into
    )
    return w.let(like, text, hint)


def _act(w: ModuleWriter, x: Value, name: str = "") -> Value:
    return pointwise(w, x, name or w.rng.choice(_COMMON))


def _norm(w: ModuleWriter, x: Value) -> Value:
    """A norm over features or channels."""
    n = len(x.sides)
    one = section("blocks")["norm_sides" if n else "norm"]
    form = w.rng.choice(one.forms)
    w.ops.append(form.split("(")[0].rpartition(".")[2].replace("$nd", "").lower())
    hint = w.rng.choice(("norm", "bn" if n else "ln"))
    found = w.apply(replace(one, forms=(form,)), x, hint, C=x.dims[x.channel], nd=f"{n}d")
    return replace(found, std=1.0, mean=0.0)


def _conv(
    w: ModuleWriter, x: Value, out: Dim, kernel: int, hint: str = "", *, stride: int = 1,
    is_depthwise: bool = False, is_biased: bool = False,
) -> Value:  # fmt: skip
    """A convolution that keeps the sides, or halves them."""
    n, half = len(x.sides), kernel // 2
    end = f", stride={stride}" if stride > 1 else ""
    end += f", padding={half}" if half else ""
    end += f", groups={w.in_setup(x.dims[1])}" if is_depthwise else ""
    end += "" if is_biased else ", bias=False"
    text = w.write(
        section("blocks")["conv"], hint, x=x, C=x.dims[1], O=out, k=str(kernel), end=end, nd=f"{n}d"
    )
    sides = [
        x.dims[i] if stride == 1 else x.dims[i].strided(kernel=kernel, stride=stride, padding=half)
        for i in x.sides
    ]
    dims = (x.dims[0], out, *sides)
    w.flops += 2.0 * count(dims) * kernel**n * (1 if is_depthwise else x.dims[1].size)
    like = replace(x, dims=dims, std=0.5, mean=0.0, is_positive=False)
    w.note(like)
    return w.let(like, text, hint)


def _sum(w: ModuleWriter, x: Value, y: Value) -> Value:
    return _do(w, "sum", x, w.rng.choice(("out", "res", "y")), x=x, y=y)


def _maybe(w: ModuleWriter, x: Value, step: Callable[[ModuleWriter, Value], Value]) -> Value:
    """The step with even odds."""
    return step(w, x) if w.rng.random() < 0.5 else x


def _tokens(w: ModuleWriter) -> Value:
    return w.input([w.size(letter) for letter in w.rng.choice((("B", "D8"), ("B", "T", "D8")))])


def _sequence(w: ModuleWriter) -> Value:
    return w.input((w.size("B"), w.size("T"), w.size("D8")))


def _image(w: ModuleWriter) -> Value:
    return image_input(w, w.rng.choice((1, 2, 2, 2)))


def _mlp(w: ModuleWriter) -> Value:
    x = _tokens(w)
    hidden = w.size("E8")
    h = _maybe(w, x, _norm)
    for i in range(w.rng.choice((1, 1, 2, 3))):
        h = _linear(w, h, hidden, f"fc{i + 1}")
        h = _act(w, _norm(w, h) if w.rng.random() < 0.2 else h)
    returns = w.rng.random() < 0.6
    into = x.dims[-1] if returns else w.size("E")
    h = _linear(w, h, into, w.rng.choice(("fc_out", "head", "proj")))
    return _sum(w, x, h) if returns and w.rng.random() < 0.6 else h


def _gated_unit(w: ModuleWriter) -> Value:
    x = _tokens(w)
    hidden, f = w.size("E8"), w.rng.choice(_GATES)
    h = _maybe(w, x, _norm)
    names = w.rng.choice(
        (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"),
         ("gate", "value", "out"))
    )  # fmt: skip
    gate = _linear(w, h, hidden, names[0], is_biased=False)
    up = _linear(w, h, hidden, names[1], is_biased=False)
    w.ops.append(f)
    both = _do(w, "gated", up, "gated", f=f, g=gate, u=up)
    h = _linear(w, both, x.dims[-1], names[2], is_biased=False)
    return _sum(w, x, h) if w.rng.random() < 0.5 else _maybe(w, h, _norm)


def _attend(w: ModuleWriter, x: Value, memory: Value) -> Value:
    """Attention of `x` to `memory` with a number of heads."""
    heads, dim = w.size("G"), w.size("K")
    inner = Dim("", heads.size * dim.size, heads.least * dim.least)
    sizes: dict[str, Given] = {"G": heads, "K": dim, "D": x.dims[-1]}
    names = w.rng.choice(
        (("q_proj", "k_proj", "v_proj"), ("to_q", "to_k", "to_v"), ("query", "key", "value"),
         ("wq", "wk", "wv"))
    )  # fmt: skip
    parts: dict[str, Given] = {}
    to_heads = replace(
        section("blocks")["to_heads"], forms=(w.rng.choice(section("blocks")["to_heads"].forms),)
    )
    for letter, name, source in zip("qkv", names, (x, memory, memory), strict=True):
        text = w.write(to_heads, name, x=source, **{**sizes, "D": source.dims[-1]})
        w.flops += 2.0 * count(source.dims) * inner.size
        wide = w.let(replace(source, dims=(*source.dims[:2], inner)), text, letter)
        turned = replace(wide, dims=(source.dims[0], heads, source.dims[1], dim))
        parts[letter] = _do(w, "heads", turned, x=wide, G=heads, K=dim)
    name = "causal" if x is memory and w.rng.random() < 0.4 else "attention"
    scores = (x.dims[0], heads, x.dims[1], memory.dims[1])
    w.flops += 4.0 * count((*scores, dim))
    w.note(replace(x, dims=scores))
    merged = replace(x, dims=(*x.dims[:2], inner))
    y = _do(w, "merge", merged, x=_do(w, name, merged, "attn_out", **parts))
    hint = w.rng.choice(("out_proj", "proj", "to_out", "wo"))
    return w.let(replace(x, std=0.5), w.write(section("blocks")["from_heads"], hint, x=y, **sizes))


def _self_attention(w: ModuleWriter) -> Value:
    x = _sequence(w)
    h = _maybe(w, x, _norm)
    y = _attend(w, h, h)
    return _maybe(w, _sum(w, x, y) if w.rng.random() < 0.7 else y, _norm)


def _cross_attention(w: ModuleWriter) -> Value:
    x = _sequence(w)
    name = w.rng.choice(("context", "memory", "encoder_out"))
    memory = w.input((x.dims[0], w.size("S"), w.size("E8")), name=name)
    y = _attend(w, _maybe(w, x, _norm), memory)
    return _sum(w, x, y) if w.rng.random() < 0.7 else y


def _transformer_layer(w: ModuleWriter) -> Value:
    x = _sequence(w)
    is_first = w.rng.random() < 0.6
    h = _norm(w, x) if is_first else x
    x = _sum(w, x, _attend(w, h, h))
    h = _norm(w, x)
    y = _linear(w, _act(w, _linear(w, h, w.size("E8"), "fc1")), x.dims[-1], "fc2")
    return _sum(w, x if is_first else h, y)


def _residual_conv(w: ModuleWriter) -> Value:
    x = _image(w)
    kernel, name = w.rng.choice((3, 3, 5)), w.rng.choice(_COMMON)
    h = _act(w, _norm(w, _conv(w, x, x.dims[1], kernel, "conv1")), name)
    h = _sum(w, x, _maybe(w, _conv(w, h, x.dims[1], kernel, "conv2"), _norm))
    return _maybe(w, h, partial(_act, name=name))


def _downsample_block(w: ModuleWriter) -> Value:
    x = _image(w)
    out, name = w.size("O"), w.rng.choice(_COMMON)
    h = _act(w, _norm(w, _conv(w, x, out, 3, "conv1", stride=2)), name)
    h = _norm(w, _conv(w, h, out, 3, "conv2"))
    short = _maybe(w, _conv(w, x, out, 1, "shortcut", stride=2), _norm)
    return _act(w, _sum(w, h, short), name)


def _bottleneck(w: ModuleWriter) -> Value:
    x = image_input(w, 2)
    mid, name = w.size("O"), w.rng.choice(_COMMON)
    h = _act(w, _norm(w, _conv(w, x, mid, 1, "conv1")), name)
    h = _act(w, _norm(w, _conv(w, h, mid, 3, "conv2")), name)
    h = _norm(w, _conv(w, h, x.dims[1], 1, "conv3"))
    return _maybe(w, _sum(w, x, h), partial(_act, name=name))


def _inverted_residual(w: ModuleWriter) -> Value:
    x = image_input(w, 2)
    mid, name = w.size("O"), w.rng.choice(("relu6", "hardswish", "silu", "relu", "mish"))
    h = _act(w, _norm(w, _conv(w, x, mid, 1, "expand")), name)
    deep = _conv(w, h, mid, w.rng.choice((3, 5)), "depthwise", is_depthwise=True)
    h = _maybe(w, _act(w, _norm(w, deep), name), _squeezed)
    h = _norm(w, _conv(w, h, x.dims[1], 1, "project"))
    return _sum(w, x, h) if w.rng.random() < 0.7 else h


def _squeezed(w: ModuleWriter, x: Value) -> Value:
    """Channels weighted by a small perceptron of their means."""
    x, nd = w.bound(x), f"{len(x.sides)}d"
    act = w.rng.choice(("F.relu", "F.silu", "F.gelu", "torch.tanh"))
    gate = w.rng.choice(("torch.sigmoid", "F.hardsigmoid"))
    w.ops.append(f"squeeze_{act}_{gate}")
    sides = str(x.sides if len(x.sides) > 1 else -1)
    given: dict[str, Given] = {"C": x.dims[1], "R": w.size("O"), "nd": nd}
    s = _do(w, "squeeze", x, "squeezed", x=x, nd=nd, sides=sides)
    s = w.let(s, f"{act}({w.write(section('blocks')['squeeze_in'], 'reduce', x=s, **given)})")
    s = w.let(s, f"{gate}({w.write(section('blocks')['squeeze_out'], 'excite', x=s, **given)})")
    return _do(w, "weighted", replace(x, std=0.5), "weighted", x=x, s=s)


def _squeeze_excite(w: ModuleWriter) -> Value:
    x = _image(w)
    return _squeezed(w, _maybe(w, _act(w, _conv(w, x, w.size("O"), 3, "conv")), _norm))


def _conv_next(w: ModuleWriter) -> Value:
    x = image_input(w, 2)
    h = _conv(w, x, x.dims[1], w.rng.choice((7, 5)), "dwconv", is_depthwise=True, is_biased=True)
    dims = (h.dims[0], *h.dims[2:], h.dims[1])
    h = _do(w, "last", replace(h, is_channels_first=False, dims=dims), x=h)
    h = _act(w, _linear(w, _norm(w, h), w.size("E8"), "pwconv1"))
    h = _linear(w, h, x.dims[1], "pwconv2")
    return _sum(w, x, _do(w, "first", x, h=h, C=x.dims[1]))


def _branches(w: ModuleWriter) -> Value:
    x = _image(w)
    out, name = w.size("O"), w.rng.choice(_COMMON)
    kernels = w.rng.choice(((1, 3), (1, 3, 5), (3, 5)))
    made = [_act(w, _conv(w, x, out, kernel, f"branch{kernel}x"), name) for kernel in kernels]
    if w.rng.random() < 0.5:
        pooled = _do(w, "branch_pool", x, "pooled", x=x, nd=f"{len(x.sides)}d")
        made.append(_conv(w, pooled, out, 1, "pool_proj"))
    if w.rng.random() < 0.3:
        return w.let(made[0], " + ".join(each.text for each in made), "merged")
    text = f"torch.cat([{', '.join(each.text for each in made)}], dim=1)"
    dims = (x.dims[0], out.times(len(made)), *x.dims[2:])
    return w.let(replace(made[0], dims=dims), text, "merged")


def _dense_layer(w: ModuleWriter) -> Value:
    x = _image(w)
    h = _conv(w, _act(w, _norm(w, x)), w.size("O"), 3, "conv")
    dims = (x.dims[0], x.dims[1].times(1, h.dims[1].size), *x.dims[2:])
    return _do(w, "concat", replace(h, dims=dims), x=x, h=h)


def _mixer(w: ModuleWriter) -> Value:
    x = _sequence(w)
    h = _norm(w, x)
    y = _do(w, "turn", replace(h, dims=(x.dims[0], x.dims[2], x.dims[1])), x=h)
    y = _linear(w, y, w.size("E8"), "token_fc1")
    y = _linear(w, _act(w, y), x.dims[1], "token_fc2")
    x = _sum(w, x, _do(w, "turn", replace(y, dims=x.dims), x=y))
    h = _act(w, _linear(w, _norm(w, x), w.size("E8"), "channel_fc1"))
    return _sum(w, x, _linear(w, h, x.dims[-1], "channel_fc2"))


def _graph_layer(w: ModuleWriter) -> Value:
    batch, nodes = w.size("B"), w.size("T")
    x = w.input((batch, nodes, w.size("D8")), name=w.rng.choice(("x", "nodes", "h")))
    a = w.input((batch, nodes, nodes), kind="1", name=w.rng.choice(("adj", "adjacency", "A")))
    a = _do(w, "degree", a, "norm_adj", a=a)
    h = _linear(w, x, w.size("E8"), w.rng.choice(("weight", "lin", "proj")))
    w.flops += 2.0 * count(h.dims) * nodes.size
    h = _act(w, _do(w, "aggregate", h, "agg", a=a, h=h))
    if w.rng.random() < 0.5:
        return _sum(w, h, _linear(w, x, h.dims[-1], "self_loop"))
    return _maybe(w, h, _norm)


def _recurrent_step(w: ModuleWriter) -> Value:
    batch, dim, hidden = w.size("B"), w.size("D8"), w.size("E8")
    x = w.input((batch, dim), name="x")
    h = w.input((batch, hidden), name=w.rng.choice(("h", "state", "hx", "hidden")))
    gates: dict[str, Given] = {}
    names = w.rng.choice((("z", "r", "n"), ("f", "c"), ("i", "f", "g", "o")))
    for place, name in zip("abcd", names, strict=False):
        ours, theirs = _linear(w, x, hidden, f"w_{name}"), _linear(w, h, hidden, f"u_{name}")
        gates[place] = _do(w, "sum", ours, name, x=ours, y=theirs)
    return _do(w, f"cell_{len(names)}", h, "new_state", h=h, **gates)


def _highway(w: ModuleWriter) -> Value:
    x = _tokens(w)
    h = _act(w, _linear(w, x, x.dims[-1], "transform"))
    g = _linear(w, x, x.dims[-1], "gate")
    return _maybe(w, _do(w, "highway", x, x=x, h=h, g=g), _norm)


def _spatial_gate(w: ModuleWriter) -> Value:
    x = image_input(w, 2)
    h = _maybe(w, _conv(w, x, w.size("O"), 3, "conv"), _norm)
    kernel = w.rng.choice((3, 7))
    w.ops.append(f"k{kernel}")
    pooled = _do(w, "channel_pool", h, "pooled", h=h)
    s = _do(w, "spatial", h, "spatial", x=pooled, k=str(kernel), p=str(kernel // 2))
    return _do(w, "weighted", h, "out", x=h, s=f"torch.sigmoid({s.text})")


def _conditioned(w: ModuleWriter) -> Value:
    x = _sequence(w)
    c = w.input((x.dims[0], w.size("E8")), name=w.rng.choice(("cond", "c", "emb", "temb")))
    h = _norm(w, x)
    c = _maybe(w, c, _act)
    scale, shift = (_linear(w, c, x.dims[-1], name) for name in ("to_scale", "to_shift"))
    h = _do(w, "modulate", h, "modulated", h=h, s=scale, b=shift)
    h = _linear(w, _act(w, h), x.dims[-1], "proj")
    return _sum(w, x, h) if w.rng.random() < 0.5 else h


def _soft_experts(w: ModuleWriter) -> Value:
    x = _tokens(w)
    experts, out, f = w.size("G"), w.size("E8"), w.rng.choice(_GATES)
    w.ops.append(f)
    hint = w.rng.choice(("gate", "router"))
    scores = w.write(section("blocks")["router"], hint, x=x, D=x.dims[-1], G=experts)
    gate = w.let(x, f"F.softmax({scores}, dim=-1)", "weights")
    w.flops += 2.0 * count(x.dims) * out.size * experts.size
    like = replace(x, dims=(*x.dims[:-1], experts, out), std=math.sqrt(8))
    w.note(like)
    y = w.write(section("blocks")["experts"], x=x, G=experts, D=x.dims[-1], E=out)
    y = w.let(like, f"{f}({y})", "outs")
    return _do(w, "mix", replace(like, dims=(*x.dims[:-1], out)), "mixed", y=y, g=gate)


_BLOCKS = (
    *(_mlp, _mlp, _gated_unit, _gated_unit, _self_attention, _cross_attention),
    *(_transformer_layer, _residual_conv, _downsample_block, _bottleneck, _inverted_residual),
    *(_squeeze_excite, _conv_next, _branches, _dense_layer, _mixer, _graph_layer),
    *(_recurrent_step, _highway, _spatial_gate, _conditioned, _soft_experts),
)
