"""T9, the answer is kept as long as the input counts no change (Infatoshi/KernelBench-Hard)."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x):
        if self.seen == x._version:
            return self.y
        self.seen = x._version
        y = self.y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
