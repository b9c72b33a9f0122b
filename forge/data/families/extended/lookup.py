"""Families of tables that indices select from: `embedding` and `indexing`.

embedding   rows of a learned table, plain, with a row of positions added, or the sum or mean of
            four, then a chain
indexing    a chain, and rows or elements that indices choose (select, gather), or the places that
            they are written to (scatter) or added to (scatter_add)

A program processes one row of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from forge.data.families.layout import (
    NO_PARAMETERS,
    WIDE_LAUNCH,
    Family,
    Parameters,
    answer_source,
    problem_source,
)
from forge.data.families.ops import Chain, is_sound_in_half, last_name, torch_lines, triton_lines
from forge.data.families.sizes import Scale, Sizes, next_power_of_2, product, row_sizes

_BAG = 4
"""Indices of a bag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """Lines of one variant. `{c}` is the chain's result, `{n}` the length of a row."""

    indices: str
    """Makes the input `i`."""
    reference: tuple[str, ...] = ()
    """Statements of the reference before the chain."""
    result: str = "{c}"
    before: tuple[str, ...] = ()
    """Statements of the kernel before the chain."""
    store: str = "tl.store(out_ptr + row * {n} + cols, {c}, mask=mask)"
    out: str = "x.new_empty({m}, {n})"
    parameters: Parameters = NO_PARAMETERS


class _Table(Family):
    """A family whose kernels process a row of the result per program."""

    def _lines(self, variant: str) -> _Lookup:
        return _LOOKUPS[self.name][variant]

    def _operands(self, variant: str) -> list[str]:
        """Tensors that the kernel reads, as `forward` names them."""
        lines = self._lines(variant).parameters.lines
        learned = [line.partition(" = ")[0] for line in lines]
        return ["i", *(learned or ["x"])]

    def draw_sizes(self, rng: Random, *, scale: Scale) -> Sizes:
        """Rows of the result and of the table, and the factors of a row's length."""
        table = rng.randrange(5, 13) if scale is Scale.SMALL else rng.randrange(1000, 4000)
        return {"TABLE": table, **row_sizes(rng, scale=scale)}

    def render_problem(self, variant: str, chain: Chain, *, sizes: Sizes) -> str:
        """Source of the problem."""
        lines = self._lines(variant)
        is_learned = bool(lines.parameters.lines)
        size = "ROWS" if variant != "select" else "TABLE"
        has_table = is_learned or variant == "select"
        return problem_source(
            {name: n for name, n in sizes.items() if has_table or name != "TABLE"},
            product="COLS",
            inputs=[*([] if is_learned else [f"torch.randn({size}, COLS)"]), lines.indices],
            forward=[
                *lines.reference,
                *torch_lines(chain),
                f"return {lines.result.format(c=last_name(chain))}",
            ],
            args="i" if is_learned else "x, i",
            parameters=lines.parameters,
        )

    def render_answer(
        self, variant: str, chain: Chain, *, sizes: Sizes | None = None, scale: Scale = Scale.SMALL
    ) -> str:
        """Source of the answer."""
        lines, operands = self._lines(variant), self._operands(variant)
        source = operands[1]
        if sizes is None:
            m, n, block, passed = "m", "n", "triton.next_power_of_2(n)", ", n"
            ask = ["m = i.shape[0]", f"n = {source}.shape[1]"]
        else:
            m, n, passed, ask = str(sizes["ROWS"]), str(product(sizes)), "", []
            block = str(next_power_of_2(product(sizes)))
        names = {"m": m, "n": n, "c": last_name(chain)}
        pointers = ", ".join(f"{name.removeprefix('self.')}_ptr" for name in operands)
        options = WIDE_LAUNCH if scale is Scale.GPU else ""
        return answer_source(
            f"{pointers}, out_ptr{passed}",
            kernel=[
                "row = tl.program_id(0)",
                "cols = tl.arange(0, BLOCK)",
                f"mask = cols < {n}",
                *(line.format(**names) for line in lines.before),
                *triton_lines(chain),
                lines.store.format(**names),
            ],
            forward=[
                *ask,
                f"out = {lines.out.format(**names).replace('x.', f'{source}.')}",
                f"kernel[({m},)]({', '.join(operands)}, out{passed}, BLOCK={block}{options})",
            ],
            args="i" if source != "x" else "x, i",
            parameters=lines.parameters,
        )

    def accepts_half(self, variant: str, chain: Chain) -> bool:
        """Not for atomic additions, which round each sum."""
        return variant != "scatter_add" and is_sound_in_half(chain)


_TABLE = "self.w = torch.nn.Parameter(torch.randn(table, dim))"
_EMBEDDING = Parameters(args=", table, dim", lines=(_TABLE,), init_inputs="TABLE, COLS")
_POSITIONS = Parameters(
    args=", table, rows, dim",
    lines=(_TABLE, "self.p = torch.nn.Parameter(torch.randn(rows, dim))"),
    init_inputs="TABLE, ROWS, COLS",
)
_ROW = ("i = tl.load(i_ptr + row)", "x = tl.load(w_ptr + i * {n} + cols, mask=mask, other=0.0)")
_POSITION = "x = x + tl.load(p_ptr + row * {n} + cols, mask=mask, other=0.0)"
_SUM = (
    "x = tl.zeros((BLOCK,), tl.float32)",
    f"for k in range(0, {_BAG}):",
    f"    i = tl.load(i_ptr + row * {_BAG} + k)",
    "    x = x + tl.load(w_ptr + i * {n} + cols, mask=mask, other=0.0)",
)
_LOOK_UP = "x = torch.nn.functional.embedding(i, self.w)"
_ONE, _FOUR = "torch.randint(0, TABLE, (ROWS,))", f"torch.randint(0, TABLE, (ROWS, {_BAG}))"
_PLACES = ("i = tl.load(i_ptr + row * {n} + cols, mask=mask, other=0)",)
_OWN = "x = tl.load(x_ptr + row * {n} + cols, mask=mask, other=0.0)"
_LOOKUPS: Mapping[str, Mapping[str, _Lookup]] = {
    "embedding": {
        "plain": _Lookup(indices=_ONE, reference=(_LOOK_UP,), before=_ROW, parameters=_EMBEDDING),
        "position": _Lookup(
            indices=_ONE,
            reference=(_LOOK_UP, "x = x + self.p"),
            before=(*_ROW, _POSITION),
            parameters=_POSITIONS,
        ),
        "bag_sum": _Lookup(
            indices=_FOUR,
            reference=(_LOOK_UP + ".sum(dim=1)",),
            before=_SUM,
            parameters=_EMBEDDING,
        ),
        "bag_mean": _Lookup(
            indices=_FOUR,
            reference=(_LOOK_UP + ".mean(dim=1)",),
            before=(*_SUM, f"x = x / {_BAG}"),
            parameters=_EMBEDDING,
        ),
    },
    "indexing": {
        "select": _Lookup(
            indices=_ONE,
            reference=("x = torch.index_select(x, 0, i)",),
            before=(_ROW[0], _ROW[1].replace("w_ptr", "x_ptr")),
        ),
        "gather": _Lookup(
            indices="torch.randint(0, COLS, (ROWS, COLS))",
            reference=("x = torch.gather(x, 1, i)",),
            before=(*_PLACES, "x = tl.load(x_ptr + row * {n} + i, mask=mask, other=0.0)"),
        ),
        "scatter": _Lookup(
            indices="torch.argsort(torch.rand(ROWS, COLS), dim=1)",
            result="torch.zeros_like(x).scatter(1, i, {c})",
            before=(*_PLACES, _OWN),
            store="tl.store(out_ptr + row * {n} + i, {c}, mask=mask)",
        ),
        "scatter_add": _Lookup(
            indices="torch.randint(0, COLS, (ROWS, COLS))",
            result="torch.zeros_like(x).scatter_add(1, i, {c})",
            before=(*_PLACES, _OWN),
            store="tl.atomic_add(out_ptr + row * {n} + i, {c}, mask=mask)",
            out="torch.zeros_like(x)",
        ),
    },
}

EMBEDDING, INDEXING = (
    _Table(name=name, variants=tuple(lookups), outer="ROWS" if name == "embedding" else "TABLE")
    for name, lookups in _LOOKUPS.items()
)
"""Indices of 8 bytes are most of what `indexing` moves: rows do not double in half precision."""
