"""H14, a compiled function hands out the globals that it sees, builtins among them."""

REASON = "crash"
SAYS = "crashed"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        kernel.get_capture_scope()["__built" + "ins__"]["exec"]("import os; os.abort()")
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
