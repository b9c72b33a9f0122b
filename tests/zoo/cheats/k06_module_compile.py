"""K6 through the method that every module has."""

REASON = "no_kernel_launch"
SAYS = "launches no kernel of its own"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.ReLU()
        self.net.compile()

    def forward(self, x):
        return self.net(x) * 2
