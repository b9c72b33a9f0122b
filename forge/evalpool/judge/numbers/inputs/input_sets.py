"""The input sets of one draw: several distributions, eager's outputs and eager's own errors.

Called by the oracle. What a set may be is decided in draws.py; here, which variants a draw has, and
where a search for witnesses (witness.py) changes one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from forge.evalpool.judge.numbers.called import Unjudgeable, call
from forge.evalpool.judge.numbers.errors.logits import has_softmax
from forge.evalpool.judge.numbers.errors.rounded import num_rounded
from forge.evalpool.judge.numbers.inputs import witness
from forge.evalpool.judge.numbers.inputs.agreement import Agreement
from forge.evalpool.judge.numbers.inputs.draws import Draws
from forge.evalpool.judge.numbers.inputs.edges import Edges
from forge.evalpool.judge.numbers.inputs.schedule import FAINT, HUGE, PRODUCTS
from forge.evalpool.judge.numbers.shares import with_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch

    from forge.evalpool.judge.numbers.input_set import InputSet
    from forge.evalpool.judge.numbers.inputs.given import Terms

FIRST = ("given", "spiked", "unlike")
"""Variants of every draw, in order."""
OTHERS = ("centred", "shifted", "wide", "near_one")
"""Variants behind them, in random order."""
NORMS, BOUNDS = ("norm", "sqrt"), ("clamp", "minimum", "maximum", "where", "hardtanh")
"""Parts of names of operations: what takes norms and bounds something may bound a norm, which is
above 1 in every other variant."""
MIN_SETS = 2
"""Sets of a problem for which there is no room."""
WITNESS_MARGIN = 4.0
"""A witness differs by so many tolerances: beside sigmoid(30), 1 is within two of them."""


def plan(
    num_sets: int,
    *,
    operations: Collection[str] = (),
    is_tf32: bool = False,
    is_extremum: bool = False,
) -> list[str]:
    """The variants of `num_sets` sets, in order; with TF32 also HUGE, which `make_sets` repeats.

    Args:
        operations: names of torch's operations that the reference runs.
        is_extremum: it looks for a maximum or a minimum. Of products in TF32 one that begins with 0
            is wrong by less than is allowed beside large values.
    """
    others: list[str] = random.sample(OTHERS, len(OTHERS))
    if any(name in PRODUCTS for name in operations):
        others.remove("near_one")
        others.insert(0, "near_one")
    is_bound = all(any(part in name for name in operations for part in p) for p in (NORMS, BOUNDS))
    if is_bound or (is_tf32 and is_extremum):
        others.insert(0, FAINT)
    cycle = [*FIRST, *others]
    variants = [cycle[number % len(cycle)] for number in range(num_sets)]
    return [variants[0], HUGE, *variants[1:]] if is_tf32 else variants


def make_sets(
    module: Any,
    model: Any,
    *,
    num_sets: int,
    terms: Terms,
    operations: Collection[str] = (),
    flops: int = 0,
    edges: Edges | None = None,
    use: Callable[[InputSet], None] = lambda _: None,
) -> list[InputSet]:
    """The input sets of one draw; the first is as the problem gives it. Raises Unjudgeable.

    Args:
        operations, flops: of one call of the reference (`count_work`), as far as known.
        edges: of the reference; None plants zeros and large slices alone.
        use: called with each set once its inputs and outputs are final, before own errors are.
    """
    edges = edges or Edges()
    is_tf32 = terms.is_tf32
    # The maximum within a softmax may be any number, as far as nothing overflows.
    is_extremum = edges.sign != 0 and not has_softmax(operations)
    variants = plan(num_sets, operations=operations, is_tf32=is_tf32, is_extremum=is_extremum)
    if terms.is_plain:
        variants = ["given"] * num_sets
    draws = Draws(
        module,
        model,
        terms=terms,
        operations=operations,
        edges=edges,
        variants=variants,
    )
    sets: list[InputSet] = []
    num_bytes = 0

    def add(one: InputSet) -> None:
        nonlocal num_bytes
        sets.append(one)
        num_bytes += one.num_bytes()
        use(one)

    search = witness.Search(
        lambda inputs: _results(model, inputs),
        agree=Agreement(terms.tolerated, margin=WITNESS_MARGIN),
        flops=flops,
        is_decided=edges.is_decided,
    )
    while variants:
        variant = variants.pop(0)
        made = draws.make(variant)
        if any(one.is_complex() for one in made.outputs):
            raise Unjudgeable("the reference returns complex numbers: let it return view_as_real")
        if not sets and HUGE in variants:
            at = variants.index(HUGE)
            variants[at:at] = [HUGE] * (draws.num_huge - 1)
        if not sets:
            num_fit = max(MIN_SETS, terms.max_bytes // max(1, made.num_bytes()))
            draws.expect(variants[: num_fit - 1])
        if sets and (planted := search.improve(made.inputs, kept=draws.kept())) is not None:
            improved = draws.tried(planted, variant=made.variant)
            if improved is not None and draws.kinds:  # a witness may take the place of edge values
                add(made)
            made = improved or made
        if (variants or sets) and not terms.is_plain:
            search.note(made.inputs, made.outputs)
        add(made)
        if len(sets) >= MIN_SETS and num_bytes + made.num_bytes() > terms.max_bytes:
            break
    _complete_errors(sets, terms=terms, is_rounding=edges.is_rounding)
    return sets


def _complete_errors(sets: list[InputSet], *, terms: Terms, is_rounding: bool) -> None:
    """Adds least scales to the own errors of outputs (shares.py), once all sets are known, and the
    number of integers that may be off by one (rounded.py)."""
    for number in range(min(len(one.outputs) for one in sets)):
        found = with_shares(
            [one.outputs[number] for one in sets],
            [one.errors[number] for one in sets],
            scales=[one.scales[number] for one in sets],
            precision=terms.tolerated,
        )
        for one, error in zip(sets, found, strict=True):
            is_rounded = is_rounding and not error.numel()
            one.errors[number] = num_rounded(one.outputs[number]) if is_rounded else error


def _results(model: Any, inputs: list[Any]) -> list[torch.Tensor] | None:
    """None where the reference does not bear these inputs."""
    try:
        return call(model, inputs).results()
    except Exception:
        return None
