"""H14, an error knows the module that an attribute was missing from."""

REASON = "torch_work"
SAYS = "a kernel must do it"


def relu(self):
    return self.ops.aten.relu


from parts.copied import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            torch.no_such_name
        except AttributeError as error:
            x = relu(error.obj)(x) * 2
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
