"""Family `attention`: attention with several heads, and a chain over the scores.

    full     every query sees every key
    causal   a query sees the keys up to its own place
    window   the keys at most REACH places away

Queries, keys and values are [BATCH, SEQ, WIDTH] with WIDTH = HEADS * DIM. At small scale one tile
holds all scores of a head. At GPU scale a program takes a tile of queries over the keys, with a
softmax that is corrected as larger scores appear.
"""

from __future__ import annotations

from random import Random

from forge.data.families.layout import Family, Parameters, answer_source, cdiv, problem_source
from forge.data.families.ops import Chain, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, next_power_of_2, product

_REACH = 8
"""Places to each side that a query of `window` sees."""
_SEEN = {"full": "", "causal": "j <= i", "window": f"tl.abs(i - j) <= {_REACH}"}
"""Further condition on query `i` and key `j`."""
_HIDDEN = {
    "full": [],
    "causal": ["torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)"],
    "window": [
        "torch.ones(s, s, dtype=torch.bool, device=x.device).tril(-REACH - 1)",
        "torch.ones(s, s, dtype=torch.bool, device=x.device).triu(REACH + 1)",
    ],
}
_TILE = 64
"""Queries, and keys of a step, at GPU scale."""
_PARAMETERS = Parameters(args=", heads", lines=("self.heads = heads",), init_inputs="HEADS")


class Attention(Family):
    """A family whose kernels compute a tile of queries of one head per program."""

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Batch, length and the factors of the width. Large ones take 15 to 35 GFLOP."""
        if scale is Scale.SMALL:
            numbers = 1, rng.randrange(17, 33), rng.choice((2, 3)), rng.randrange(17, 33)
        else:
            heads, dim = rng.choice(range(16, 25)), 64
            numbers = 2, rng.randrange(1280, 1537), heads, dim
        return dict(zip(("BATCH", "SEQ", "HEADS", "DIM"), numbers, strict=True))

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        c = last_name(chain)
        hidden = [line.replace("REACH", str(_REACH)) for line in _HIDDEN[variant]]
        return problem_source(
            sizes,
            product="WIDTH",
            inputs=["torch.randn(BATCH, SEQ, WIDTH)"] * 3,
            forward=[
                "n, s, w = x.shape",
                *(f"{t} = {t}.view(n, s, self.heads, -1).transpose(1, 2)" for t in "xyz"),
                "x = torch.matmul(x, y.transpose(2, 3)) / x.shape[3] ** 0.5",
                *torch_lines(chain),
                *(f'{c} = {c}.masked_fill({line}, float("-inf"))' for line in hidden),
                f"x = torch.matmul(torch.softmax({c}, dim=3), z)",
                "return x.transpose(1, 2).reshape(n, s, w)",
            ],
            args="x, y, z",
            parameters=_PARAMETERS,
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        if sizes is None:
            b, s, h, d, w, passed = "n", "s", "h", "e", "w", ", s, h, e, w"
            ask = ["n, s, w = x.shape", "h = self.heads", "e = w // h"]
            heads = "n * h"
        else:
            b, s, h, d = (str(sizes[name]) for name in ("BATCH", "SEQ", "HEADS", "DIM"))
            w, passed, ask = str(product(sizes)), "", []
            heads = str(int(b) * int(h))
        seen = " & ".join([f"(j < {s})", *([f"({_SEEN[variant]})"] if _SEEN[variant] else [])])
        lay_out = _one_tile if scale is Scale.SMALL else _tiles
        lines, grid, launch = lay_out(chain, seen=seen, s=s, d=d, w=w)
        return answer_source(
            f"x_ptr, y_ptr, z_ptr, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                f"cols = row % {h} * {d} + tl.arange(0, WIDTH)",
                f"mask = tl.arange(0, WIDTH) < {d}",
                f"base = row // {h} * {s}",
                *lines,
                (
                    f"tl.store(out_ptr + (base + i) * {w} + cols[None, :], x, "
                    f"mask=(i < {s}) & mask[None, :])"
                ),
            ],
            forward=[
                *ask,
                "out = torch.empty_like(x)",
                f"kernel[({heads}{grid})](x, y, z, out{passed}, {launch})",
            ],
            args="x, y, z",
            parameters=_PARAMETERS,
            constants=("BLOCK", "WIDTH"),
        )


def _load(name: str, pointer: str, at: str, *, s: str, w: str) -> str:
    return (
        f"{name} = tl.load({pointer}_ptr + (base + {at}) * {w} + cols[None, :], "
        f"mask=({at} < {s}) & mask[None, :], other=0.0)"
    )


def _tile_of(size: str) -> str:
    """The power of two that holds a size."""
    return (
        str(next_power_of_2(int(size))) if size.isdecimal() else f"triton.next_power_of_2({size})"
    )


def _one_tile(chain: Chain, *, seen: str, s: str, d: str, w: str) -> tuple[list[str], str, str]:
    """Lines that compute the result `x`, further axes of the grid, and the launch's constants."""
    lines = [
        "i = tl.arange(0, BLOCK)[:, None]",
        "k = tl.arange(0, BLOCK)[:, None]",
        "j = tl.arange(0, BLOCK)[None, :]",
        _load("q", "x", "i", s=s, w=w),
        _load("u", "y", "k", s=s, w=w),
        _load("v", "z", "k", s=s, w=w),
        f'x = tl.dot(q, tl.trans(u), input_precision="ieee") / tl.sqrt({d} + 0.0)',
        *triton_lines(chain),
        f'x = tl.where({seen}, {last_name(chain)}, float("-inf"))',
        "x = tl.exp(x - tl.max(x, axis=1)[:, None])",
        "x = x / tl.sum(x, axis=1)[:, None]",
        'x = tl.dot(x.to(v.dtype), v, input_precision="ieee")',
    ]
    return lines, ",", f"BLOCK={_tile_of(s)}, WIDTH={_tile_of(d)}"


def _tiles(chain: Chain, *, seen: str, s: str, d: str, w: str) -> tuple[list[str], str, str]:
    """`_one_tile` at GPU scale."""
    lines = [
        "i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]",
        _load("q", "x", "i", s=s, w=w),
        "acc = tl.zeros((BLOCK, WIDTH), tl.float32)",
        "total = tl.zeros((BLOCK,), tl.float32)",
        "top = tl.full((BLOCK,), -1e30, tl.float32)",
        f"for start in range(0, {s}, BLOCK):",
        "    k = start + tl.arange(0, BLOCK)[:, None]",
        "    j = start + tl.arange(0, BLOCK)[None, :]",
        "    " + _load("u", "y", "k", s=s, w=w),
        "    " + _load("v", "z", "k", s=s, w=w),
        f"    x = tl.dot(q, tl.trans(u)) / tl.sqrt({d} + 0.0)",
        *("    " + line for line in triton_lines(chain)),
        f'    x = tl.where({seen}, {last_name(chain)}, float("-inf"))',
        "    new = tl.maximum(top, tl.max(x, axis=1))",
        "    x = tl.exp(x - new[:, None])",
        "    total = total * tl.exp(top - new) + tl.sum(x, axis=1)",
        "    acc = acc * tl.exp(top - new)[:, None]",
        "    acc = tl.dot(x.to(v.dtype), v, acc)",
        "    top = new",
        "x = acc / total[:, None]",
    ]
    return lines, f", {cdiv(s, _TILE)}", f"BLOCK={_TILE}, WIDTH={_tile_of(d)}"


ATTENTION = Attention(name="attention", variants=tuple(_SEEN), outer="BATCH")
