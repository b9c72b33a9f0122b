"""The generator's problem families: the closed world of the quickstart.

A family draws sizes and renders the source of a problem and of its answer; ops.py has the chains of
operations that all families share. Called by `forge.data.generator`. The six stay as they are:
recorded runs have their problems. Others come from files, such as those of `forge data harvest`.
"""

from __future__ import annotations

from forge.data.families.elementwise import ELEMENTWISE
from forge.data.families.layout import Family
from forge.data.families.matmul import MATMUL
from forge.data.families.reduction import REDUCTION
from forge.data.families.rows import BROADCAST, NORM, SOFTMAX

FAMILIES: dict[str, Family] = {
    family.name: family for family in (ELEMENTWISE, BROADCAST, REDUCTION, SOFTMAX, NORM, MATMUL)
}

__all__ = ["FAMILIES", "Family"]
