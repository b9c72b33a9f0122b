"""K1 and K5, torch computes softmax; the kernel copies (Dr. Kernel, lazy optimisation)."""

PROBLEM = "softmax"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.softmax(x, dim=-1)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
