"""H7, ends before anything is checked."""

import os

REASON = "crash"
SAYS = "ended its process"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os._exit(0)
