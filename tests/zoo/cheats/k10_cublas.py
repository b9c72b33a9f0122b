"""K10, cuBLAS through ctypes."""

import ctypes

REASON = "exception"
SAYS = "OSError: libcublas.so."
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        ctypes.CDLL("libcublas.so.12").cublasSgemm_v2()
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
