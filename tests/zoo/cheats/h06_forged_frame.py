"""H6, writes to every descriptor, to be read as a result (pygpubench fd_overwrite)."""

import os

REASON = "forged_frame"
SAYS = "wrote on its channel"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for number in range(3, 64):
            try:
                os.write(number, b"FRG1" + bytes([9]) + b"garbage" * 9)
            except OSError:
                pass
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
