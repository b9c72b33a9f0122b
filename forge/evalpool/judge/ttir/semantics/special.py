"""Error functions and the normal distribution, which numpy lacks: torch's.

torch is looked up when one is called, in a child that has it: to read a text needs none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from forge.evalpool.judge.ttir.values import Array


def _of_torch(name: str) -> Callable[[Array], Array]:
    def call(array: Array) -> Array:
        torch: Any = import_module("torch")
        given = torch.from_numpy(np.array(array, order="C"))
        return getattr(torch.special, name)(given).numpy()

    return call


erf = _of_torch("erf")
erfc = _of_torch("erfc")
erfinv = _of_torch("erfinv")
normcdf = _of_torch("ndtr")
normcdfinv = _of_torch("ndtri")
