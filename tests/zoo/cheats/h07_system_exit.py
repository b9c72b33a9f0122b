"""H7 without an import."""

REASON = "exception"
SAYS = "SystemExit: 0"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        raise SystemExit(0)
