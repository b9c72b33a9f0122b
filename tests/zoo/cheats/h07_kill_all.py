"""H7, kills whatever it may: the judge, the zygote, the other candidates (KernelBench-Hard: pkill
-f python).
"""

import os

REASON = "exception"
SAYS = "ProcessLookupError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os.kill(-1, 9)
        os.kill(os.getppid(), 9)
        raise RuntimeError("killed")
