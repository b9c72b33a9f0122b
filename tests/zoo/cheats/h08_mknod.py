"""H8, makes a device node of the disk."""

import os

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        os.mknod("/tmp/work/disk", 0o60666, os.makedev(254, 0))
        return open("/tmp/work/disk", "rb").read(1)
