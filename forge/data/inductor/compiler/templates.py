"""Products and convolutions as Triton kernels with what follows them, in templates of our own, and
other parts of torch and Inductor that are replaced while a problem is traced.

Inductor generates the kernel from a template's text and adds the operations that follow it. The
templates are short: one loop over k, masks on all axes, no cases. A convolution is an implicit
product: rows are output positions, columns output channels; k runs over input channels and taps.

Operations of torch are written so that they bear symbolic sizes and leave no library call. Rows are
reduced by loops. Questions about a card are answered as an H100 would, where there is none:
Inductor generates code before it compiles it, so that fake CUDA tensors are enough.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import sympy
import torch
import torch.utils._triton
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import ir, lowering
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernelOverrides
from torch._inductor.fx_passes import joint_graph, pad_mm, post_grad
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

from forge.data.inductor.compiler.lines import line_of

aten = torch.ops.aten
WINDOW = ("KERNEL", "STRIDE", "PADDING", "DILATION")
POOL = "(Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor"
for _name in ("max_pool", "avg_pool"):
    torch.library.define(f"forge_data::{_name}", POOL)
FLOATS = {torch.float16, torch.bfloat16, torch.float32}


@SymbolicGridFn
def _product_grid(*sizes: Any, cdiv: Any) -> tuple[Any, Any, Any]:
    *batch, rows, columns, meta = sizes
    return cdiv(rows, meta["BLOCK_M"]), cdiv(columns, meta["BLOCK_N"]), *(batch or [1])


@SymbolicGridFn
def _convolution_grid(batch: Any, channels: Any, *rest: Any, cdiv: Any) -> tuple[Any, Any, Any]:
    *sides, meta = rest
    positions = math.prod(sides, start=batch)
    groups = meta["GROUPS"]
    return cdiv(positions, meta["BLOCK_M"]), cdiv(cdiv(channels, groups), meta["BLOCK_N"]), groups


@SymbolicGridFn
def _depthwise_grid(batch: Any, channels: Any, *rest: Any, cdiv: Any) -> tuple[Any, Any, Any]:
    *sides, meta = rest
    return cdiv(math.prod(sides, start=batch * channels), meta["BLOCK"]), 1, 1


_PRODUCT = """{{def_kernel("A", "B")}}
    m_size = {{size("A", -2)}}
    n_size = {{size("B", -1)}}
    k_size = {{size("A", -1)}}
{% if BATCHED %}
    batch = tl.program_id(2)
{% endif %}
    rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k_size, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at_a = rows * ({{stride("A", -2)}}) + k[None, :] * ({{stride("A", -1)}})
        at_b = k[:, None] * ({{stride("B", -2)}}) + columns * ({{stride("B", -1)}})
{% if BATCHED %}
        at_a = batch * ({{stride("A", 0)}}) + at_a
        at_b = batch * ({{stride("B", 0)}}) + at_b
{% endif %}
        is_a = (rows < m_size) & (k[None, :] < k_size)
        is_b = (k[:, None] < k_size) & (columns < n_size)
        a = tl.load(A + at_a, mask=is_a, other=0.0)
        b = tl.load(B + at_b, mask=is_b, other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    idx_m = rows
    idx_n = columns
    mask = (rows < m_size) & (columns < n_size)
{% if BATCHED %}
    idx_b = batch
    {{store_output(("idx_b", "idx_m", "idx_n"), "acc", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
{% else %}
    {{store_output(("idx_m", "idx_n"), "acc", "mask", val_shape=("BLOCK_M", "BLOCK_N"))}}
{% endif %}
"""


def _convolution(names: str, *, is_transposed: bool, is_depthwise: bool) -> str:
    """The text of a template for a convolution over some axes."""
    made = _depthwise if is_depthwise else _grouped
    lines = made(names, is_transposed=is_transposed)
    given = '{{def_kernel("X", "W", "B") if BIASED else def_kernel("X", "W")}}'
    return "\n".join([given, *(f"    {one}" for one in lines), ""])


def _grouped(names: str, *, is_transposed: bool) -> list[str]:
    """Lines of an implicit product: k runs over input channels and taps."""
    taps = _taps(names)
    ins, outs = (0, 1) if is_transposed else (1, 0)
    shared = [" // {{GROUPS}}", ""]
    grouped = "{{'group * %s + ' if GROUPS > 1 else ''}}"
    channel, column = grouped % "in_channels", grouped % "out_channels"
    reading, inside = _reading(names, is_transposed)
    if is_transposed:
        weight = (
            f"(({channel}k[:, None] // ({taps})) * out_channels + columns) * ({taps})"
            f" + k[:, None] % ({taps})"
        )
    else:
        weight = f"({column}columns) * inner + k[:, None]"
    positions, rest = _positions(names, "rows")
    return [
        *_sides(names),
        'batch = {{size("X", 0)}}',
        'channels = {{size("X", 1)}}',
        f'in_channels = {{{{size("W", {ins})}}}}{shared[ins]}',
        f'out_channels = {{{{size("W", {outs})}}}}{shared[outs]}',
        "rows = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]",
        "columns = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]",
        "{% if GROUPS > 1 %}",
        "group = tl.program_id(2)",
        "{% endif %}",
        *positions,
        f"n = {rest}",
        f"inner = in_channels * ({taps})",
        "acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)",
        "for start in range(0, inner, BLOCK_K):",
        "    k = start + tl.arange(0, BLOCK_K)",
        "    tap = k[None, :]",
        *reading,
        f"    is_inside = (n < batch) & (tap < inner){inside}",
        f"    at_x = {_address(names, f'{channel}tap // ({taps})')}",
        "    x = tl.load(X + at_x, mask=is_inside, other=0.0)",
        "    is_weight = (k[:, None] < inner) & (columns < out_channels)",
        f"    at_weight = {weight}",
        "    w = tl.load(W + at_weight, mask=is_weight, other=0.0)",
        '    acc += tl.dot(x, w, input_precision="ieee")',
        "mask = (n < batch) & (columns < out_channels)",
        "idx_n = n",
        f"idx_c = {column}columns",
        f"acc += tl.load({BIAS} + idx_c, columns < out_channels)",
        *(f"idx_{n} = pos_{n}" for n in names),
        _store(names, '("BLOCK_M", "BLOCK_N")'),
    ]


BIAS = "{{'B' if BIASED else 'W'}}"
"""The tensor of the line that adds the bias; `rewrite` puts a layer's bias there that is None."""


def _depthwise(names: str, *, is_transposed: bool) -> list[str]:
    """Lines of a sum over taps, where each channel has a kernel of its own."""
    return _each(
        names, 'channels = {{size("W", 0)}}', "tl.zeros((BLOCK,), dtype=tl.float32)", "0.0",
        [f"    w = tl.load(W + (c * ({_taps(names)}) + tap))", "    acc += x.to(tl.float32) * w"],
        [f"acc += tl.load({BIAS} + c)"], is_transposed=is_transposed,
    )  # fmt: skip


def _pool(names: str, *, is_max: bool) -> str:
    """The text of a template for the largest element or the mean of a window."""
    start, other = ("float('-inf')",) * 2 if is_max else ("0.0", "0.0")
    lines = _each(
        names, 'channels = {{size("X", 1)}}', f"tl.full((BLOCK,), {start}, tl.float32)", other,
        ["    acc = tl.maximum(acc, x)" if is_max else "    acc += x"],
        [] if is_max else [f"acc = acc / ({_taps(names)})"],
    )  # fmt: skip
    return "\n".join(['{{def_kernel("X")}}', *(f"    {one}" for one in lines), ""])


def _each(
    names: str, channels: str, start: str, other: str, step: list[str], last: Sequence[str] = (),
    *, is_transposed: bool = False,
) -> list[str]:  # fmt: skip
    """Lines of a window over each channel."""
    reading, inside = _reading(names, is_transposed)
    lines, rest = _positions(names, "index")
    return [
        *_sides(names),
        'batch = {{size("X", 0)}}',
        channels,
        "index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        *lines,
        f"c = {rest} % channels",
        f"n = {rest} // channels",
        "mask = n < batch",
        f"acc = {start}",
        f"for tap in range({_taps(names)}):",
        *reading,
        f"    at_x = {_address(names, 'c')}",
        f"    x = tl.load(X + at_x, mask=mask{inside}, other={other})",
        *step,
        *last,
        "idx_n = n",
        "idx_c = c",
        *(f"idx_{n} = pos_{n}" for n in names),
        _store(names, '("BLOCK",)'),
    ]


def _taps(names: str) -> str:
    return " * ".join(_number("KERNEL", n) for n in names)


def _number(kind: str, axis: str) -> str:
    return f"{kind}_{axis.upper()}"


def _address(names: str, channel: str) -> str:
    """The place in a contiguous input, whose sizes may be numbers, which the groups fix."""
    at = f"n * channels + {channel}"
    for n in names:
        at = f"({at}) * in_{n} + at_{n}"
    return at


def _sides(names: str) -> list[str]:
    sides = [f'in_{n} = {{{{size("X", {axis})}}}}' for axis, n in enumerate(names, start=2)]
    return sides + [
        f"out_{n} = {{{{size(None, {axis})}}}}" for axis, n in enumerate(names, start=2)
    ]


def _positions(names: str, index: str) -> tuple[list[str], str]:
    """Lines that split an index into positions in the output, the last axis first; the rest."""
    lines: list[str] = []
    for n in reversed(names):
        lines.append(f"pos_{n} = {index} % out_{n}")
        index = f"{index} // out_{n}"
    return lines, index


def _reading(names: str, is_transposed: bool) -> tuple[list[str], str]:
    """Lines that find the input of a tap, and the conditions for it: the same for all convolutions
    of a kind, whose kernel, stride, padding and dilation stand in the launch."""
    tap, lines, inside = "tap", list[str](), list[str]()
    for n in reversed(names):
        kernel, stride, padding, dilation = (_number(one, n) for one in WINDOW)
        offset = f"{tap} % {kernel} * {dilation}"
        tap = f"{tap} // {kernel}"
        if is_transposed:
            lines.append(f"    from_{n} = pos_{n} + {padding} - {offset}")
            lines.append(f"    at_{n} = from_{n} // {stride}")
            inside.append(f" & (from_{n} >= 0) & (at_{n} < in_{n})")
            inside.append(f" & (from_{n} % {stride} == 0)")
        else:
            lines.append(f"    at_{n} = pos_{n} * {stride} - {padding} + {offset}")
            inside.append(f" & (at_{n} >= 0) & (at_{n} < in_{n})")
    return lines, "".join(inside)


def _store(names: str, shape: str) -> str:
    indices = ", ".join(f'"idx_{n}"' for n in ("n", "c", *names))
    return f'{{{{store_output(({indices}), "acc", "mask", val_shape={shape})}}}}'


@torch.library.register_fake("forge_data::max_pool")
@torch.library.register_fake("forge_data::avg_pool")
def _pool_sizes(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> torch.Tensor:
    sides = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    return x.new_empty([*x.shape[:2], *sides])


PRODUCT = TritonTemplate(name="product", grid=_product_grid, source=_PRODUCT)
AXES = {rank: "dhw"[-rank:] for rank in (1, 2, 3)}
"""Letters of the axes of a window, by their number."""
KINDS = ("plain", "transposed")
CONVOLUTIONS = {
    (rank, kind, is_depthwise): TritonTemplate(
        name=f"convolution_{rank}d_{kind}{'_depthwise' * is_depthwise}",
        grid=_depthwise_grid if is_depthwise else _convolution_grid,
        source=_convolution(
            names, is_transposed=kind == "transposed", is_depthwise=is_depthwise
        ),
    )
    for rank, names in AXES.items()
    for kind in KINDS
    for is_depthwise in (False, True)
}  # fmt: skip
"""By rank, kind, and whether each channel has a kernel of its own."""
POOLS = {
    (rank, is_max): TritonTemplate(
        name=f"{'max' if is_max else 'avg'}_pool_{rank}d", grid=_depthwise_grid,
        source=_pool(names, is_max=is_max),
    )
    for rank, names in AXES.items()
    for is_max in (False, True)
}  # fmt: skip
"""By rank, and whether the largest element is taken."""


def _block(size: Any, most: int) -> int:
    """The block of an axis: a power of two that is no larger than a length that is a number."""
    size = sympy.sympify(size)
    return min(most, max(16, 1 << (int(size) - 1).bit_length())) if size.is_Integer else most


def _generated(template: Any, nodes: Sequence[Any], size: Sequence[Any], **options: Any) -> Any:
    x, *_ = nodes
    layout = ir.FixedLayout(x.get_device(), x.get_dtype(), [*size])
    options["LINE"] = line_of(V.graph.current_node)
    made = template.generate(input_nodes=(*nodes,), layout=layout, num_warps=4, **options)
    assert made is not None
    return made.output_node()


def _mm(a: Any, b: Any, **_: Any) -> Any:
    if len(a.get_size()) == 3 and a.get_size()[0] == 1:
        rows = (lowering.lowerings[aten.squeeze.dim](one, 0) for one in (a, b))
        return lowering.lowerings[aten.unsqueeze.default](_mm(*rows), 0)
    a, b = (ir.ExternKernel.realize_input(one) for one in (a, b))
    *batch, m, k = a.get_size()
    n = b.get_size()[-1]
    return _generated(
        PRODUCT, (a, b), [*batch, m, n], num_stages=3, BATCHED=bool(batch),
        BLOCK_M=_block(m, 64), BLOCK_N=_block(n, 64), BLOCK_K=_block(k, 32),
    )  # fmt: skip


def _scaled(value: Any, factor: Any) -> Any:
    return value if factor == 1 else lowering.lowerings[aten.mul.Tensor](value, factor)


def _addmm(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **_: Any) -> Any:
    made = _scaled(_mm(a, b), alpha)
    return made if beta == 0 else lowering.lowerings[aten.add.Tensor](made, _scaled(bias, beta))


def _conv(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    rank = len(weight.get_size()) - 2
    if len(x.get_size()) == rank + 1:
        given = lowering.lowerings[aten.unsqueeze.default](x, 0)
        rest = (weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return lowering.lowerings[aten.squeeze.dim](_conv(given, *rest), 0)
    x, weight = (_contiguous(one) for one in (x, weight))
    size = _shape()
    if len(size) == rank + 1:
        size = [sympy.Integer(1), *size]
    known = V.graph.sizevars
    first, second, *_ = weight.get_size()  # both are 1 a group where each channel has its own
    is_depthwise = groups > 1 and known.statically_known_equals(second, 1)
    is_depthwise = is_depthwise and known.optimization_hint(first, fallback=0) == groups
    kernel = [known.guard_int(one) for one in weight.get_size()[2:]]
    options = _window(rank, kernel, stride, padding, dilation)
    if is_depthwise:
        options["BLOCK"] = 256
    else:
        options |= {
            "BLOCK_M": _block(math.prod([size[0], *size[2:]]), 64),
            "BLOCK_N": _block(size[1] // groups if size[1].is_Integer else size[1], 64),
            "BLOCK_K": 32,
        }  # fmt: skip
    template = CONVOLUTIONS[rank, KINDS[transposed], is_depthwise]
    nodes = (x, weight) if bias is None else (x, weight, _contiguous(bias))
    return _generated(
        template, nodes, size, num_stages=2, GROUPS=groups, BIASED=bias is not None, **options
    )


def _contiguous(node: Any) -> Any:
    return ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(node))


def _shape() -> list[Any]:
    """Sizes of the result of the operation that is being lowered."""
    sizes = V.graph.current_node.meta["val"].shape
    return [sympy.sympify(getattr(getattr(one, "node", None), "expr", one)) for one in sizes]


def _window(rank: int, *values: Any) -> dict[str, int]:
    """The numbers of a window by their names."""
    return {
        _number(kind, name): int(numbers[place % len(numbers)])
        for kind, numbers in zip(WINDOW, values, strict=True)
        for place, name in enumerate(AXES[rank])
    }


def _pooled(
    is_max: bool, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Any:  # fmt: skip
    window = _window(len(kernel), kernel, stride, padding, dilation)
    template = POOLS[len(kernel), is_max]
    return _generated(template, [_contiguous(x)], _shape(), num_stages=2, **window, BLOCK=256)


def _of_floats(ours: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The lowering to a template for the types that `tl.dot` sums in fp32, else Inductor's own."""

    def lowered(*args: Any, **options: Any) -> Any:
        kinds = {one.get_dtype() for one in args if isinstance(one, ir.IRNode)}
        return (ours if kinds <= FLOATS else otherwise)(*args, **options)

    return lowered


def templates(stack: contextlib.ExitStack) -> None:
    """Lowers products and convolutions to the templates until the stack is left. Their inputs are
    contiguous: no order of strides is proved, which fails behind a stride of 2."""
    made = {
        aten.mm.default: _mm, aten.bmm.default: _mm, aten.addmm.default: _addmm,
        aten.baddbmm.default: _addmm, aten.convolution.default: _conv,
    }  # fmt: skip
    found: dict[Any, Any] = {
        torch.ops.forge_data.max_pool.default: partial(_pooled, True),
        torch.ops.forge_data.avg_pool.default: partial(_pooled, False),
    }
    found |= {key: _of_floats(one, lowering.lowerings[key]) for key, one in made.items()}
    stack.enter_context(mock.patch.dict(lowering.lowerings, found))
    free = {aten.convolution.default: None}
    stack.enter_context(mock.patch.dict(lowering._maybe_layout_constraints, free))


NUMBERS = ("groups", "num_groups", "num_heads", "padding_idx", "kernel_size", "stride", "dilation")
"""Attributes of modules that are no sizes, whatever their values are."""
SMALL = 16
"""Largest attribute that is taken for no size."""


def plain_operations(stack: contextlib.ExitStack) -> None:
    """Replaces operations until the stack is left."""
    stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
    stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, is_fast)
    # a division by a number stays one: its reciprocal stands nowhere in the problem
    stack.enter_context(mock.patch.object(lowering, "get_constant_value", return_value=None))
    for function in (_layer_norm, _instance_norm, _interpolate, _relu6, _linear):
        name = function.__name__.removeprefix("_")
        stack.enter_context(mock.patch.object(functional, name, function))
    for rank in (1, 2, 3):
        for kind in ("max", "avg"):
            name = f"{kind}_pool{rank}d"
            pool = _pooling(getattr(functional, name), rank, is_max=kind == "max")
            stack.enter_context(mock.patch.object(functional, name, pool))


def _pooling(usual: Callable[..., Any], rank: int, *, is_max: bool) -> Callable[..., Any]:
    """A pool as one operation, which a template computes."""

    def made(input: torch.Tensor, *window: Any) -> Any:
        if input.dim() != rank + 2 or input.dtype not in FLOATS:
            return None
        each = [list(one) * (rank // len(one)) if isinstance(one, tuple | list) else [one] * rank
                for one in window]  # fmt: skip
        operations = torch.ops.forge_data
        return (operations.max_pool if is_max else operations.avg_pool)(input, *each)

    def max_pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
        dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        step, is_plain = stride or kernel_size, not (ceil_mode or return_indices)
        found = made(input, kernel_size, step, padding, dilation) if is_plain else None
        if found is None:
            found = usual(
                input, kernel_size, stride, padding, dilation, ceil_mode=ceil_mode,
                return_indices=return_indices,
            )  # fmt: skip
        return found

    def avg_pool(
        input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
        ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        is_plain = count_include_pad and not ceil_mode and divisor_override is None
        found = made(input, kernel_size, stride or kernel_size, padding, 1) if is_plain else None
        rest = (ceil_mode, count_include_pad, *([divisor_override] if rank > 1 else []))
        return usual(input, kernel_size, stride, padding, *rest) if found is None else found

    return max_pool if is_max else avg_pool


def _layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    shape = input.shape[-len(normalized_shape) :]
    return torch.layer_norm(input, shape, weight, bias, eps, False)


def _instance_norm(
    input: torch.Tensor, running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None, weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:  # fmt: skip
    ones = [1] * (input.dim() - 2)
    if use_input_stats or running_mean is None or running_var is None:
        axes = list(range(2, input.dim()))
        var, mean = torch.var_mean(input, axes, correction=0, keepdim=True)
    else:
        mean, var = running_mean.view(1, -1, *ones), running_var.view(1, -1, *ones)
    made = (input - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        made = made * weight.view(1, -1, *ones)
    return made if bias is None else made + bias.view(1, -1, *ones)


LINEAR = functional.linear


def _linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """More axes than two are rows: torch's own way asks for their lengths as numbers."""
    if input.dim() < 3:
        return LINEAR(input, weight, bias)
    rows = LINEAR(input.reshape(-1, input.shape[-1]), weight, bias)
    return rows.view(*input.shape[:-1], weight.shape[0])


INTERPOLATE = functional.interpolate


def _interpolate(
    input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Nearest neighbours at a whole factor are copies; their places take fp64 otherwise."""
    rank = input.dim() - 2
    factors = scale_factor if isinstance(scale_factor, list | tuple) else [scale_factor] * rank
    if mode != "nearest" or size is not None or not all(_is_whole(one) for one in factors):
        return INTERPOLATE(input, size, scale_factor, mode, *rest, **options)
    made = input
    for axis, factor in enumerate(factors, start=2):
        made = made.unsqueeze(axis + 1)
        sizes = [*made.shape]
        sizes[axis + 1] = int(factor)
        made = made.expand(sizes).flatten(axis, axis + 1)
    return made


def _is_whole(factor: Any) -> bool:
    return isinstance(factor, int | float) and factor >= 1 and factor == int(factor)


def _relu6(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return functional.hardtanh(input, 0.0, 6.0, inplace)


def attributes(
    model: torch.nn.Module, new: dict[int, Any]
) -> list[tuple[dict[str, Any], str, Any]]:
    """Numbers that modules keep and that are lengths of their parameters, as symbols; `new` has
    tensors with symbolic sizes, by the identity of the model's own."""
    found: list[tuple[dict[str, Any], str, Any]] = []
    every = _lengths(model, new)
    for owner in model.modules():
        own = _lengths(owner, new)
        for name, value in owner.__dict__.items():
            if type(value) is int and value > SMALL and name not in NUMBERS:
                symbol = own.get(value, every.get(value))
                if symbol is not None:
                    found.append((owner.__dict__, name, symbol))
    return found


def _lengths(owner: torch.nn.Module, new: dict[int, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for one in [*owner.parameters(), *owner.buffers()]:
        if id(one) in new:
            for length, symbol in zip(one.shape, new[id(one)].shape, strict=True):
                if isinstance(symbol, torch.SymInt):
                    found.setdefault(int(length), symbol)
    return found


def reductions(stack: contextlib.ExitStack) -> None:
    """Reduces rows by loops, which are right and compile at every size, until the stack is left; a
    variance is two of them, and a sum over all axes is one of rows and one of their sums: a single
    program would take a second for a billion elements, and lose digits. A row that is sorted has no
    answer."""
    made = _sums_of_rows(lowering.make_reduction)
    stack.enter_context(mock.patch.object(lowering, "make_reduction", made))
    never = staticmethod(lambda *_: False)
    stack.enter_context(
        mock.patch.object(InductorChoices, "should_use_persistent_reduction", never)
    )
    stack.enter_context(mock.patch.object(lowering, "use_two_step_variance", return_value=True))
    short = staticmethod(lambda x: f"libdevice.atan({x})")  # for twenty lines, some of assembly
    stack.enter_context(mock.patch.object(TritonKernelOverrides, "atan", short))


def _sums_of_rows(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor's maker of reductions, whose sums over all axes first reduce all but the first, or
    the first two where there are more."""

    def make(kind: str, *given: Any, **named: Any) -> Callable[..., Any]:
        reduce = usual(kind, *given, **named)

        def inner(x: Any, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
            rank = len(x.get_size())
            all_axes = len(lowering._validate_reduction_axis(x, axis)) == rank
            if kind == "sum" and rank > 1 and all_axes:
                x = reduce(x, [*range(min(2, rank - 1), rank)], keepdims, dtype=dtype)
                axis = None
            return reduce(x, axis, keepdims, dtype=dtype)

        return inner

    return make


def pretend(stack: contextlib.ExitStack) -> None:
    """Answers Inductor's questions about a card until the stack is left."""
    for owner, name, value in _answers():
        stack.enter_context(mock.patch.object(owner, name, value))


class _OnCpu(TorchDispatchMode):
    """Makes on the CPU what would be made on the card."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if getattr(given.get("device"), "type", "") == "cuda":
            given["device"] = torch.device("cpu")
        return func(*args, **given)


class _FolderOnCpu(joint_graph.UniformValueConstantFolder):
    """Inductor's folding of constants, which runs small operations."""

    def run(self) -> Any:
        with _OnCpu():
            return super().run()


def _answers() -> Iterator[tuple[Any, str, Any]]:
    """Attributes to replace: owner, name, value."""
    card = types.SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132,
        total_memory=80 << 30, regs_per_multiprocessor=65536, warp_size=32,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, gcnArchName="",
    )  # fmt: skip
    hints = DeviceProperties(
        type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    )  # fmt: skip
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0
    )
    state = torch.zeros(16, dtype=torch.uint8)
    yield from (
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "get_device_properties", lambda *_: card),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_rng_state", lambda *_: state),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "_exchange_device", lambda _: 0),
        (torch.cuda, "_maybe_exchange_device", lambda _: 0),
        (torch.version, "cuda", "12.8"),
        (fake_tensor, "init_gpu_context", lambda *_: None),
        (torch.utils._triton, "triton_hash_with_backend", lambda: "0" * 16),
        (triton.runtime.driver, "_active", driver),
        (DeviceProperties, "create", lambda _: hints),
        (CudaInterface, "get_device_properties", lambda *_: card),
        (CudaInterface.Worker, "get_device_properties", lambda *_: card),
        (pad_mm, "should_pad", lambda *_, **__: False),  # it would time products on the card
        (joint_graph, "lazy_init", lambda *_: None),  # no patterns, which are traced on the card
        (post_grad, "lazy_init", lambda *_: None),
        (joint_graph, "UniformValueConstantFolder", _FolderOnCpu),
    )
