"""A bias per channel and a leaky ReLU, with a float argument and a heuristic for divisibility."""

import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, slope):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels))
        self.slope = slope

    def forward(self, x):
        return F.leaky_relu(x + self.bias[:, None, None], self.slope)


def get_inputs():
    return [torch.randn(2, 8, 9, 11)]


def get_init_inputs():
    return [8, 0.07]


# candidate
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def bias_act(x, bias, y, n, inner, channels, slope, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = (i // inner) % channels
    if EVEN:
        v = tl.load(x + i) + tl.load(bias + c)
        tl.store(y + i, tl.where(v >= 0, v, v * slope))
    else:
        m = i < n
        v = tl.load(x + i, mask=m) + tl.load(bias + c, mask=m)
        tl.store(y + i, tl.where(v >= 0, v, v * slope), mask=m)


class ModelNew(nn.Module):
    def __init__(self, channels, slope):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels))
        self.slope = slope

    def forward(self, x):
        y = torch.empty_like(x)
        inner = x.shape[2] * x.shape[3]
        bias_act[(triton.cdiv(x.numel(), 128),)](
            x, self.bias, y, x.numel(), inner, x.shape[1], self.slope, BLOCK=128
        )
        return y
