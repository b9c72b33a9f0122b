"""H20, unpickles bytes of its own making."""

REASON = "exception"
SAYS = "AttributeError: Can"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        torch.save({"a": x}, "/tmp/work/a.pt")
        torch.load("/tmp/work/a.pt", weights_only=False)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
