"""Semantics of Triton's operations: pure functions over numpy arrays.

Called by the evaluator of `ttir`; `values.py` there says how values are represented, and has the
types of what is exported here. Sums, products and functions are rounded once, as torch's are.
"""

from forge.evalpool.judge.ttir.semantics.operations import OPERATIONS
from forge.evalpool.judge.ttir.semantics.reductions import reduce, scan

__all__ = ["OPERATIONS", "reduce", "scan"]
