"""T12 by way of the driver library."""

import ctypes

REASON = "exception"
SAYS = "OSError: libcudart.so: cannot open shared object file: No su"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        ctypes.CDLL("libcudart.so").cudaDeviceSetLimit(6, 1 << 25)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
