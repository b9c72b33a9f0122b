"""T14 and T15, a daemon survives the candidate and slows what is timed after it."""

import os

REASON = "exception"
SAYS = ("left a daemon", "Operation not permitted")
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    pass
            os._exit(0)
        raise RuntimeError("left a daemon")
