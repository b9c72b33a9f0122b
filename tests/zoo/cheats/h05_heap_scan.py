"""H5, searches its own memory for a signature of the harness's secrets (pygpubench
heap_sig_scan).
"""

import ctypes

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for line in open("/proc/self/maps"):
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" in line and b"expected_out" in ctypes.string_at(low, high - low):
                return x
        raise LookupError("nothing to be found")
