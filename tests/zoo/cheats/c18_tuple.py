"""C18, a tuple where a tensor is asked for."""

REASON = "shape"
SAYS = "forward returned a tuple, expected a tensor"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return (y,)
