"""H9, reads the problem's file."""

REASON = "exception"
SAYS = "FileNotFoundError:"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        source = open("problem.py").read()
        raise RuntimeError(source)
