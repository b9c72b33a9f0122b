"""Addresses held to the tensors of a launch, as each version of Triton's interpreter gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from forge.evalpool.judge.bounds import Launch, OutOfBounds

IS_IN = np.array([True, True, True, False])


@pytest.mark.parametrize("mask", [TensorHandle(IS_IN, tl.int1), IS_IN], ids=["handle", "array"])
def test_what_a_mask_leaves_out_may_lie_anywhere(mask: Any) -> None:
    x = torch.zeros(3)
    addresses = np.arange(4, dtype=np.uint64) * np.uint64(4) + np.uint64(x.data_ptr())
    pointers = TensorHandle(addresses, tl.pointer_type(tl.float32))
    launch = Launch([("x", x)])
    launch.check("load", pointers, mask)
    with pytest.raises(OutOfBounds, match="1 of 4 elements; the first is element 3 of x, which"):
        launch.check("load", pointers)
