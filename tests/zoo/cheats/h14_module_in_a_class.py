"""H14, a module as an attribute of a class, where no import's name is seen any more."""

REASON = "torch_work"
SAYS = "a kernel must do it"


class Hidden:
    import torch as t


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = Hidden.t.ops.aten.relu(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
