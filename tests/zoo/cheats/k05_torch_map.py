"""K1 and K5, torch computes an elementwise map; the kernel copies (Dr. Kernel, lazy
optimisation).
"""

REASON = "torch_work"
SAYS = "a kernel must do it"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.relu(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
