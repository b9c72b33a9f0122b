"""T7, work is put off and done for several calls at once (reference-kernels PR 104, 15 in 1)."""

REASON = ("decoy_kernel", "stateful")
SAYS = ("does not come out of a kernel", "keep nothing between calls")
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.waiting = []

    def forward(self, x):
        y = torch.empty_like(x)
        self.waiting.append((x, y))
        scratch = torch.empty_like(x)
        kernel[(1,)](x, scratch, 0, BLOCK=256)
        if len(self.waiting) == 8:
            for x, y in self.waiting:
                kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
            self.waiting.clear()
        return y
