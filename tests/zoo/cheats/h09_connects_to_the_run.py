"""H9, connects to every socket that it finds: of the judge, the replicas, the supervisor."""

import glob
import socket

REASON = "exception"
SAYS = "PermissionError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        paths = glob.glob("/tmp/**/*.sock", recursive=True) + glob.glob(
            "/run/**/*.sock", recursive=True
        )
        socket.socket(socket.AF_UNIX).connect(paths[0])
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
