"""Copies its input and works in place on the copy."""

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x.clone()
        kernel[(triton.cdiv(y.numel(), 256),)](y, y, y.numel(), BLOCK=256)
        return y
