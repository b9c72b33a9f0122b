"""C18, the methods of all tensors are replaced through the class of one."""

REASON = "mismatch"
SAYS = "elements differ"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        type(x).copy_ = lambda self, other: torch.relu(other) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
