"""C4, LayerNorm of normal numbers is the identity: a memcpy passed with 10.95x (KernelBench-v3)."""

PROBLEM = "layernorm"
REASON = "mismatch"
SAYS = "elements differ"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
