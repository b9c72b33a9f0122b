"""H18, reads address zero, and dies of it."""

import ctypes

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        ctypes.string_at(0)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
