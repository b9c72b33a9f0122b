"""K8, the reference under another name."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
