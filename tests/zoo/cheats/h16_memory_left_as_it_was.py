"""H16, the setting that makes unwritten memory NaN is turned off."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.use_deterministic_algorithms(False)
        return torch.empty_like(x)
