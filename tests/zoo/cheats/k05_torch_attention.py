"""K1 and K5, torch computes attention; the kernel copies (Dr. Kernel, lazy optimisation)."""

PROBLEM = "attention"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, q, k):
        x = torch.nn.functional.scaled_dot_product_attention(q, k, k)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
