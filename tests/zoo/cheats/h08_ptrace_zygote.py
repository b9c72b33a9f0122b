"""H8, attaches to its parent, the zygote."""

import ctypes
import os

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, os.getppid() or 1, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
