"""From the fourth call on the first answer is returned."""

REASON = "no_kernel_launch"
SAYS = "forward launches no kernel of its own"
from parts.doubled_relu import kernel
from parts.doubled_first_block import cheap


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        if len(self.seen) >= 3:
            return self.seen[0]
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        self.seen.append(y)
        return y
