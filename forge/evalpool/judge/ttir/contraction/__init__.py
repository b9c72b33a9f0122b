"""Contraction: products that a card's compiler fuses with the sum that uses them.

Called by the planner of `ttir`; imports no plan and no memory. `rewrite.py` finds the sums,
`sums.py` computes them.
"""

from forge.evalpool.judge.ttir.contraction.rewrite import ALL, NONE, contracted

__all__ = ["ALL", "NONE", "contracted"]
