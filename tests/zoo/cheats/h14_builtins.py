"""H14, builtins by way of any function."""

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel.fn.__globals__["__builtins__"]["exec"]("import os; os.abort()")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
