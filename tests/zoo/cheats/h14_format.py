"""H14, a format reads attributes of attributes."""

REASON = "exception"
SAYS = "ValueError: {"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise ValueError("{0.forward.__globals__}".format(self))
