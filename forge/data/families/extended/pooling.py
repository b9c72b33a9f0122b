"""Family `pooling`: the maximum or the mean of windows, then a chain.

    max1d, avg1d   windows of three positions, two apart, with a margin of one
    max2d, avg2d   windows of two by two pixels without overlap; an odd last row or column is left
                   out

A program computes a block of one channel's outputs.
"""

from __future__ import annotations

from random import Random

from forge.data.families.layout import Family, answer_source, cdiv, problem_source
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, image_sizes, product

_BLOCK = {Scale.SMALL: 256, Scale.GPU: 1024}
_CALLS = {
    "max1d": "max_pool1d(x, 3, stride=2, padding=1)",
    "avg1d": "avg_pool1d(x, 3, stride=2, padding=1)",
    "max2d": "max_pool2d(x, 2)",
    "avg2d": "avg_pool2d(x, 2)",
}
_STARTS = {
    "max": 'x = tl.full((BLOCK,), float("-inf"), tl.float32)',
    "avg": "x = tl.zeros((BLOCK,), tl.float32)",
}


class Pooling(Family):
    """A family whose kernels reduce a window per output."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Batch, channels and the factors of the length, or the sides of the image."""
        channels = rng.choice((2, 3) if scale is Scale.SMALL else range(16, 65))
        image = image_sizes(rng, scale=scale, batches=(1, 2), num_channels=channels)
        return {"BATCH": image["BATCH"], "CHANNELS": channels, **image}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        shape = "LEN" if variant.endswith("1d") else "HEADS, DIM"
        return problem_source(
            sizes,
            product="LEN",
            inputs=[f"torch.randn(BATCH, CHANNELS, {shape})"],
            forward=[
                f"x = torch.nn.functional.{_CALLS[variant]}",
                *torch_lines(chain),
                f"return {last_name(chain)}",
            ],
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        kind, is_line, block = variant[:3], variant.endswith("1d"), _BLOCK[scale]
        rows, length, shape, ask, passed = (_line if is_line else _image)(sizes)
        n, w, v = ("n", "w", "v") if sizes is None else _numbers(sizes)
        if is_line:
            window = [
                "for i in range(0, 3):",
                "    at = cols * 2 + i - 1",
                f"    inside = (at >= 0) & (at < {n})",
            ]
        else:
            window = [
                "for i in range(0, 4):",
                f"    at = (cols // {v} * 2 + i // 2) * {w} + cols % {v} * 2 + i % 2",
                "    inside = mask",
            ]
        if kind == "max":
            other, step, mean = 'float("-inf")', "x = tl.maximum(x, u)", []
        else:
            other, step, mean = "0.0", "x = x + u", [f"x = x / {3 if is_line else 4}"]
        return answer_source(
            f"x_ptr, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
                f"mask = cols < {length}",
                _STARTS[kind],
                *window,
                f"    u = tl.load(x_ptr + row * {n} + at, mask=inside, other={other})",
                f"    {step}",
                *mean,
                *triton_lines(chain),
                f"tl.store(out_ptr + row * {length} + cols, {last_name(chain)}, mask=mask)",
            ],
            forward=[
                *ask,
                f"out = x.new_empty({shape})",
                f"kernel[({rows}, {cdiv(length, block)})](x, out{passed}, BLOCK={block})",
            ],
        )


def _numbers(sizes: Sizes) -> tuple[str, str, str]:
    """Length of a channel, width of its image, width of the result."""
    return str(product(sizes)), str(sizes["DIM"]), str(sizes["DIM"] // 2)


def _line(sizes: Sizes | None) -> tuple[str, str, str, list[str], str]:
    """Rows of the grid, outputs of a channel, shape of the output, statements that read the sizes,
    and arguments of the kernel, in one dimension."""
    if sizes is None:
        ask = ["b, c, n = x.shape", "m = (n + 1) // 2"]
        return "b * c", "m", "b, c, m", ask, ", n, m"
    b, c, m = sizes["BATCH"], sizes["CHANNELS"], (product(sizes) + 1) // 2
    return str(b * c), str(m), f"{b}, {c}, {m}", [], ""


def _image(sizes: Sizes | None) -> tuple[str, str, str, list[str], str]:
    """`_line` in two dimensions."""
    if sizes is None:
        ask = ["b, c, h, w = x.shape", "n, u, v = h * w, h // 2, w // 2", "m = u * v"]
        return "b * c", "m", "b, c, u, v", ask, ", n, m, w, v"
    b, c, u, v = (
        *(sizes["BATCH"], sizes["CHANNELS"]),
        *(sizes["HEADS"] // 2, sizes["DIM"] // 2),
    )
    return str(b * c), str(u * v), f"{b}, {c}, {u}, {v}", [], ""


POOLING = Pooling(name="pooling", variants=tuple(_CALLS), outer="BATCH")
