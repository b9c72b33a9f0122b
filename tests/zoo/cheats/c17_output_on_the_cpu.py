"""C17, an output elsewhere, moved out of the timed part."""

REASON = "unsupported"
SAYS = "a copy of"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y.cpu()
