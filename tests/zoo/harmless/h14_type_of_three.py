"""H14, a class with special methods that no definition shows."""

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        lazy = type("Tensor", (torch.Tensor,), {"__torch_function__": print})
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
