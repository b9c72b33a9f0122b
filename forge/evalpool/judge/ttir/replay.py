"""Places that no input has a part in: the first call of a launch finds them, later ones read them.

Addresses and masks of most accesses depend on program ids and arguments alone; in a convolution,
most operations compute nothing else. Where the way through a kernel does, too, every call makes the
same accesses in the same order, whatever the inputs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from forge.evalpool.judge.ttir import tree
from forge.evalpool.judge.ttir.decisions import Decision
from forge.evalpool.judge.ttir.memory.storages import Fixed
from forge.evalpool.judge.ttir.semantics import OPERATIONS
from forge.evalpool.judge.ttir.steps import HINTS
from forge.evalpool.judge.ttir.verify import operations_in, operations_of

PLACED = {"tt.load": (0, 1), "tt.store": (0, 2)}
"""Operands that are an access's address and mask."""
SHAPING = (
    *("arith.constant", "tt.make_range", "tt.get_program_id", "tt.get_num_programs"),
    *("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.addptr"),
)
"""Operations whose results depend on their operands, and on the instance, alone; as OPERATIONS."""


def fixed_in(function: tree.Function, decisions: Sequence[Decision]) -> Fixed:
    """Fixed operations of a kernel; none where its way depends on data. Values that decisions read
    are computed in each call."""
    (body, *others), operations = function.body.blocks, [*operations_of(function)]
    pairs = zip(body.arguments, function.arguments, strict=True)
    known = {value for value, kind in pairs if not isinstance(kind, tree.Descriptor)}
    folds = (one for one in operations if one.regions and not one.name.startswith("scf."))
    folded = {each.index for one in folds for each in operations_in(*one.regions)}
    pure = set[int]()
    for one in operations:
        bounds = {"scf.for": one.operands[:3], "scf.if": one.operands}.get(one.name, ())
        is_open = one.name in ("scf.while", "tt.call") or not known.issuperset(bounds)
        if is_open or others:
            return Fixed()
        if one.name == "scf.for":
            known.add(one.regions[0].blocks[0].arguments[0])
        is_pure = (one.name in OPERATIONS or one.name in SHAPING) and one.index not in folded
        if is_pure and known.issuperset(one.operands):
            known.update(one.results)
            pure.add(one.index)
    read = (each for one in decisions for each in (one.operands, one.choices, one.masks))
    needed, accesses, skipped = {*chain(*read)}, set[int](), set[int]()
    for one in reversed(operations):
        places = [one.operands[n] for n in PLACED.get(one.name, ()) if n < len(one.operands)]
        is_hinted = not one.attributes.keys().isdisjoint(HINTS)
        if places and known.issuperset(places) and one.index not in folded:
            accesses.add(one.index)
            needed.update(v for n, v in enumerate(one.operands) if n not in PLACED[one.name])
        elif one.index in pure and not is_hinted and needed.isdisjoint(one.results):
            skipped.add(one.index)
        else:
            needed.update(one.operands)
    return Fixed(frozenset(accesses), frozenset(skipped))
