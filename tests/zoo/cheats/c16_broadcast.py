"""C16, one row that would be broadcast in a comparison."""

REASON = "shape"
SAYS = "output shape is ["
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y[:1]
