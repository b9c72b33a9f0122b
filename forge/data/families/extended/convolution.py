"""Family `convolution`: a convolution of three taps an axis, then a chain.

    conv1d, bias                     over LEN = HEADS * DIM positions
    dilated, causal, strided         the same with taps two apart, none ahead, every other output
    depthwise                        each channel by itself
    conv2d, depthwise2d, pointwise   over images of HEADS rows and DIM columns

A program computes a block of one channel's outputs. It adds up taps of input channels in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from forge.data.families.layout import Family, Parameters, answer_source, cdiv, problem_source
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, image_sizes, product

_BLOCK = {Scale.SMALL: 256, Scale.GPU: 1024}
_SMALL_BATCHES, _SMALL_CHANNELS, _LARGE_CHANNELS = (1, 2), range(2, 4), range(4, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """One variant. `{c}` stands for input channels, `{h}`, `{w}` for an image's sides."""

    call: str
    """Arguments of the reference's convolution behind its input."""
    at: str = ""
    """Position of tap `i`, in one dimension."""
    taps: int = 3
    """Taps of an input channel."""
    axes: int = 1
    is_depthwise: bool = False
    is_strided: bool = False
    has_bias: bool = False
    padded: str = "x"
    """Input of the convolution."""


_CENTRED = "cols + i % 3 - 1"
_VARIANTS = {
    "conv1d": _Convolution(call="padding=1", at=_CENTRED),
    "bias": _Convolution(call="padding=1", at=_CENTRED, has_bias=True),
    "dilated": _Convolution(call="padding=2, dilation=2", at="cols + i % 3 * 2 - 2"),
    "causal": _Convolution(
        call="", at="cols + i % 3 - 2", padded="torch.nn.functional.pad(x, (2, 0))"
    ),
    "strided": _Convolution(call="padding=1, stride=2", at="cols * 2 + i % 3 - 1", is_strided=True),
    "depthwise": _Convolution(call="padding=1, groups=x.shape[1]", at=_CENTRED, is_depthwise=True),
    "conv2d": _Convolution(call="padding=1", taps=9, axes=2),
    "depthwise2d": _Convolution(
        call="padding=1, groups=x.shape[1]", taps=9, axes=2, is_depthwise=True
    ),
    "pointwise": _Convolution(call="", taps=1, axes=2),
}


class Convolution(Family):
    """A family whose kernels compute a block of one output channel per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Batch, channels and the factors of the length, or the sides of the image."""
        channels = _SMALL_CHANNELS if scale is Scale.SMALL else _LARGE_CHANNELS
        num_in, num_out = rng.choice(channels), rng.choice(channels)
        image = image_sizes(rng, scale=scale, batches=_SMALL_BATCHES, num_channels=num_in + num_out)
        return {"BATCH": image["BATCH"], "IN": num_in, "OUT": num_out, **image}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        made = _VARIANTS[variant]
        shape = "LEN" if made.axes == 1 else "HEADS, DIM"
        operands = ", ".join(
            [made.padded, "self.w", *(["self.b"] if made.has_bias else [])]
            + ([made.call] if made.call else [])
        )
        is_unused = made.is_depthwise
        return problem_source(
            {name: n for name, n in sizes.items() if not (is_unused and name == "OUT")},
            product="LEN",
            inputs=[f"torch.randn(BATCH, IN, {shape})"],
            forward=[
                f"x = torch.nn.functional.conv{made.axes}d({operands})",
                *torch_lines(chain),
                f"return {last_name(chain)}",
            ],
            parameters=_parameters(made),
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        made, block = _VARIANTS[variant], _BLOCK[scale]
        dims = _Dims.of(made, sizes)
        operands = ["self.w", *(["self.b"] if made.has_bias else [])]
        pointers = "w_ptr, b_ptr" if made.has_bias else "w_ptr"
        bias = [f"x = x + tl.load(b_ptr + row % {dims.o})"] if made.has_bias else []
        return answer_source(
            f"x_ptr, {pointers}, out_ptr{dims.passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
                f"mask = cols < {dims.length}",
                "x = tl.zeros((BLOCK,), tl.float32)",
                *_sum_lines(made, dims),
                *bias,
                *triton_lines(chain),
                (f"tl.store(out_ptr + row * {dims.length} + cols, {last_name(chain)}, mask=mask)"),
            ],
            forward=[
                *dims.ask,
                f"out = x.new_empty({dims.b}, {dims.o}, {dims.shape})",
                (
                    f"kernel[({dims.rows}, {cdiv(dims.length, block)})]"
                    f"(x, {', '.join(operands)}, out{dims.passed}, BLOCK={block})"
                ),
            ],
            parameters=_parameters(made),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dims:
    """Names or numbers of the sizes in an answer."""

    b: str = "b"
    c: str = "ci"
    o: str
    """Output channels."""
    h: str = "h"
    w: str = "w"
    n: str = "n"
    """Positions, or pixels, of a channel."""
    length: str
    """The same of the output."""
    shape: str
    """Last sizes of the output."""
    rows: str
    """Channels of all outputs."""
    passed: str = ""
    """Arguments of the kernel, each behind a comma."""
    ask: tuple[str, ...] = ()
    """Statements that read the sizes."""

    @classmethod
    def of(cls, made: _Convolution, sizes: Sizes | None) -> _Dims:
        """Sizes of one variant; numbers if `sizes` are given."""
        return cls._named(made) if sizes is None else cls._of_numbers(made, sizes)

    @classmethod
    def _named(cls, made: _Convolution) -> _Dims:
        ask = ["b, ci, n = x.shape"] if made.axes == 1 else ["b, ci, h, w = x.shape", "n = h * w"]
        passed = ", ci, n" if made.taps != 9 else ", ci, h, w, n"
        o = "ci" if made.is_depthwise else "co"
        length = "m" if made.is_strided else "n"
        if not made.is_depthwise:
            passed += ", co"
            ask.append("co = self.w.shape[0]")
        if made.is_strided:
            passed += ", m"
            ask.append("m = (n + 1) // 2")
        shape = length if made.axes == 1 else "h, w"
        return cls(o=o, length=length, shape=shape, rows=f"b * {o}", passed=passed, ask=tuple(ask))

    @classmethod
    def _of_numbers(cls, made: _Convolution, sizes: Sizes) -> _Dims:
        num_out = sizes["IN" if made.is_depthwise else "OUT"]
        n = product(sizes)
        length = (n + 1) // 2 if made.is_strided else n
        return cls(
            b=str(sizes["BATCH"]),
            c=str(sizes["IN"]),
            o=str(num_out),
            h=str(sizes["HEADS"]),
            w=str(sizes["DIM"]),
            n=str(n),
            length=str(length),
            shape=str(length) if made.axes == 1 else f"{sizes['HEADS']}, {sizes['DIM']}",
            rows=str(sizes["BATCH"] * num_out),
        )


def _parameters(made: _Convolution) -> Parameters:
    """A weight whose outputs vary as the input does, and a bias."""
    sides = (", 1" if made.taps == 1 else ", 3") * made.axes
    channels, fan = "o, c", f"({made.taps} * c)"
    if made.is_depthwise:
        channels, fan = "c, 1", str(made.taps)
    weight = f"self.w = torch.nn.Parameter(torch.randn({channels}{sides}) / {fan}**0.5)"
    bias = ("self.b = torch.nn.Parameter(torch.zeros(o))",) if made.has_bias else ()
    if made.is_depthwise:
        return Parameters(args=", c", lines=(weight,), init_inputs="IN")
    return Parameters(args=", c, o", lines=(weight, *bias), init_inputs="IN, OUT")


def _sum_lines(made: _Convolution, dims: _Dims) -> list[str]:
    """Lines that add up the products of taps and weights in `x`."""
    taps, n = made.taps, dims.n
    if made.is_depthwise:
        count, plane, weights = str(taps), "row", f"row % {dims.c} * {taps} + i"
    else:
        count = dims.c if taps == 1 else _times(dims.c, taps)
        channel = "i" if taps == 1 else f"i // {taps}"
        plane = f"(row // {dims.o} * {dims.c} + {channel})"
        weights = f"row % {dims.o} * {count} + i"
    steps, at, inside = _tap(made, dims)
    return [
        f"for i in range(0, {count.strip('()')}):",
        *steps,
        f"    u = tl.load(x_ptr + {plane} * {n} + {at}, mask={inside}, other=0.0)",
        f"    x = x + u * tl.load(w_ptr + {weights})",
    ]


def _tap(made: _Convolution, dims: _Dims) -> tuple[list[str], str, str]:
    """Statements for tap `i`, its place in a channel, and the condition that it is inside."""
    if made.axes == 1:
        return [f"    at = {made.at}"], "at", f"(at >= 0) & (at < {dims.n})"
    if made.taps == 1:
        return [], "cols", "mask"
    steps = [
        f"    r = cols // {dims.w} + i % 9 // 3 - 1",
        f"    s = cols % {dims.w} + i % 3 - 1",
    ]
    inside = f"(r >= 0) & (r < {dims.h}) & (s >= 0) & (s < {dims.w})"
    return steps, f"r * {dims.w} + s", inside


def _times(size: str, factor: int) -> str:
    """A product: a number if `size` is one, else an expression that may be a factor."""
    return str(int(size) * factor) if size.isdecimal() else f"({size} * {factor})"


CONVOLUTION = Convolution(name="convolution", variants=tuple(_VARIANTS), outer="BATCH")
