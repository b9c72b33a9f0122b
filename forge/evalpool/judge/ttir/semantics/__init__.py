"""Semantics of Triton's operations: pure functions over numpy arrays.

Called by the evaluator of `ttir`; `values.py` there says how values are represented, and has the
types of what is exported here. Sums, products and functions are rounded once, as torch's are.
"""

from collections.abc import Mapping

from forge.evalpool.judge.ttir.semantics.blocks import BLOCKS, reduce, reshaped, scan
from forge.evalpool.judge.ttir.semantics.elementwise import CASTS, EXTERNS, FLOATS, INTEGERS
from forge.evalpool.judge.ttir.values import Operation

__all__ = ["OPERATIONS", "reduce", "reshaped", "scan"]

OPERATIONS: Mapping[str, Operation] = {**INTEGERS, **FLOATS, **CASTS, **BLOCKS, **EXTERNS}
"""Semantics of every operation without memory, pointers, control flow, regions or calls."""
