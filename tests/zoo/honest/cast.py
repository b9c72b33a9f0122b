"""Computes in float32, casts on the way in and out."""

PROBLEM = "half"
from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.to(torch.float32)
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y.to(torch.float16)
