"""H8, attaches to the first process."""

import ctypes

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, 1, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
