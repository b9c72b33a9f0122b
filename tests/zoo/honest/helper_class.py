"""The launch is in a class of its own, with private attributes and settings in a dataclass."""

from dataclasses import dataclass

from parts.doubled_relu import kernel


@dataclass(frozen=True)
class Options:
    block: int = 256


class Doubled:
    def __init__(self, options):
        self._options = options

    def __call__(self, x):
        y = torch.empty_like(x)
        block = self._options.block
        kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
        return y


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._op = Doubled(Options())

    def forward(self, x):
        return self._op(x)
