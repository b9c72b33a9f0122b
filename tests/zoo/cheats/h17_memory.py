"""H17, all memory there is."""

REASON = "out_of_memory"
SAYS = "RuntimeError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        big = torch.ones(1 << 44)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
