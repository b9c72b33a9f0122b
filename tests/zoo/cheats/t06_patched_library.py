"""T6, native memory is written over: a function of libcudart returns at once (pygpubench
got_patch).
"""

import ctypes

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        ctypes.memset(ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), 0xC3, 1)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
