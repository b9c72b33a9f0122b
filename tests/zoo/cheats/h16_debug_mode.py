"""H16, the same by another function."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.set_deterministic_debug_mode("default")
        return torch.empty_like(x)
