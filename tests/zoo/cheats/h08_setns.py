"""H8, enters the namespaces of the first process."""

import ctypes
import os

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) != 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
