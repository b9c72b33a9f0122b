"""K6, inductor writes the kernel."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fast = torch.compile(lambda x: torch.relu(x) * 2)

    def forward(self, x):
        return self.fast(x)
