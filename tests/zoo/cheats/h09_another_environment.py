"""H9, reads the environment of the process that started it."""

import os

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                raise RuntimeError(open(f"/proc/{name}/environ").read())
        open("/proc/1/environ").read()
        raise LookupError("no other process")
