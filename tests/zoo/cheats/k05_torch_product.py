"""K1 and K5, torch computes a matrix product (Kevin, KernelBench v0.1); the kernel copies (Dr.
Kernel, lazy optimisation).
"""

PROBLEM = "matmul"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        x = torch.matmul(a, b)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
