"""The table of operations by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forge.evalpool.judge.ttir.semantics.casts import CASTS
from forge.evalpool.judge.ttir.semantics.externs import EXTERNS
from forge.evalpool.judge.ttir.semantics.floats import FLOATS
from forge.evalpool.judge.ttir.semantics.integers import INTEGERS
from forge.evalpool.judge.ttir.semantics.reductions import DOTS
from forge.evalpool.judge.ttir.semantics.shapes import SHAPES

if TYPE_CHECKING:
    from forge.evalpool.judge.ttir.values import Operation

OPERATIONS: Mapping[str, Operation] = {
    **INTEGERS,
    **FLOATS,
    **CASTS,
    **SHAPES,
    **DOTS,
    **EXTERNS,
}
"""Semantics of every operation without memory, pointers, control flow, regions or calls."""
