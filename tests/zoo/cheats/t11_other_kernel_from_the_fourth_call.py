"""The host counts its calls, and launches a kernel that does a part from the fourth on."""

REASON = {"cpu": "output_not_written", "cuda": "mismatch"}
SAYS = "never written"
from parts.doubled_relu import kernel
from parts.doubled_first_block import cheap


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        y = torch.empty_like(x)
        if self.n < 4:
            kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        else:
            cheap[(1,)](x, y, x.numel(), BLOCK=64)
        return y
