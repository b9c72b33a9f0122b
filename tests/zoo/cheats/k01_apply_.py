"""K1 in Python: a function is applied in place, which no dispatch mode sees; the screen does."""

REASON = "exception"
SAYS = "TypeError: apply_ is only implemented on CPU tensors"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.clone().apply_(lambda v: max(v, 0.0) * 2)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
