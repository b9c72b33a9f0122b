"""H8, writes into the memory of the zygote (pygpubench proc_mem_bypass)."""

import os

REASON = "exception"
SAYS = "IndexError: list index out of range"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        others = [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        with open(f"/proc/{others[0]}/mem", "wb") as memory:
            memory.write(b"0")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
