"""H6 and H7, closes every descriptor, so that the judge waits for ever."""

import os

REASON = "crash"
SAYS = "ended its process"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os.closerange(0, 99)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
