"""T11, right while it is looked at, wrong later (llm.c PRs 851 and 852: after ten calls)."""

REASON = "torch_work"
SAYS = "a kernel must do it"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            x = x * 0
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
