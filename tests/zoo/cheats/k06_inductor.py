"""K6 through inductor itself."""

from torch._inductor.compile_fx import compile_fx

REASON = "import_error"
SAYS = "ImportError: cannot import name"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return compile_fx(x)
