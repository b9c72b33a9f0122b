"""C17, an output of half the width, which a comparison would promote."""

REASON = "shape"
SAYS = "output dtype is float"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y.half()
