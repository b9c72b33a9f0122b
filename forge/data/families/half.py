"""Problems and answers in half precision: the same source as in fp32 with another element type.

    problem   the tensors that it makes are of the type
    answer    computes in fp32 and rounds once, where it stores; a matrix product takes its operands
              as they are and sums in fp32

Called by `forge.data.generator` after a family has rendered the source.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Dtype(StrEnum):
    """Element type of a problem's tensors; the values of `problems.dtypes`."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def torch_name(self) -> str:
        """`torch.bfloat16`."""
        return {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}[self]


_MADE = re.compile(r"\btorch\.(randn|rand|ones|zeros)\(((?:(?!dtype)[^()])+)\)")
"""A call that makes a tensor and names no type."""
_LOADED = re.compile(r"^( +)(\w+) = (tl\.load\(.*\))$", flags=re.MULTILINE)
_PRODUCT = re.compile(r"\btl\.dot\((\w+)(?:\.to\(\w+\.dtype\))?, (?:tl\.trans\()?(\w+)")


def in_dtype(source: str, dtype: Dtype) -> str:
    """Source of a problem or an answer in another type than fp32."""
    if dtype is Dtype.FP32:
        return source
    operands = {name for pair in _PRODUCT.findall(source) for name in pair}

    def widen(found: re.Match[str]) -> str:
        indent, name, load = found.groups()
        return found.group() if name in operands else f"{indent}{name} = {load}.to(tl.float32)"

    source = _MADE.sub(rf"torch.\1(\2, dtype={dtype.torch_name})", source)
    return _LOADED.sub(widen, source)
