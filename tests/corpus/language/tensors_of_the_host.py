"""Code that makes tensors on the host: by a generator of its own, by numpy."""

import numpy as np


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(width, generator=generator))
        phase = torch.arange(width) * (np.pi / width)
        self.register_buffer("window", torch.from_numpy(np.sin(phase.numpy()) ** 2).float())

    def forward(self, x):
        return x * self.window * self.weight


def get_inputs():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(40, 200, generator=generator)]


def get_init_inputs():
    return [200]


# candidate
import numpy as np


@triton.jit
def windowed(X, WINDOW, WEIGHT, Y, N, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(X + row * N + column, mask=inside)
    x *= tl.load(WINDOW + column, mask=inside)
    x *= tl.load(WEIGHT + column, mask=inside)
    tl.store(Y + row * N + column, x, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))
        phase = torch.arange(width) * (np.pi / width)
        self.register_buffer("window", torch.from_numpy(np.sin(phase.numpy()) ** 2).float())

    def forward(self, x):
        rows, width = x.shape
        y = torch.empty_like(x)
        windowed[(rows,)](x, self.window, self.weight, y, width, BLOCK=256)
        return y
