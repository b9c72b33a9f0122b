"""`pass`, a docstring that says exec, os and torch.compile, a parameter called input."""


class Shape:
    """No exec, no os, no torch.compile: `pass` is all there is."""

    pass


def size(input):
    return input.numel()


from parts.doubled_relu import kernel


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, size(x), BLOCK=256)
        return y
