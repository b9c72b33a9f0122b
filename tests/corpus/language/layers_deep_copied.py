"""Residual layers, each a deep copy of one, as torch's TransformerEncoder makes its own."""

import copy


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.relu(self.linear(x))


class Model(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        block = Block(dim)
        self.layers = nn.ModuleList([copy.deepcopy(block) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def get_inputs():
    return [torch.randn(7, 32)]


def get_init_inputs():
    return [32, 3]


# candidate
import copy


@triton.jit
def block_kernel(x, weight, bias, y, M, K: tl.constexpr, BLOCK_M: tl.constexpr):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, K)
    inside = m[:, None] < M
    a = tl.load(x + m[:, None] * K + k[None, :], mask=inside, other=0.0)
    z = tl.dot(a, tl.load(weight + k[None, :] * K + k[:, None]), input_precision="ieee")
    z = tl.maximum(z + tl.load(bias + k)[None, :], 0.0)
    tl.store(y + m[:, None] * K + k[None, :], a + z, mask=inside)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        rows, dim = x.shape
        y = torch.empty_like(x)
        grid = (triton.cdiv(rows, 16),)
        block_kernel[grid](x, self.linear.weight, self.linear.bias, y, rows, K=dim, BLOCK_M=16)
        return y


def get_clones(module, count):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(count)])


class ModelNew(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = get_clones(Block(dim), depth)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
