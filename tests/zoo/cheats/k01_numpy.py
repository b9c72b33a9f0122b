"""K1 in numpy, where torch sees nothing."""

REASON = "exception"
SAYS = "RuntimeError: .numpy() is not supported for tensor subclasse"
from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = torch.as_tensor(x.numpy().clip(0) * 2)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
