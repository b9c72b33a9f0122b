"""H14, the same with dataclasses."""

from dataclasses import make_dataclass

from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        lazy = make_dataclass("Tensor", [], namespace={"__torch_function__": print})
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
