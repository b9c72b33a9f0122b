"""H8, mounts / writable again."""

import ctypes

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(None, b"/", None, 32 | 4096, None) != 0:
            raise OSError(ctypes.get_errno(), "refused")
        raise RuntimeError("it works")
