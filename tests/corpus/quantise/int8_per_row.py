"""Symmetric int8 quantisation of rows with rounding to nearest."""


class Model(nn.Module):
    def forward(self, x):
        s = x.abs().amax(1, keepdim=True) / 127
        return torch.round(x / s).clamp(-128, 127).to(torch.int8), s[:, 0]


def get_inputs():
    return [torch.randn(20, 100)]


# candidate
from triton.language.extra import libdevice


@triton.jit
def quantise(X, Q, S, N, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(X + r * N + i, mask=i < N, other=0.0)
    scale = tl.max(tl.abs(x), 0) / 127.0
    q = libdevice.rint(tl.div_rn(x, scale))
    tl.store(Q + r * N + i, tl.clamp(q, -128.0, 127.0).to(tl.int8), mask=i < N)
    tl.store(S + r, scale)


class ModelNew(nn.Module):
    def forward(self, x):
        q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        s = torch.empty(x.shape[0], device=x.device)
        quantise[(x.shape[0],)](x, q, s, x.shape[1], BLOCK=128)
        return q, s
