"""The generator's problem families. To add one, write it here and list it in `FAMILIES`.

A family draws sizes and renders the source of a problem and of its answer; ops.py has the chains of
operations that all families share. Called by `forge.data.generator`. A run has the basic families
unless `problems.families` names others.
"""

from __future__ import annotations

from forge.data.families.elementwise import ELEMENTWISE
from forge.data.families.extended.attention import ATTENTION
from forge.data.families.extended.channels import CHANNEL_NORM
from forge.data.families.extended.convolution import CONVOLUTION
from forge.data.families.extended.linear import LINEAR
from forge.data.families.extended.lookup import EMBEDDING, INDEXING
from forge.data.families.extended.losses import LOSS
from forge.data.families.extended.pooling import POOLING
from forge.data.families.extended.sequences import MASKED_SOFTMAX, SCAN
from forge.data.families.layout import Family
from forge.data.families.matmul import MATMUL
from forge.data.families.reduction import REDUCTION
from forge.data.families.rows import BROADCAST, NORM, SOFTMAX

BASIC: dict[str, Family] = {
    family.name: family for family in (ELEMENTWISE, BROADCAST, REDUCTION, SOFTMAX, NORM, MATMUL)
}
FAMILIES: dict[str, Family] = BASIC | {
    family.name: family
    for family in (
        *(CONVOLUTION, POOLING, ATTENTION, EMBEDDING, INDEXING),
        *(SCAN, MASKED_SOFTMAX, LOSS, CHANNEL_NORM, LINEAR),
    )
}

__all__ = ["BASIC", "FAMILIES", "Family"]
