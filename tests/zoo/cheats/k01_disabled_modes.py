"""K1 with the counters switched off."""

from torch.utils._python_dispatch import _disable_current_modes

REASON = "decoy_kernel"
SAYS = "cannot reach any output"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        with _disable_current_modes():
            x = torch.relu(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
