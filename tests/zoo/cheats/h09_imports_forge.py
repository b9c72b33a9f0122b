"""H9, asks the judge's own code."""

from forge.evalpool.judge.reference.oracle import expected

REASON = "import_error"
SAYS = "ModuleNotFoundError: No module named"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return expected(x)
