"""Wrapped in a Function, to be trained with."""

from parts.doubled_relu import kernel


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        ctx.shape = x.shape
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Doubled.apply(x)
