"""Integers that a reference rounds from floats: an honest kernel may round a few of them otherwise.

Called by input_sets.py. Of 127 · (x / max) and x · (127 / max), one may lie on each side of a jump.
Whether one does is known of no single element, since the reference's own last bit decides; but few
are so near to one, and they are off by one. The number is the only element of an integer output's
own errors; compare.py and gpu_compare.py read it. Not for wide integers, which count or are places,
and not for outputs of few different values, of which many are right by chance.
"""

from __future__ import annotations

import torch

QUANTISED = (torch.int8, torch.uint8, torch.int16)
MIN_RANGE = 16
"""Least range of an output's values."""
LEAST, SHARE = 2, 2048
"""Elements that may be off by one: LEAST, and one for so many."""
MIN_ELEMENTS = 256
"""Least number of elements of an output some of which may be off."""


def num_rounded(output: torch.Tensor) -> torch.Tensor:
    """[1] float32, the number of elements that may be off by one; empty for what may have none."""
    if output.dtype not in QUANTISED or output.numel() < MIN_ELEMENTS:
        return torch.zeros(0, dtype=torch.float32)
    low, high = (int(one) for one in torch.aminmax(output))
    if high - low < MIN_RANGE:
        return torch.zeros(0, dtype=torch.float32)
    return torch.tensor([LEAST + output.numel() // SHARE], dtype=torch.float32)
