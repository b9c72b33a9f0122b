"""H14, a name in pieces (KernelGuard OBFUSCATED_EXEC)."""

REASON = "torch_work"
SAYS = "a kernel must do it"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        getattr(torch, "o" + "ps").aten.relu(x)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
