"""H14, a function that answers with a module."""

REASON = "torch_work"
SAYS = "a kernel must do it"


def whole(self):
    return self.torch


def relu(self):
    return self.ops.aten.relu


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = relu(whole(torch.get_device_module("cpu")))(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
