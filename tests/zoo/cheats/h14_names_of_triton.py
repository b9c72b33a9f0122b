"""H14, a launch on a CPU leaves Triton's own modules among the candidate's names."""

REASON = "exception"
SAYS = "NameError: name"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        dict(inspect.getmembers(inspect))["os"].getpid()  # noqa: F821
        return y
