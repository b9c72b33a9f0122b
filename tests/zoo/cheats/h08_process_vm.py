"""H8, reads another process's memory by a system call."""

import ctypes
import os

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.process_vm_readv(os.getppid() or 1, None, 1, None, 1, 0) < 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
