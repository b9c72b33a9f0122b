"""`[model.quantize]` as transformers names it: the frozen base of an adapter in 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig


def quantization(table: Mapping[str, Any] | None) -> BitsAndBytesConfig | None:
    """NF4 by bitsandbytes; None without a table."""
    if table is None:
        return None
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=table["bits"] == 4,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=table["double_quant"],
        bnb_4bit_compute_dtype=getattr(torch, table["compute_dtype"]),
    )
