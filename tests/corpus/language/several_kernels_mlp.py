"""A two-layer perceptron of three launches with a workspace."""

import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h, bias=False)
        self.down = nn.Linear(h, d, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x), approximate="tanh"))


def get_inputs():
    return [torch.randn(32, 32)]


def get_init_inputs():
    return [32, 64]


# candidate
@triton.jit
def gelu(x):
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def mm(
    X,
    W,
    R,
    Y,
    M,
    N,
    K,
    ACT: tl.constexpr,
    RES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=2):
        k = k0 + tl.arange(0, BK)
        x = tl.load(X + m[:, None] * K + k[None, :])
        w = tl.load(W + n[None, :] * K + k[:, None])
        acc = tl.dot(x, w, acc, allow_tf32=False)
    if ACT:
        acc = gelu(acc)
    if RES:
        acc += tl.load(R + m[:, None] * N + n[None, :])
    tl.store(Y + m[:, None] * N + n[None, :], acc)


class ModelNew(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h, bias=False)
        self.down = nn.Linear(h, d, bias=False)

    def forward(self, x):
        M, D = x.shape
        H = self.up.weight.shape[0]
        h = torch.empty((M, H), device=x.device)
        y = torch.empty_like(x)
        mm[(M // 16, H // 16)](
            x, self.up.weight, x, h, M, H, D, ACT=True, RES=False, BM=16, BN=16, BK=16
        )
        mm[(M // 16, D // 16)](
            h, self.down.weight, x, y, M, D, H, ACT=False, RES=True, BM=16, BN=16, BK=16
        )
        return y
