"""H8, loads a program into the kernel."""

import ctypes

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(321, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
