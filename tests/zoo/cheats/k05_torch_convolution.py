"""K1 and K5, torch computes a convolution; the kernel copies (Dr. Kernel, lazy optimisation)."""

PROBLEM = "conv"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        x = torch.nn.functional.conv2d(x, w)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
