"""K1 in a mode that hides operations from an observer of autograd."""

PROBLEM = "matmul"
REASON = "torch_work"
SAYS = "torch does work that a kernel should do"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        with torch.inference_mode():
            x = torch.matmul(a, b)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
